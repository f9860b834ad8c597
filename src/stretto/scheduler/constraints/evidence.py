"""Why each job waits, in words, put together from several who say so."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Evidence(Mapping[int, str]):
    """What is said of each row, put in words when somebody reads it: thousands may wait."""

    where: Mapping[int, tuple[Mapping[int, str], int]]  # by row: who says it, and the row under which

    def __getitem__(self, row: int) -> str:
        """What is said of one row."""
        words, at = self.where[row]
        return words[at]

    def __iter__(self) -> Iterator[int]:
        """Rows of which something is said."""
        return iter(self.where)

    def __len__(self) -> int:
        """How many these are."""
        return len(self.where)
