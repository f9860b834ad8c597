"""Changes by users of what belongs to others, and refusals: kept in the log like everything else."""

import time
from dataclasses import dataclass, field

from stretto.service.eventlog.writer import LogWriter
from stretto.service.http.auth import Caller
from stretto.service.http.connections import network_of
from stretto.service.http.rate_limits import RateLimiter
from stretto.service.state.events import Audited, TokenUsed
from stretto.service.state.records import Token

STRANGERS_AT_ONCE = 100  # failures of all addresses together; chosen
USE_NOTED_S = 86_400.0  # between two notes in the log that a token was used; chosen
REFUSALS_PER_S, REFUSALS_AT_ONCE = 0.1, 20  # of one caller; chosen: who asks for ever must not fill the log


@dataclass
class Audit:
    """Writes what is worth knowing later."""

    log_writer: LogWriter
    refusals: RateLimiter = field(default_factory=lambda: RateLimiter(REFUSALS_PER_S, REFUSALS_AT_ONCE))
    strangers: RateLimiter = field(default_factory=lambda: RateLimiter(REFUSALS_PER_S, STRANGERS_AT_ONCE))
    last_used: dict[str, float] = field(default_factory=dict)  # by digest
    noted: dict[str, float] = field(default_factory=dict)  # the same, as it was given to the log

    def refused(self, caller: Caller, what: str, about: str) -> None:
        """Note a refusal; no request waits until it is durable."""
        if not self.refusals.take(caller.name):
            self.log_writer.record(did(caller, what, about, "refused"))

    def failed(self, address: str, path: str, why: str) -> None:
        """Note that a caller showed a token that opens nothing. Nothing more is known of the caller."""
        if not self.refusals.take(f"address {network_of(address)}") and not self.strangers.take(""):
            self.log_writer.record(Audited("nobody", "log in", path[:200], why, client=address))

    def used(self, caller: Caller) -> None:
        """Note that a token was used, in the log now and then only."""
        if (token := caller.token) is None or not token.sha256:
            return
        unix_s = time.time()
        self.last_used[token.sha256] = unix_s
        noted_s = max(self.noted.get(token.sha256, 0.0), token.used_unix_s)
        if not noted_s <= unix_s < noted_s + USE_NOTED_S:
            self.noted[token.sha256] = unix_s
            self.log_writer.record(TokenUsed(token.name, unix_s))

    def last_use(self, token: Token) -> float | None:
        """When a token was used last, as a Unix time; None: never."""
        return max(self.last_used.get(token.sha256, 0.0), token.used_unix_s) or None


def did(caller: Caller, what: str, about: str, refused: str = "") -> Audited:
    """The event that says so."""
    token = "" if caller.token is None else caller.token.name
    return Audited(caller.name, what, about[:200], refused, token, caller.address)
