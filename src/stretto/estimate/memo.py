"""What has been computed before, by content."""

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """Values of a pure function by argument, computed many at a time; forgets the oldest beyond `most`.

    Unlike `functools.lru_cache` it hands all arguments that are missing to the function at once.
    """

    def __init__(self, compute: Callable[[Sequence[Key]], Sequence[Value]], most: int) -> None:
        self._compute = compute
        self._most = most
        self._known: dict[Key, Value] = {}

    def of(self, keys: Sequence[Key]) -> list[Value]:
        """One value per key, in their order."""
        known = self._known
        missing = list(dict.fromkeys(key for key in keys if key not in known))
        fresh = dict(zip(missing, self._compute(missing), strict=True)) if missing else {}
        values = [fresh[key] if key in fresh else known[key] for key in keys]
        known.update(fresh)
        while len(known) > self._most:
            del known[next(iter(known))]
        return values

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
