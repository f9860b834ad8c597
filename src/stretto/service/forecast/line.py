"""Which job starts next, and when each would start and end: what simulated futures say of all jobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite

from stretto.service.forecast.all_jobs import ALL_S, MOST_ASKED, affordable
from stretto.service.forecast.corrections import Interval
from stretto.service.forecast.fork import Fork
from stretto.service.forecast.simulate import DRAWS, LONGEST_S, deadline_in, outlook_of
from stretto.sim.world import SimulatedWorld

AHEAD_S = 24 * 3600.0  # that is looked at; chosen: what comes later is hardly foreseen


@dataclass(frozen=True)
class LineAhead:
    """Times are on the clock of the service; those that were not reached are infinite."""

    draws: int
    now_s: float
    until_s: float  # how far all futures reach
    line: tuple[str, ...]  # jobs that wait and would start, the next one first
    spans: Mapping[str, tuple[Interval, Interval]]  # start and end, of all jobs


def line_ahead(fork: Fork, ahead_s: float = AHEAD_S, draws: int = DRAWS) -> LineAhead:
    """Simulate until every job has ended, or as far ahead. Fewer draws, and not as far, if time runs out."""

    def enough(world: SimulatedWorld, starts: Mapping[str, float]) -> bool:
        return world.now_s >= fork.now_s + ahead_s

    until = deadline_in(LONGEST_S)
    fork, _ = affordable(fork, fork.now_s + ahead_s)
    outlook = outlook_of(fork, draws, enough, until, ALL_S if len(fork.members) > MOST_ASKED else inf)
    spans = {
        str(member.job.id): (outlook.start(member.job.id), outlook.end(member.job.id))
        for member in fork.members
    }
    starts = {
        str(member.job.id): spans[str(member.job.id)][0].middle_s
        for member in fork.members
        if member.held is None
    }
    # Sorting is stable: jobs that would start together stay in the order of submission.
    line = sorted((job for job, start_s in starts.items() if isfinite(start_s)), key=starts.__getitem__)
    reached_s = min(
        (fork.now_s + ahead_s if draw.complete or draw.starved else draw.reached_s for draw in outlook.draws),
        default=fork.now_s,
    )
    return LineAhead(len(outlook.draws), fork.now_s, reached_s, tuple(line), spans)
