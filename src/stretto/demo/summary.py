"""What became of the jobs, in figures and as a timeline."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from stretto.demo.outcome import Outcome

HEADER = ("job", "waited s", "took s", "resizes", "s lost", "reached", "alone")
STEPS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)  # of a column of the timeline
WAITS, ABSENT = ".", " "


def rows_of(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """A row for each job, under `HEADER`."""
    return [
        [
            one.name,
            _number(one.waited_s, 1),
            _number(one.jct_s, 1),
            str(one.resizes),
            _number(one.lost_s / one.resizes if one.resizes else None, 2),
            _number(one.reached, 4),
            _number(one.undisturbed, 4) + ("" if one.noise is None else f" ± {one.noise:.4f}"),
        ]
        for one in outcomes
    ]


def timeline(outcomes: Sequence[Outcome], width: int) -> Iterator[str]:
    """A line for each job: how many workers trained for it, from left to right."""
    names = max(len(one.name) for one in outcomes)
    end_s = max((at_s for one in outcomes for at_s, _ in one.sizes), default=0.0)
    columns = max(width - names - 2, 10)
    step_s = next((step for step in STEPS_S if end_s / step < columns), end_s / columns)
    yield f"workers over time, a character for each {step_s:g} s ({WAITS} is waiting)"
    for one in outcomes:
        bar = "".join(_during(one, index * step_s, (index + 1) * step_s) for index in range(columns))
        yield f"{one.name:{names}}  {bar}".rstrip()


def _during(one: Outcome, from_s: float, to_s: float) -> str:
    """The size that it had for most of this time; there from its submission until its end."""
    if not one.sizes or one.jct_s is None:
        return ABSENT
    came_s = one.came_s
    if to_s <= came_s or from_s >= came_s + one.jct_s:
        return ABSENT
    changes = [(came_s, 0), *one.sizes, (float("inf"), 0)]
    held: dict[int, float] = {}
    for (at_s, gpus), (until_s, _) in pairwise(changes):
        held[gpus] = held.get(gpus, 0.0) + max(min(until_s, to_s) - max(at_s, from_s), 0.0)
    most = max(held, key=lambda gpus: (held[gpus], gpus))
    return WAITS if most == 0 else str(most) if most < 10 else "+"


def findings(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Sentences about what the table does not show."""
    for one in outcomes:
        if one.state != "COMPLETED":
            yield f"{one.name}: {one.state}; it said last:"
            yield from (f"    {line}" for line in one.last_words)
        said = [one.samples] if one.samples else []
        said += [f"deadline {one.deadline}"] if one.deadline else []
        if said:
            yield f"{one.name}: {'; '.join(said)}"
    resizes = sum(one.resizes for one in outcomes)
    if resizes:
        lost_s = sum(one.lost_s for one in outcomes) / resizes
        yield f"{resizes} resizes in place; each cost {lost_s:.2f} s of training on average"
    waits = [(one.waited_s, one.name) for one in outcomes if one.waited_s is not None]
    if waits:
        longest_s, name = max(waits)
        yield f"longest wait for a first worker: {longest_s:.1f} s, of {name}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
