"""A state kept beside the log, so that a start need not read the log from its beginning.

A kept state is what folding the log up to some event gives, with what the policy remembered then. It is of a
moment when no decision was being made. It is an optimisation and nothing more. It is used only by the very
code that wrote it and under the service's own key. A start without one reads the whole log.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import pickle
import subprocess
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import stretto
from stretto.model import Memory
from stretto.service.eventlog import Store, StoreError, open_store
from stretto.service.eventlog.writer import fold
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.state.state import State

EVERY = 20_000  # events between two; chosen: reading so many takes about a second
DIGEST_BYTES = 32
NICE = 10  # of the process that folds beside the service: it has time
# Folders whose values a kept state holds, or whose code gives them their meaning.
PARTS = (
    "service",
    "jobfile",
    "backends",
    "agent",
    "model",
    "policies",
    "estimate",
    "place",
    "lend",
    "solve",
    "scheduler",
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kept:
    """A state, and what the policy remembered after the last decision in it."""

    state: State
    memory: Memory = None


def sealed(kept: Kept, key: bytes) -> bytes:
    """A state as bytes that only this code and this key open again. Raises what pickling raises."""
    body = zlib.compress(pickle.dumps((kept.state, kept.memory), protocol=pickle.HIGHEST_PROTOCOL), 1)
    return _seal(body, key) + body


def opened(stored: bytes, key: bytes) -> Kept | None:
    """The state; None where it was written by other code, under another key, or cannot be read."""
    seal, body = stored[:DIGEST_BYTES], stored[DIGEST_BYTES:]
    if not hmac.compare_digest(seal, _seal(body, key)):
        return None
    try:
        state, memory = pickle.loads(zlib.decompress(body))
    except Exception as wrong:  # a policy from a file of its own may be gone: pickle raises anything
        log.warning("a kept state cannot be read: %s", wrong)
        return None
    return Kept(state, memory) if isinstance(state, State) else None


def begun(store: Store, key: bytes, up_to: int | None = None) -> Kept:
    """The newest kept state of no event later than `up_to`, else that of an empty log."""
    code_digest()  # now: while the service runs, a user may install a newer version over its files
    stored = store.newest_state(up_to)
    kept = None if stored is None else opened(stored.state, key)
    return Kept(State()) if kept is None or stored is None or kept.state.seq != stored.seq else kept


def keep(store: Store, key: bytes, kept: Kept) -> None:
    """Keep a state that is not changed meanwhile; a policy whose memory cannot be kept has none kept."""
    try:
        store.keep_state(kept.state.seq, sealed(kept, key))
    except StoreError as wrong:
        log.warning("no state is kept: %s", wrong)
    except Exception as wrong:  # what a policy of somebody else remembers may refuse in any way
        policy = kept.state.configured.policy
        log.warning("a state with what policy %s remembers cannot be kept: %s", policy, wrong)


def keep_from_log(store: Store, key: bytes, seq: int, remembered: bytes) -> None:
    """Fold the log up to `seq`, and keep what that gives with the policy's memory, which was pickled."""
    state = begun(store, key, seq).state
    for recorded in store.read(after=state.seq, up_to=seq):
        fold(state, recorded)
    scheduler_of(state.configured)  # a policy from a file of its own is there only once that is imported
    keep(store, key, Kept(state, pickle.loads(remembered)))


def keep_beside(store: Store, key: bytes, seq: int, memory: Memory) -> None:
    """`keep_from_log` in a process of its own, waited for: in ours, requests would wait for it instead."""
    try:
        remembered = pickle.dumps(memory, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as wrong:  # what a policy of somebody else remembers may refuse in any way
        log.warning("what the policy remembers cannot be kept, and so is no state: %s", wrong)
        return
    address = store.engine.url.render_as_string(hide_password=False)
    # Nothing of it is for other people's eyes
    pickled = pickle.dumps((address, key, seq, remembered, code_digest()))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "stretto.service.state_snapshots"],
        input=pickled,
        capture_output=True,
        check=False,
    )
    if done.returncode or done.stderr:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"status {done.returncode}"]
        log.warning("no state is kept: %s", lines[-1])


def main() -> None:
    """What `keep_beside` runs; a newer version that was installed meanwhile keeps nothing."""
    os.nice(NICE)
    address, key, seq, remembered, code = pickle.load(sys.stdin.buffer)
    if code == code_digest():
        with open_store(address, upgrade=False) as store:
            keep_from_log(store, key, seq, remembered)


@dataclass
class StateSnapshots:
    """Keeps a state every so many events."""

    store: Store
    key: bytes
    kept: int  # the last event of the newest kept state
    every: int = EVERY
    _task: "asyncio.Task[None] | None" = None

    def decided(self, state: State, memory: Memory) -> None:
        """No decision is being made: keep this moment, if it is time, beside everything else."""
        if state.seq < self.kept + self.every or (self._task is not None and not self._task.done()):
            return
        self.kept = state.seq
        keeping = asyncio.to_thread(keep_beside, self.store, self.key, state.seq, memory)
        self._task = asyncio.ensure_future(keeping)

    async def stopped(self, state: State, memory: Memory) -> None:
        """The service ends, nothing changes any more: keep where it stands."""
        if self._task is not None:
            await asyncio.wait({self._task})
        if state.seq > self.kept:
            keep(self.store, self.key, Kept(state, memory))


def _seal(body: bytes, key: bytes) -> bytes:
    return hmac.new(key, code_digest() + body, hashlib.sha256).digest()


@cache
def code_digest() -> bytes:
    """A digest of everything that gives kept values their meaning."""
    found = hashlib.sha256(f"{sys.version} {np.__version__}".encode())
    root = Path(stretto.__file__).parent
    for part in PARTS:
        for path in sorted((root / part).rglob("*.py")):
            found.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return found.digest()


if __name__ == "__main__":
    main()
