"""What is known of a lender: its nodes, what it has said that it needs, and how long it waited for them."""

from bisect import bisect_right
from dataclasses import dataclass, field
from math import ceil, isnan, nan

from stretto.model import FloatArray, floats

WHOLE = 1e-9  # a need so close to a whole number of nodes is that number; as in `lend`
MOST_NODES, LONGEST_NODE = 100_000, 255  # of a lender, and characters of the name of each; chosen
LONGEST_GUARANTEE_S = 1e7  # chosen: four months
MOST_NEEDS = 4_096  # changes of a need that are kept; chosen: two weeks of one every five minutes
MOST_PERIODS = 2_016  # of the series that a forecast is shown; chosen: as many as it looks at


@dataclass
class LenderRecord:
    """One lender. A wait begins when it needs more than is in its hands, and ends when it has it."""

    name: str
    nodes: tuple[str, ...]
    headroom: float = 0.0  # share of its nodes that it never lends
    guarantee_s: float = 0.0  # the longest that a wait may be; 0: none is stated
    configured: bool = False  # a file of the service names it; otherwise somebody has set it
    changed_s: list[float] = field(default_factory=list)  # when its need changed, increasing
    needs: list[float] = field(default_factory=list)  # from then on, in nodes
    asked_s: float = nan  # since when it waits for nodes; NaN: it does not
    missed: bool = False  # this wait is longer than the guarantee
    waits: int = 0  # that are over
    waits_missed: int = 0  # of all, those that were longer than the guarantee
    latest_wait_s: float = nan
    longest_wait_s: float = 0.0

    @property
    def need(self) -> float:
        """Nodes that it needs itself; NaN where it has not said."""
        return self.needs[-1] if self.needs else nan

    def report(self, nodes: float, now_s: float) -> None:
        """Its need is this from now on."""
        if self.changed_s and self.changed_s[-1] >= now_s:
            self.needs[-1] = nodes
            return
        self.changed_s.append(now_s)
        self.needs.append(nodes)
        if len(self.needs) > MOST_NEEDS:
            del self.changed_s[0], self.needs[0]

    def demand(self, now_s: float, period_s: float, nodes: int) -> FloatArray:
        """(periods,) shares of so many nodes that it needed, one a period; the last is of now."""
        first_s = self.changed_s[0]
        periods = min(int((now_s - first_s) / period_s) + 1, MOST_PERIODS)
        times = [now_s - back * period_s for back in range(periods - 1, -1, -1)]
        needs = [self.needs[max(bisect_right(self.changed_s, time_s), 1) - 1] for time_s in times]
        return floats([min(need / nodes, 1.0) for need in needs])

    def lacking(self, up: int, at_home: int) -> int:
        """Nodes that it needs, of those that are up, and are not in its hands."""
        if not self.needs:
            return 0
        return max(min(ceil(self.need - WHOLE), up) - at_home, 0)

    def note_wait(self, lacks: int, now_s: float) -> None:
        """Begin or end a wait, by how many nodes it lacks now."""
        if lacks and isnan(self.asked_s):
            self.asked_s, self.missed = now_s, False
        elif not lacks and not isnan(self.asked_s):
            waited_s = now_s - self.asked_s
            self.waits += 1
            self.waits_missed += bool(self.guarantee_s and waited_s > self.guarantee_s)
            self.latest_wait_s, self.longest_wait_s = waited_s, max(self.longest_wait_s, waited_s)
            self.asked_s, self.missed = nan, False
