"""Tokens as files and headers hold them."""

import re
from pathlib import Path

from stretto.errors import InputError

LONGEST_TOKEN = 1_000  # characters; ours have 51
PLAIN = re.compile(r"[\x21-\x7e]*")  # what a header can hold as it is


def token_in(file: Path, option: str) -> str:
    """The token in a file. Raises InputError, which shows nothing of what the file holds."""
    try:
        with file.open("rb") as opened:
            token = opened.read(LONGEST_TOKEN + 1).decode("ascii").strip()
    except (OSError, ValueError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else "not ASCII"
        raise InputError(f"{option} {file}: expected a file with a token: {why}") from None
    return checked_token(token, f"{option} {file}")


def checked_token(token: str, where: str) -> str:
    """A text that can be a token. Raises InputError, which does not show it."""
    if not token or len(token) > LONGEST_TOKEN or not PLAIN.fullmatch(token):
        raise InputError(f"{where}: expected one token, got something else")
    return token
