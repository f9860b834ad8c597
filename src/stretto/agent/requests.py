"""What an agent is asked for, checked before anything depends on it."""

import re
from typing import Any

WORKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # a file name, and none that is hidden
LONGEST_GRACE_S = 7 * 86_400.0
LONGEST_LENDER = 200
SIGNALS = range(1, 65)


class Refused(Exception):
    """A request that is not done: the HTTP status, and one line for a person.

    epoch: of the leader that has followed the caller; 0 where that is not the reason.
    """

    def __init__(self, status: int, why: str, epoch: int = 0) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.epoch = epoch

    def to_json(self) -> dict[str, Any]:
        """What the caller is told."""
        return {"why": self.why, **({"epoch": self.epoch} if self.epoch else {})}


def worker_id_of(text: str) -> str:
    """A worker's id that is safe as a file name; raises Refused."""
    if not WORKER_ID.fullmatch(text):
        raise Refused(
            400, f"worker id must be 1 to 200 of A-Z a-z 0-9 . _ -, a letter or digit first, got {text!r}"
        )
    return text


def start_of(body: Any, gpus: int, images: bool = False) -> dict[str, Any]:
    """A start in its full form, of a request for a node with so many GPUs; raises Refused.

    images: whether it may name the image of a container.
    """
    fields = {"job", "gpus", "command", "env", "cwd", "grace_s", "account", "own", "secrets"}
    fields |= {"image"} if images else set()
    if not isinstance(body, dict):
        raise Refused(400, f"a start must be a JSON object, got {type(body).__name__}")
    if unknown := sorted(set(body) - fields):
        raise Refused(400, f"unknown fields {unknown}, expected {sorted(fields)}")
    start = {"job": "", "gpus": [], "env": {}, "cwd": "", "grace_s": 30.0, **body}
    indices = start["gpus"]
    if not isinstance(indices, list) or not all(type(index) is int for index in indices):
        raise Refused(400, f"gpus must be a list of indices, got {indices!r}")
    if not all(0 <= index < gpus for index in indices) or len(set(indices)) != len(indices):
        raise Refused(400, f"gpus must be different indices below {gpus}, got {indices}")
    command: Any = start.get("command")
    is_list = isinstance(command, list) and command and all(is_plain(part) for part in command)
    if not (is_list or (is_plain(command) and command.strip())):
        raise Refused(400, f"command must be a line for the shell or a list of strings, got {command!r}")
    env = start["env"]
    if not is_environment(env):
        raise Refused(400, "env must be an object of strings, without '=' in names")
    if not is_environment(start.get("secrets", {})):
        raise Refused(400, "secrets must be an object of strings, without '=' in names")
    if not (is_plain(start["job"]) and is_plain(start["cwd"]) and is_plain(start.get("image", ""))):
        raise Refused(400, "job, cwd and image must be strings")
    if "account" in start:
        check_account(start["account"], start.get("own"))
    elif "own" in start:
        raise Refused(400, "own must come with an account")
    return {**start, "gpus": sorted(indices), "grace_s": grace_of(start)}


def check_account(account: Any, own: Any) -> None:
    """The user that a worker is to run as, and which directories are to be that user's; raises Refused."""
    ids = (account.get("uid"), account.get("gid"), *(account.get("groups") or ())) if account else ()
    if not ids or not all(type(each) is int and each >= 0 for each in ids) or account["uid"] == 0:
        raise Refused(400, f"account must have a uid above 0, a gid and groups, got {account!r}")
    if not (is_plain(account.get("name")) and is_plain(account.get("home"))):
        raise Refused(400, "name and home of an account must be strings")
    if not isinstance(own, list) or not all(is_plain(each) and each.startswith("/") for each in own):
        raise Refused(400, f"own must be a list of absolute paths, got {own!r}")


def is_environment(value: Any) -> bool:
    """Whether these are variables and their values."""
    return isinstance(value, dict) and all(
        name and "=" not in name and is_plain(name) and is_plain(text) for name, text in value.items()
    )


def is_plain(value: Any) -> bool:
    """Whether this is text that may be an argument of a program."""
    return isinstance(value, str) and "\0" not in value


def epoch_of(text: str | None) -> int:
    """The number of a leader, 0 for none; raises Refused."""
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < 19):
        raise Refused(400, f"Stretto-Epoch must be a whole number, got {text!r}")
    return int(text)


def grace_of(body: dict[str, Any]) -> float:
    """Seconds from SIGTERM to SIGKILL; raises Refused."""
    grace_s: Any = body.get("grace_s")
    if type(grace_s) not in (int, float) or not 0 <= grace_s <= LONGEST_GRACE_S:
        raise Refused(400, f"grace_s must be 0 to {LONGEST_GRACE_S:.0f} seconds, got {grace_s!r}")
    return float(grace_s)


def lender_of(body: Any) -> str:
    """The lender that a node goes to, "" for training; raises Refused."""
    lender: Any = body.get("lender") if isinstance(body, dict) else None
    if not is_plain(lender) or len(lender) > LONGEST_LENDER:
        raise Refused(400, f"lender must be a text of at most {LONGEST_LENDER} letters, got {lender!r}")
    return str(lender)


def signal_of(body: dict[str, Any]) -> int:
    """The number of a signal; raises Refused."""
    number = body.get("signal")
    if type(number) is not int or number not in SIGNALS:
        raise Refused(400, f"signal must be a number from 1 to 64, got {number!r}")
    return number
