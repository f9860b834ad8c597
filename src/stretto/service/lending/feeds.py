"""Where a lender's need comes from if nothing tells the service by itself: a series over time, or a command.

Both only report: a need that is the same as before is no event.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Protocol

from stretto.clusters.demand import PERIOD_S, made_demand, read_demand
from stretto.clusters.entries import Entry, entry_of, items_of, read_text, read_yaml
from stretto.clusters.files import read_cluster_file
from stretto.clusters.parse import lender_name
from stretto.jobfile.quantities import duration_s
from stretto.model import FloatArray, InputError
from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import LogWriter
from stretto.service.lending.command_feed import EVERY_S, CommandFeed
from stretto.service.state.events import Event, LenderDeleted, LenderSet, NeedReported
from stretto.service.state.lender_records import LONGEST_GUARANTEE_S, LONGEST_NODE, MOST_NODES
from stretto.service.state.state import State

DEMAND = "lend.demand"  # of an emulated cluster: the demand of every lender
MADE = "synthetic"  # instead of a file: demand made with the seed of the service
KEYS = ("name", "nodes", "headroom", "guarantee", "need")
NEED_KEYS = ("file", "command", "every")
LEAST_EVERY_S, LONGEST_EVERY_S = 1.0, 1e7  # between two runs of a command; chosen
LEAST_S = 0.01  # of wall time between two looks, however fast an emulated clock is; chosen


class Feed(Protocol):
    """Says what a lender needs."""

    async def need_at(self, now_s: float, nodes: int) -> tuple[float | None, float]:
        """(need in nodes, None where it is not known, and for how long that is good, in s of the clock)."""


@dataclass(frozen=True, eq=False)
class SeriesFeed:
    """A series of shares by the clock of the service; after its end everything stays as it is."""

    period_s: float
    shares: FloatArray

    async def need_at(self, now_s: float, nodes: int) -> tuple[float | None, float]:
        """The share of the present period."""
        period = int(now_s / self.period_s)
        if period >= len(self.shares) - 1:
            return float(self.shares[-1]) * nodes, inf
        return float(self.shares[period]) * nodes, (period + 1) * self.period_s - now_s


@dataclass(frozen=True)
class Lender:
    """A lender as a file names it."""

    name: str
    nodes: tuple[str, ...]
    headroom: float = 0.0  # share of its nodes that it never lends
    guarantee_s: float | None = None  # 0: none is stated; None: the one that was set stays
    feed: Feed | None = field(default=None, compare=False)  # None: it reports its need itself

    def is_known(self, state: State) -> bool:
        """Whether the log says the same of it."""
        record = state.lenders.get(self.name)
        if record is None:
            return False
        known = (record.nodes, record.headroom, record.guarantee_s, record.configured)
        return LenderSet(self.name, *known) == self.event(state)

    def event(self, state: State) -> Event:
        """That it is there."""
        record, guarantee_s = state.lenders.get(self.name), self.guarantee_s
        if guarantee_s is None:
            guarantee_s = 0.0 if record is None else record.guarantee_s
        return LenderSet(self.name, self.nodes, self.headroom, guarantee_s, configured=True)


def changed_lenders(lenders: Sequence[Lender], state: State) -> list[Event]:
    """What the log does not say of lenders of files yet. Those that a file had and has no more are gone.

    Raises InputError where a file names a node of a lender set by hand; the API refuses the same.
    """
    _check_whose(lenders, state)
    named = {lender.name for lender in lenders}
    gone = [LenderDeleted(name) for name, of in state.lenders.items() if of.configured and name not in named]
    return [*gone, *(lender.event(state) for lender in lenders if not lender.is_known(state))]


def _check_whose(lenders: Sequence[Lender], state: State) -> None:
    named = {lender.name for lender in lenders}
    set_by_hand = {
        node: of.name
        for of in state.lenders.values()
        if not of.configured and of.name not in named
        for node in of.nodes
    }
    for lender in lenders:
        if taken := [node for node in lender.nodes if node in set_by_hand]:
            node, owner = taken[0], set_by_hand[taken[0]]
            raise InputError(
                f"lender {lender.name} of a file: node {node} belongs to lender {owner}, which somebody set; "
                f"leave the node out of the file until lender {owner} is deleted or has others"
            )


def lenders_of_cluster(source: str, settings: Mapping[str, str], seed: int) -> tuple[Lender, ...]:
    """Lenders of a cluster file, as an emulated cluster has them. Raises InputError.

    settings: `lend.demand` is the demand of every lender, before what the file says: a file, or `synthetic`.
    """
    file, beside = read_cluster_file(source), Path(source).parent
    if DEMAND in settings and not file.lenders:
        raise InputError(f"lend.demand: cluster {file.cluster.name} has no lenders")
    lenders = []
    for lender in file.lenders:
        demand = settings.get(DEMAND) or lender.demand
        nodes = tuple(str(node.id) for node in file.cluster.nodes if node.lender == lender.name)
        feed = _series(demand, beside, seed) if demand else None
        lenders.append(Lender(lender.name, nodes, lender.headroom, None, feed))
    return tuple(lenders)


def read_lenders(path: Path) -> tuple[Lender, ...]:
    """Lenders of a file of `stretto serve --lenders`. Raises InputError."""
    document = entry_of(read_yaml(read_text(path), str(path)), str(path), ("lenders",))
    lenders: list[Lender] = []
    for number, item in enumerate(items_of(document, "lenders"), start=1):
        entry = entry_of(item, f"{path}: lenders, entry {number}", KEYS)
        name = lender_name(entry)
        if any(name == other.name for other in lenders):
            raise InputError(f"{entry.where}: name must differ from other lenders, got {name!r}")
        nodes = _nodes(entry, lenders)
        headroom = entry.number("headroom", default=0.0)
        if headroom >= 1:
            raise InputError(f"{entry.where}: headroom must be a share below 1, got {headroom:g}")
        guarantee_s = _seconds(entry, "guarantee", usual=0.0, most=LONGEST_GUARANTEE_S)
        lenders.append(Lender(name, nodes, headroom, guarantee_s, _feed(entry, path.parent)))
    return tuple(lenders)


def _nodes(entry: Entry, others: Sequence[Lender]) -> tuple[str, ...]:
    nodes = entry.texts("nodes")
    if not nodes:
        raise InputError(f"{entry.where}: nodes must be a list of at least one node")
    if len(nodes) > MOST_NODES:
        raise InputError(f"{entry.where}: nodes must be at most {MOST_NODES}, got {len(nodes)}")
    if too_long := [node for node in nodes if len(node) > LONGEST_NODE]:
        expected = f"nodes must have names of at most {LONGEST_NODE} characters"
        raise InputError(f"{entry.where}: {expected}, got {too_long[0]!r:.80}")
    counts = Counter(nodes)
    if twice := [node for node, times in counts.items() if times > 1]:
        raise InputError(f"{entry.where}: node {twice[0]} is there twice")
    if twice := [node for other in others for node in other.nodes if node in counts]:
        raise InputError(f"{entry.where}: node {twice[0]} belongs to another lender")
    return nodes


def _feed(entry: Entry, folder: Path) -> Feed | None:
    need = entry_of(entry.values.get("need", {}), f"{entry.where}: need", NEED_KEYS)
    file, command = need.text("file", default=""), need.text("command", default="")
    if not _is_passable(command):
        raise InputError(f"{need.where}: command must be UTF-8 without NUL, got {command!r:.80}")
    if file and command:
        raise InputError(f"{need.where}: expected a file or a command, not both")
    if command:
        return CommandFeed(command, _seconds(need, "every", EVERY_S, LEAST_EVERY_S))
    if "every" in need.values:
        raise InputError(f"{need.where}: every says how often a command runs, and there is none")
    return _series(file, folder, 0) if file else None


def _is_passable(command: str) -> bool:
    """Whether a shell can be given it."""
    try:
        os.fsencode(command)
    except UnicodeEncodeError:  # half of a pair, as YAML may write it
        return False
    return "\0" not in command


def _seconds(
    entry: Entry, key: str, usual: float, least: float = 0.0, most: float = LONGEST_EVERY_S
) -> float:
    text, where = entry.text(key, default=""), f"{entry.where}: {key}"
    try:
        seconds = duration_s(text) if text else usual
    except ValueError:
        raise InputError(f"{where} must be a duration such as 90s or 2m, got {text!r:.80}") from None
    if not least <= seconds <= most:
        raise InputError(f"{where} must be a duration from {least:g} s to {most:,.0f} s, got {text!r}")
    return seconds


def _series(demand: str, beside: Path, seed: int) -> SeriesFeed:
    if demand == MADE:
        return SeriesFeed(PERIOD_S, made_demand(seed=seed))
    path = beside / demand if (beside / demand).is_file() else Path(demand)
    return SeriesFeed(*read_demand(path))


async def run_feeds(lenders: Sequence[Lender], log_writer: LogWriter, clock: Clock) -> None:
    """Report what feeds say, each in its time, until cancelled."""
    async with asyncio.TaskGroup() as group:
        for lender in lenders:
            if lender.feed is not None:
                group.create_task(_report(lender, lender.feed, log_writer, clock))


async def _report(lender: Lender, feed: Feed, log_writer: LogWriter, clock: Clock) -> None:
    while True:
        need, for_s = await feed.need_at(clock.now_s(), len(lender.nodes))
        record = log_writer.state.lenders.get(lender.name)
        if need is not None and record is not None and record.need != need:
            await log_writer.record(NeedReported(lender.name, need))
        if for_s == inf:
            return
        await asyncio.sleep(max(clock.wall_s(for_s), LEAST_S))
