"""A world in a steady state: each round some jobs end, as many arrive, and some have shown something new."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from stretto.estimate.estimators import Share
from stretto.experiments.steady.cluster import made_cluster
from stretto.experiments.steady.first_placement import first_placement
from stretto.experiments.steady.jobs import Models, draw_jobs, jobs_of, noise_of, points_of, shown_before
from stretto.model import (
    NOTHING_OBSERVED,
    Durations,
    EndedJobs,
    Evidence,
    InputError,
    IntArray,
    JobTable,
    Learning,
    MeasuredSpeeds,
    Memory,
    Observations,
    Plan,
    Progress,
    Requests,
    Snapshot,
    Trigger,
    Verb,
    View,
)
from stretto.sim.accounting import Accounting, Had
from stretto.sim.history import History
from stretto.sim.truth.parametric import STAGES, parametric_truth
from stretto.traces.makers import MEAN_DURATION_S

ROUND_S = 60.0  # between two decisions; Sia (SOSP 2023), section 4.3
MOST_TABLED_GPUS = 2_048  # up to which measured tables reach, as far as the largest rigid jobs
MOST_JOBS = 1_000_000  # chosen: a slip should not fill the memory


class Churn(StrEnum):
    """What happens between two decisions."""

    USUAL = "usual"  # jobs come, go and report as often as published durations imply
    ONE = "one"  # one job arrives, or one ends, in turn


@dataclass(frozen=True, slots=True)
class Steady:
    """A steady state in a few words. Equal ones give equal snapshots."""

    jobs: int
    gpus: int
    types: int = 4
    seed: int = 0
    churn: Churn = Churn.USUAL
    share: Share = Share.JOB  # whose evidence a job has
    rounds: int = 30  # decisions there will be at most
    most_nodes_per_job: int = 0  # 0: no limit

    @classmethod
    def of(cls, words: Mapping[str, Any]) -> "Steady":
        """From values of its fields, texts for choices; InputError for wrong ones."""
        for name, choices in (("churn", Churn), ("share", Share)):
            if (given := words.get(name)) is not None and given not in list(choices):
                raise InputError(f"{name} must be one of {', '.join(choices)}, got {given!r}")
        chosen = {
            "churn": Churn(words.get("churn", Churn.USUAL)),
            "share": Share(words.get("share", Share.JOB)),
        }
        return cls(**{**words, **chosen})

    def __post_init__(self) -> None:
        """Check the values."""
        if not 1 <= self.jobs <= MOST_JOBS:
            raise InputError(f"jobs must lie between 1 and {MOST_JOBS}, got {self.jobs}")
        if self.rounds < 1:
            raise InputError(f"rounds must be at least 1, got {self.rounds}")


class SteadyWorld:
    """Jobs that come, go and report; what a decision says is done at once and without fail."""

    def __init__(self, steady: Steady, views: frozenset[View]) -> None:
        """At first jobs hold what they asked for, the longest there first, as far as there is room."""
        self._random = np.random.default_rng([steady.seed, 17])
        self._steady, self._views = steady, views
        made = made_cluster(steady.gpus, steady.types, self._random, steady.most_nodes_per_job)
        self.cluster, self.usable = made.cluster, made.usable
        self._models = Models.on(self.cluster)
        self._drawn = draw_jobs(self._models, steady.jobs, self._arrivals(), self._random)
        self._began_s = self.now_s = float(np.ceil(self._drawn.age_s.max()))
        self._requests = Requests(jobs_of(self._drawn, self._models, self._began_s), self.cluster)
        self._row_of = {job: row for row, job in enumerate(self._requests.ids.tolist())}
        self._active = np.flatnonzero(self._drawn.age_s >= 0)  # rows of jobs that are there, ascending
        self._memory: Memory = None
        self._due: frozenset[Trigger] = frozenset()
        self._round = 0

        # What jobs have shown. Evidence is made anew where something has changed.
        present, jobs = len(self._active), len(self._drawn)
        observed, largest = shown_before(self._drawn, self._models, present, self._random)
        if steady.share is Share.MODEL:
            observed = self._pooled(observed)
        nothing: tuple[Observations, ...] = (NOTHING_OBSERVED,) * len(self.cluster.types)
        self._observed = observed + [nothing] * (jobs - present)
        self._stage = self._stage_now()
        self._noise = noise_of(self._drawn, self._models, self._stage)
        self._evidence = np.full(jobs, None, dtype=np.object_)
        self._tables = self._tables_of_models() if View.THROUGHPUT_TABLE in views else []

        # What jobs hold, and have had.
        names = self._requests.ids[self._active].tolist()
        self.placement = first_placement(made, self._drawn, names, self._random)
        self._changed = self._active[:0]  # rows whose GPUs the last decision changed
        self._recovers_s = np.zeros(jobs)  # until when a job loads what it saved
        self._restart_s = np.array([limits.restart_s for limits in self._models.limits])[self._drawn.model]
        self._had = Accounting(History(jobs))
        for row, (name, most) in enumerate(zip(names, largest.tolist(), strict=True)):
            self._had.resume(row, self._had_by(row, most), self.placement.get(name))

    # ── wait, observe, act: what the loop of a scheduler asks of a world ────────────────────────────

    def wait(self) -> bool:
        """Let a round pass; False once there have been as many as asked for."""
        if self._round == self._steady.rounds:
            return False
        if self._round:
            self.now_s += ROUND_S
            self._pass()
        self._round += 1
        return True

    def observe(self) -> Snapshot:
        """Everything as it stands now."""
        rows = self._active
        table = JobTable(
            requests=self._requests,
            rows=rows,
            held_gpus=self._had.held_gpus[rows],
            held_nodes=self._had.held_nodes[rows],
            held_kind=self._had.held_kind[rows],
            **self._known(rows),
        )
        return Snapshot(
            version=self._round,
            now_s=self.now_s,
            cluster=self.cluster,
            usable=self.usable,
            jobs=table.limited_to(self._views),
            placement=self.placement,
            due=self._due | {Trigger.ROUND},
            memory=self._memory,
            seed=self._steady.seed,
        )

    def act(self, plan: Plan) -> None:
        """Every job holds what the plan says."""
        changed = []
        for action in plan.actions:
            row = self._row_of[action.job]
            if action.after is None:
                self._had.stop(row, self.now_s)
                continue
            resumes = action.verb is not Verb.RETUNE and self._had.starts[row] > 0
            self._had.give(row, action.after, self.now_s, restarts=action.verb is not Verb.RETUNE)
            if resumes:
                self._recovers_s[row] = self.now_s + self._restart_s[row]
            changed.append(row)
        self._changed = np.array(changed, dtype=np.int64)
        self.placement, self._memory = plan.placement, plan.memory

    # ── what happens in a round ─────────────────────────────────────────────────────────────────────

    def _arrivals(self) -> list[float]:
        """When jobs arrive, in s from the beginning: as many in each round as end on average."""
        steady = self._steady
        if steady.churn is Churn.ONE:
            return [ROUND_S * number for number in range(1, steady.rounds, 2)]
        counts = self._random.poisson(steady.jobs * ROUND_S / MEAN_DURATION_S, steady.rounds)
        counts[0] = 0
        return [ROUND_S * number for number, count in enumerate(counts.tolist()) for _ in range(count)]

    def _pass(self) -> None:
        """One round: what was changed shows how fast it is, jobs report, end and arrive."""
        self._show(self._changed)
        there_s = self._drawn.age_s + self.now_s - self._began_s
        if self._steady.churn is Churn.ONE:
            ended = self._active[: self._round % 2 == 0]
        else:
            self._report()
            ended = self._active[there_s[self._active] >= self._drawn.duration_s[self._active]]
        arrived = np.flatnonzero((there_s >= 0) & (there_s < ROUND_S))
        self._end(ended)
        self._active = np.union1d(np.setdiff1d(self._active, ended), arrived)
        happened = [(Trigger.COMPLETION, ended), (Trigger.ARRIVAL, arrived)]
        self._due = frozenset(trigger for trigger, rows in happened if rows.size)

    def _end(self, rows: IntArray) -> None:
        running = rows[self._had.held_gpus[rows] > 0]
        self.placement = self.placement.changed(dict.fromkeys(self._requests.ids[running].tolist()))
        for row in rows.tolist():
            self._had.finish(row, self.now_s, self.now_s)

    def _show(self, rows: IntArray) -> None:
        """Jobs whose GPUs changed have a point there, unless they had it before."""
        kinds, had = self._had.held_kind[rows], self._had
        points = points_of(
            self._drawn, self._models, rows, kinds, had.held_nodes[rows], had.held_gpus[rows], self._random
        )
        for row, kind, point in zip(rows.tolist(), kinds.tolist(), points, strict=True):
            seen = self._observed[row]
            now = seen[kind].with_point(point)
            if now is not seen[kind]:
                self._observed[row] = (*seen[:kind], now, *seen[kind + 1 :])
                self._evidence[row] = None

    def _report(self) -> None:
        """Jobs that have come to another stage of their training report another gradient noise."""
        stage = self._stage_now()
        moved = np.flatnonzero((stage != self._stage) & (self._had.held_gpus > 0))
        self._stage[moved] = stage[moved]
        self._noise = noise_of(self._drawn, self._models, self._stage)
        self._evidence[moved] = None

    def _stage_now(self) -> IntArray:
        """(jobs,) the part of its training that a job is in, if it trains all the time."""
        done = (self._drawn.age_s + self.now_s - self._began_s) / self._drawn.duration_s
        stage: IntArray = np.clip(done * STAGES, 0, STAGES - 1).astype(np.int64)
        return stage

    # ── at the beginning ────────────────────────────────────────────────────────────────────────────

    def _had_by(self, row: int, most_gpus: int) -> Had:
        """It ran from its submission on, and restarted whenever its GPUs were doubled."""
        age_s = float(self._drawn.age_s[row])
        return Had(
            executed_s=age_s,
            attained_gpu_s=age_s * float(self._drawn.gpus[row]),
            first_start_s=self._began_s - age_s,
            last_stop_s=float("nan"),
            starts=most_gpus.bit_length(),
            largest_held=most_gpus,
            held_since_s=self._began_s,
        )

    def _pooled(self, observed: list[tuple[Observations, ...]]) -> list[tuple[Observations, ...]]:
        """By job, what all jobs of its model have shown: of each operating point the first that was timed."""
        models = self._drawn.model[: len(observed)].tolist()
        pools: dict[int, list[Observations]] = {}
        for model, seen in zip(models, observed, strict=True):
            pool = pools.setdefault(model, [NOTHING_OBSERVED] * len(seen))
            for kind, of_type in enumerate(seen):
                for point in of_type.points:
                    pool[kind] = pool[kind].with_point(point)
        shared = {model: tuple(pool) for model, pool in pools.items()}
        return [shared[model] for model in models]

    def _tables_of_models(self) -> list[MeasuredSpeeds]:
        truths = [parametric_truth(model.name, self.cluster) for model in self._models.catalogue]
        return [truth.table(truth.limits.init_batch, MOST_TABLED_GPUS) for truth in truths]

    # ── what views show ─────────────────────────────────────────────────────────────────────────────

    def _known(self, rows: IntArray) -> dict[str, Any]:
        had, model = self._had, self._drawn.model[rows]
        runs = had.held_gpus[rows] > 0
        since_s = np.where(runs, self.now_s - had.held_since_s[rows], 0.0)
        duration_s = self._drawn.duration_s[rows]
        left_s = np.maximum(duration_s - (self.now_s - self._requests.submitted_s[rows]), ROUND_S)
        steps = np.array([model.steps for model in self._models.catalogue])[model]
        unknown = np.full(len(rows), np.nan)
        return {
            "known_progress": Progress(
                executed_s=had.executed_s[rows] + since_s,
                attained_gpu_s=had.attained_gpu_s[rows] + since_s * had.held_gpus[rows],
                first_start_s=had.first_start_s[rows],
                last_stop_s=had.last_stop_s[rows],
                restarts=np.maximum(had.starts[rows] - 1, 0),
                largest_held_gpus=had.largest_held[rows],
                epochs=self._stage[rows],
                recovering=runs & (self._recovers_s[rows] > self.now_s),
                profiled_s=np.zeros(len(rows)),
                suspension_s=self._restart_s[rows],
                resize_s=np.full(len(rows), np.nan),
            ),
            "known_durations": Durations(duration_s, left_s),
            "known_estimates": Durations(duration_s, left_s),
            "known_work": steps * left_s / duration_s,
            "known_tables": [self._tables[each] for each in model.tolist()] if self._tables else None,
            "known_evidence": self._evidence_of(rows),
            "known_learning": Learning(
                unknown, unknown, unknown, unknown, unknown, [unknown[:0]] * len(rows)
            ),
            "known_cpu_demand": unknown,
            "known_ended": EndedJobs(),
        }

    def _evidence_of(self, rows: IntArray) -> list[Evidence]:
        """By job; one object as long as it has nothing new to show."""
        for row in rows[self._evidence[rows] == None].tolist():  # noqa: E711  (elementwise)
            observed = self._observed[row]
            has_run = any(observed)
            self._evidence[row] = Evidence(
                limits=self._models.limits[self._drawn.model[row]],
                observed=observed,
                grad_sqr=1.0 if has_run else float("nan"),
                grad_var=float(self._noise[row]) if has_run else float("nan"),
                fixed_batch=int(self._drawn.batch[row]) if self._drawn.is_large[row] else 0,
            )
        evidence: list[Evidence] = self._evidence[rows].tolist()
        return evidence
