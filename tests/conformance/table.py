"""What every test came to over every cluster, as a table in plain text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

COLUMN = 12  # wider than the longest name of a cluster; chosen
GAP = "."  # where a test was not run


@dataclass
class Outcomes:
    """By test and by cluster."""

    found: dict[tuple[str, str], dict[str, list[tuple[str, str]]]] = field(default_factory=dict)

    def add(self, file: str, test: str, world: str, outcome: str, why: str = "") -> None:
        """One test over one cluster: passed, failed or skipped."""
        self.found.setdefault((file, test), {}).setdefault(world, []).append((outcome, why))


def cell(outcomes: list[tuple[str, str]]) -> str:
    """One word for all that a test came to over one cluster."""
    said = {outcome for outcome, _ in outcomes}
    return next((word for word in ("failed", "passed", "skipped") if word in said), GAP)


def table(outcomes: Outcomes, worlds: list[str]) -> Iterator[str]:
    """A row for each test, in the order of files; what was skipped is explained below it."""
    if not outcomes.found:
        return
    names = {test: sentence(test) for _, test in outcomes.found}
    width = max(map(len, names.values()))
    yield " " * width + "".join(f"{world:>{COLUMN}}" for world in worlds)
    whys: dict[tuple[str, str], list[str]] = {}
    for file, rows in groupby(sorted(outcomes.found), key=lambda key: key[0]):
        yield ""
        yield file
        for key in rows:
            found = outcomes.found[key]
            cells = [cell(found.get(world, [])) for world in worlds]
            yield names[key[1]].ljust(width) + "".join(f"{one:>{COLUMN}}" for one in cells)
            for world, those in found.items():
                for _, why in those:
                    if why and cell(those) == "skipped":
                        whys.setdefault((world, why), []).append(names[key[1]])
    yield ""
    yield from totals(outcomes.found, worlds, width)
    for (world, why), tests in sorted(whys.items()):
        yield ""
        yield f"{world}: {why}"
        yield from (f"  skipped: {test}" for test in tests)


def totals(
    found: Mapping[tuple[str, str], Mapping[str, list[tuple[str, str]]]], worlds: list[str], width: int
) -> Iterator[str]:
    """How many of each kind."""
    for word in ("passed", "failed", "skipped"):
        counts = [sum(cell(row.get(world, [])) == word for row in found.values()) for world in worlds]
        yield word.rjust(width) + "".join(f"{count:>{COLUMN}}" for count in counts)


def sentence(test: str) -> str:
    """The name of a test as people read it."""
    return test.removeprefix("test_").replace("_", " ")
