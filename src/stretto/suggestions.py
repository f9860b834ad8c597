"""What a misspelt name was probably meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like this one; None where none does."""
    by_lower = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: a suggestion, or else the names that there are."""
    names = sorted(known)
    meant = nearest(name, names)
    return f"did you mean {meant!r}?" if meant else f"expected one of {', '.join(names)}"
