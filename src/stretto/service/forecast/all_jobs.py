"""When every open job would start and end, also of so many that the policy takes too long to ask."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, nan

from stretto.service.forecast.corrections import Interval
from stretto.service.forecast.fork import Fork
from stretto.service.forecast.simulate import DRAWS, LONGEST_S, Stop, deadline_in, outlook_of, play

ASKING_S = 1.0  # of a processor, in which the policy has to get through one draw of very many jobs; chosen
ALL_S = 5.0  # of a processor for all draws of these; chosen: no draw begins later
MOST_ASKED = 500  # open jobs up to which the policy itself decides, however long it takes; chosen
AHEAD_S = 24 * 3600.0  # that is looked at of very many jobs; chosen: what comes later is hardly foreseen

Spans = Mapping[str, tuple[Interval, Interval]]  # of start and end, by job


@dataclass(frozen=True)
class AllJobs:
    """A forecast of all jobs. Times are on the clock of the service; infinite: not reached."""

    spans: Spans
    reached_s: float  # how far every draw goes
    draws: int
    took_s: float  # of a processor
    assumed: tuple[str, ...] = ()  # beside what the fork assumes


def all_jobs(fork: Fork) -> AllJobs:
    """Foresee all jobs of a fork, in a few seconds of a processor if they are many."""
    began_s = time.process_time()
    seen = _seen(fork)
    return replace(seen, took_s=time.process_time() - began_s)


def _seen(fork: Fork) -> AllJobs:
    until = deadline_in(LONGEST_S)
    if len(fork.members) <= MOST_ASKED:
        return _foreseen(fork, None, until, inf, ())
    until_s = fork.now_s + AHEAD_S
    fork, assumed = affordable(fork, until_s)
    return _foreseen(fork, lambda world, _: world.now_s >= until_s, until, ALL_S, assumed)


def affordable(fork: Fork, until_s: float) -> tuple[Fork, tuple[str, ...]]:
    """The fork, decided in line if its policy takes too long up to `until_s`; and what is assumed so.

    In line: jobs keep what they hold, and the others start with what they ask for where that fits. Chosen:
    that looks at no speeds, and took 0.5 ms for each decision about 1,256 jobs where `sia` took 31 ms.
    """
    if len(fork.members) <= MOST_ASKED or _is_quick(fork, until_s):
        return fork, ()
    configured = fork.configured
    in_line = replace(configured, policy="fifo", placer="", settings={"policy.skip": "true"}, resolved={})
    words = (
        f"policy {configured.policy} would take too long to foresee so many jobs: those that hold GPUs keep "
        "them, the others start in line with what they ask for"
    )
    return fork.under(in_line), (words,)


def _is_quick(fork: Fork, until_s: float) -> bool:
    """Whether the policy gets through one draw in the time for that. Predictions may use a clock.

    A drawn one: as believed, many jobs end at once, which costs few decisions.
    """
    enough_s = time.process_time() + ASKING_S
    draw = play(fork, 1, lambda world, _: time.process_time() >= enough_s, deadline_in(LONGEST_S / 3))
    return draw.complete or draw.starved or draw.reached_s >= until_s


def _foreseen(
    fork: Fork, stop: Stop | None, until: float, processor_s: float, assumed: tuple[str, ...]
) -> AllJobs:
    outlook = outlook_of(fork, DRAWS, stop, until, processor_s)
    reached_s = min((draw.reached_s for draw in outlook.draws), default=fork.now_s)
    spans = {
        str(member.job.id): (outlook.start(member.job.id), outlook.end(member.job.id))
        for member in fork.members
    }
    return AllJobs(spans, reached_s, len(outlook.draws), nan, assumed)
