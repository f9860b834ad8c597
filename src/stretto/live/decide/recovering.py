"""Until when is a job on its way to what it is to hold? A policy of restarts leaves it alone so long."""

from math import inf

from stretto.live.act.reconcile import STARTING_S, slots_of
from stretto.live.decide.priors import known_points
from stretto.live.state.records import JobRecord
from stretto.model import Allocation, Kind

NOT = -inf  # it is not
WAITED_S = 60.0  # that somebody has waited in front of a screen, and is not served soon; chosen


def recovering_until_s(record: JobRecord, wanted: Allocation | None) -> float:
    """Until when it is recovering, infinite: until something happens to it; `NOT` where it trains as wanted.

    It is while the workers that train are not those that are wanted: others must end first, newcomers
    import, a group is being built. A worker that may use the SDK but has not said so, and a job that trains
    but has told nothing of its speed, count for a while only: scripts need not say anything.
    """
    if wanted is None or not record.books.held_gpus:
        return NOT
    members = record.members
    those = [record.workers[name] for name in members.workers] if members.number else record.alive
    asked = set(slots_of(wanted, record.job.gpus_per_worker))
    if not record.is_open or {(one.node, one.mask) for one in those} != asked:
        return inf
    if members.number:
        if any(one.joined < members.number for one in those):
            return inf
        is_known = bool(record.learned.profile or known_points(record))
        return NOT if is_known else members.at_s + STARTING_S
    if any(one.began_s != one.began_s for one in those):
        return inf
    speaks = record.spec.elastic is not None and record.speaks is not False
    return max(one.began_s for one in those) + STARTING_S if speaks else NOT


def is_breakable(record: JobRecord) -> bool:
    """Whether nothing but the time for a start is lost where a recovering job is made smaller or stopped.

    Newcomers that import are simply ended, and who trains goes on; a start can be made again. Only while a
    group is being built do its members have to be left alone, which takes a moment. Somebody who waits for
    an interactive job would else wait for all that others import.
    """
    if record.job.kind is Kind.INTERACTIVE:
        return False
    members = record.members
    if not record.is_open or not members.number or members.leaves:
        return True
    return all(record.workers[name].joined >= members.number for name in members.workers)
