"""A state and a time make a snapshot: what a decision may look at."""

from dataclasses import dataclass, field

from stretto.live.decide.figures import Figures
from stretto.live.state.state import State
from stretto.model import JobTable, Snapshot, Trigger, View


@dataclass
class Observer:
    """Makes snapshots of one state as it goes on; keeps columns, and looks again at what has changed."""

    views: frozenset[View]
    _figures: Figures = field(init=False)

    def __post_init__(self) -> None:
        """Nothing has been seen."""
        self._figures = Figures(self.views)

    def observe(self, state: State, now_s: float, due: frozenset[Trigger]) -> Snapshot:
        """Every job that may run now, in the order of submission. Needs a node to have been seen."""
        assert state.cluster is not None
        assert state.placement is not None
        figures = self._figures
        figures.follow(state)
        assert figures.requests is not None
        rows = figures.eligible(state, now_s)
        table = JobTable(
            requests=figures.requests,
            rows=rows,
            held_gpus=figures.at["held_gpus"][rows],
            held_nodes=figures.at["held_nodes"][rows],
            held_kind=figures.at["held_kind"][rows],
            **figures.known(rows, now_s),
        )
        return Snapshot(
            version=state.version,
            now_s=now_s,
            cluster=state.cluster,
            usable=state.usable(),
            jobs=table,
            placement=state.placement,
            due=due,
            memory=state.memory,
            seed=state.configured.seed,
        )

    def next_change_s(self, state: State, now_s: float) -> float:
        """When a job becomes eligible by the clock alone; infinite where none does."""
        if state.cluster is None:
            return float("inf")
        self._figures.follow(state)
        return self._figures.next_change_s(now_s)
