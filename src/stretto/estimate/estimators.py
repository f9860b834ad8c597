"""From what a snapshot shows of every job to a matrix of speeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from stretto.estimate.efficiency import gain
from stretto.estimate.fit import fit_many
from stretto.estimate.goodput import BatchLimits, best_batches
from stretto.estimate.memo import Memo
from stretto.estimate.published_fit import published_fit
from stretto.model import (
    Configurations,
    FloatArray,
    InputError,
    IntArray,
    MeasuredSpeeds,
    Observations,
    Policy,
    Snapshot,
    Speeds,
    TrainingLimits,
    View,
    frozen,
    no_speeds,
)

REMEMBERED_ROWS = 32_768  # chosen: rows of goodput kept; about 20 MB at 30 columns


@dataclass(frozen=True)
class NoEstimate:
    """For policies that do not look at speeds."""

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """Nothing is believed about anybody."""
        return no_speeds(len(snapshot.jobs), len(snapshot.cluster.types), configurations)


@dataclass(frozen=True)
class MeasuredTables:
    """Speeds that were measured before a job runs, at its own batch size."""

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """Steps per second; nodes beyond the fewest possible count as spread."""
        jobs = snapshot.jobs
        blank = no_speeds(len(jobs), len(snapshot.cluster.types), configurations)
        if not len(jobs):
            return blank
        per_node = tuple(snapshot.cluster.gpus_per_node.tolist())
        rows = [_table_row(table, configurations, per_node) for table in jobs.tables]
        requested = [
            _requested(table, gpus) for table, gpus in zip(jobs.tables, jobs.gpus.tolist(), strict=True)
        ]
        return Speeds(
            configurations=configurations,
            per_s=np.array(rows),
            requested_per_s=np.array(requested),
            modelled=np.ones(len(jobs), dtype=np.bool_),
            observed_gpus=np.repeat(jobs.max_gpus[:, None], len(per_node), axis=1),
            reach_gpus=blank.reach_gpus,
        )


@lru_cache(maxsize=65_536)
def _table_row(
    table: MeasuredSpeeds, configurations: Configurations, per_node: tuple[int, ...]
) -> FloatArray:
    """(configs,) a table looked up at every configuration."""
    gpus = np.minimum(configurations.gpus, table.per_s.shape[1] - 1)
    fewest = -(-configurations.gpus // np.array(per_node)[configurations.kind])
    consolidated = table.per_s[configurations.kind, gpus]
    spread = table.spread_per_s[configurations.kind, gpus]
    found = np.where(configurations.nodes > fewest, spread, consolidated)
    return frozen(np.where(configurations.gpus < table.per_s.shape[1], found, np.nan))


def _requested(table: MeasuredSpeeds, gpus: int) -> FloatArray:
    """(types,) speed on exactly so many GPUs."""
    return table.per_s[:, gpus] if gpus < table.per_s.shape[1] else np.full(len(table.per_s), np.nan)


class _Question(NamedTuple):
    """All that a row of goodput depends on; the key under which it is remembered."""

    limits: TrainingLimits
    observed: tuple[Observations, ...]
    grad_sqr: float
    grad_var: float
    fixed_batch: int
    requested: int
    configurations: Configurations
    per_node: tuple[int, ...]
    reference: str
    published: bool


@dataclass(frozen=True)
class OnlineGoodput:
    """Goodput from what each job has shown so far, carried over between GPU types.

    Sia (SOSP 2023), section 3.2, equation 1: X_B(K) = X_B(1) / X_A(1) · X_A(K) for a type B on which nothing
    was observed, from a type A on which something was. Where nothing was observed at all, replicas run as
    fast as the profile of one says, all types alike where there is none, and scale perfectly. So does a
    model fitted to one GPU, which is the paper's assumption for a type on which only one was tried.
    """

    reference: str = "first"  # type A: "first" in the cluster's order, or the one with "most" observations
    fit: str = "best"  # "best" fit of the model, or as "published": see `published_fit`
    _rows: Memo[_Question, FloatArray] = field(
        default_factory=lambda: Memo(_answer_all, REMEMBERED_ROWS), repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Check the parameters."""
        if self.reference not in ("first", "most"):
            raise InputError(f"estimate.reference must be 'first' or 'most', got {self.reference!r}")
        if self.fit not in ("best", "published"):
            raise InputError(f"estimate.fit must be 'best' or 'published', got {self.fit!r}")
        if self.fit == "published":
            import scipy.optimize  # noqa: F401  (now, not in the middle of the first decision)

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """Goodput in steps of the initial batch per second; where only a table is known, what it says."""
        jobs = snapshot.jobs
        types, width = len(snapshot.cluster.types), len(configurations)
        evidence = jobs.evidence
        if any(one is None for one in evidence):
            measured = MeasuredTables().estimate(snapshot, configurations)
        else:
            measured = no_speeds(len(jobs), types, configurations)
        known = [row for row, one in enumerate(evidence) if one is not None]
        if not known:
            return measured
        shown = [one for one in evidence if one is not None]
        per_node = tuple(snapshot.cluster.gpus_per_node.tolist())
        requested = jobs.gpus.tolist()
        answers = np.array(
            self._rows.of(
                [
                    _Question(
                        one.limits,
                        one.observed,
                        one.grad_sqr,
                        one.grad_var,
                        one.fixed_batch,
                        requested[row],
                        configurations,
                        per_node,
                        self.reference,
                        self.fit == "published",
                    )
                    for row, one in zip(known, shown, strict=True)
                ]
            )
        )
        measured.per_s[known] = answers[:, :width]
        measured.requested_per_s[known] = answers[:, width:]
        measured.modelled[known] = [any(one.observed) for one in shown]
        measured.observed_gpus[known] = [
            [
                seen.largest_gpus * int(each)
                for seen, each in zip(one.observed, one.limits.replica_gpus, strict=True)
            ]
            for one in shown
        ]
        measured.reach_gpus[known] = [
            one.limits.reach_gpus * int(one.limits.replica_gpus.max()) for one in shown
        ]
        return measured


def _answer_all(questions: Sequence[_Question]) -> list[FloatArray]:
    """(configs + types,) for each question: goodput on every configuration, then on the request."""
    together: dict[tuple[object, ...], list[int]] = {}
    for number, asked in enumerate(questions):
        together.setdefault((id(asked.configurations), asked.per_node, asked.published), []).append(number)
    answers = [np.zeros(0)] * len(questions)
    for numbers in together.values():
        rows = _goodput([questions[number] for number in numbers])
        for number, row in zip(numbers, rows, strict=True):
            answers[number] = frozen(row)
    return answers


def _goodput(questions: Sequence[_Question]) -> FloatArray:
    """(questions, configs + types) steps of the initial batch per second, NaN where a job cannot run."""
    configurations, per_node = questions[0].configurations, np.array(questions[0].per_node)
    kind = np.concatenate([configurations.kind, np.arange(len(per_node))])
    limits = [asked.limits for asked in questions]
    replica = np.array([one.replica_gpus for one in limits])[:, kind]
    gpus = np.hstack(
        [
            np.tile(configurations.gpus, (len(questions), 1)),
            np.tile(np.array([[asked.requested] for asked in questions]), (1, len(per_node))),
        ]
    )
    fewest = -(-gpus // per_node[kind])
    nodes = np.hstack([np.tile(configurations.nodes, (len(questions), 1)), fewest[:, len(configurations) :]])
    replicas, part = np.divmod(gpus, replica)

    params, source, ratio = _models(questions, len(per_node))
    rows = np.arange(len(questions))[:, None]
    source = source[:, kind]  # (questions, columns) the type whose model answers
    elsewhere = -(
        -(replicas * np.array([one.replica_gpus for one in limits])[rows, source]) // per_node[source]
    )
    fixed = np.array([asked.fixed_batch for asked in questions])[:, None]
    init = np.array([one.init_batch for one in limits])[:, None]
    tried_from = np.where(fixed > 0, fixed, init)
    most = np.where(fixed > 0, fixed, np.array([one.max_batch for one in limits])[:, None])
    sqr = np.array([asked.grad_sqr for asked in questions])[:, None]
    var = np.array([asked.grad_var for asked in questions])[:, None]
    min_local = np.array([one.min_local for one in limits])[rows, source]
    soft = np.array([one.max_is_soft for one in limits])[:, None]
    most = np.where(soft & (fixed == 0), np.maximum(most, min_local * replicas), most)
    runs = np.array([one.max_local > 0 for one in limits])[:, kind] & (part == 0) & (replicas > 0)
    best = best_batches(
        params[rows, source],
        (np.where(fixed > 0, np.nan, sqr), np.where(fixed > 0, np.nan, var)),
        BatchLimits(
            tried_from,
            most,
            min_local,
            np.array([one.max_local for one in limits])[rows, source],
        ),
        np.where(source == kind, nodes, elsewhere),
        np.maximum(replicas, 1),
        wanted=runs,
    )
    steps_per_s = best.goodput / tried_from * np.where(fixed > 0, gain(tried_from, init, var, sqr), 1.0)
    steps_per_s *= ratio[:, kind]
    unseen = np.array([not any(asked.observed) for asked in questions])
    if unseen.any():
        single = np.array([one.single_per_s for one in limits])
        unprofiled = ~np.isfinite(single).any(axis=1, keepdims=True)
        single = np.where(unprofiled, 1.0, np.nan_to_num(single))[:, kind]
        steps_per_s[unseen] = (single * replicas / init)[unseen]
    return np.where(runs & (steps_per_s > 0), steps_per_s, np.nan)


def _models(questions: Sequence[_Question], types: int) -> tuple[FloatArray, IntArray, FloatArray]:
    """Which model answers for each type: parameters (questions, types, 7), the type it is of, and the ratio.

    Where a type has no model of its own, another's is multiplied by the ratio of their speeds on one replica;
    by 1 where these were not profiled.
    """
    observed = [seen for asked in questions for seen in asked.observed if seen]
    fits = iter(map(published_fit, observed) if questions[0].published else fit_many(observed))
    params = np.full((len(questions), types, 7), 1.0)
    source = np.tile(np.arange(types), (len(questions), 1))
    ratio = np.ones((len(questions), types))
    for row, asked in enumerate(questions):
        modelled = [kind for kind, seen in enumerate(asked.observed) if seen]
        for kind in modelled:
            params[row, kind] = next(fits)
        for kind in range(types):
            if kind not in modelled and modelled:
                reference = _reference(asked, modelled, kind)
                single = asked.limits.single_per_s
                known = single[kind] / single[reference]
                source[row, kind] = reference
                ratio[row, kind] = known if np.isfinite(known) else 1.0
    return params, source, ratio


def _reference(asked: _Question, modelled: Sequence[int], kind: int) -> int:
    """The type whose model stands in for that of another."""
    if asked.reference == "first":
        return modelled[0]
    per_node = asked.per_node

    def merit(candidate: int) -> tuple[int, int]:
        several = sum(point.gpus > 1 for point in asked.observed[candidate].points)
        return several, -abs(per_node[candidate] - per_node[kind])

    return max(modelled, key=merit)


def estimator_for(policy: Policy, settings: Mapping[str, Any]) -> NoEstimate | MeasuredTables | OnlineGoodput:
    """The estimator that serves a policy's views."""
    if View.GOODPUT_MODEL in policy.views:
        return OnlineGoodput(**settings)
    if settings:
        raise InputError(
            f"estimate.{next(iter(settings))}: policy {policy.name} needs no estimates of goodput"
        )
    return MeasuredTables() if View.THROUGHPUT_TABLE in policy.views else NoEstimate()
