"""Goodput of a job on every configuration, from what it has shown: one row of a matrix of speeds.

Rows are computed for many jobs at once, and are pure functions of a `Question`. So they can be remembered:
from one decision to the next, few jobs have anything new to show.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stretto.estimate.efficiency import gain
from stretto.estimate.fit import fit_many
from stretto.estimate.goodput import BatchLimits, best_batches
from stretto.estimate.published_fit import published_fit
from stretto.estimate.serving import KEPT_PER_S, kept
from stretto.estimate.throughput import Choice, Known, Mode, perfectly_scaled, source_of, without_sync
from stretto.model import (
    BatchChoice,
    BoolArray,
    Configurations,
    FloatArray,
    IntArray,
    Observations,
    TrainingLimits,
    frozen,
)


class Fit(StrEnum):
    """How a throughput model is fitted to observations."""

    BEST = "best"  # `fit`
    PUBLISHED = "published"  # `published_fit`


@dataclass(frozen=True, eq=False)
class Frame:
    """What the questions of one decision have in common. Compared as an object; `frame_of` makes few."""

    configurations: Configurations
    gpus_per_node: tuple[int, ...]
    mode: Mode
    reference: Choice
    fit: Fit


@lru_cache(maxsize=64)
def frame_of(
    configurations: Configurations, gpus_per_node: tuple[int, ...], mode: Mode, reference: Choice, fit: Fit
) -> Frame:
    """The frame with these parts, always the same one."""
    return Frame(configurations, gpus_per_node, mode, reference, fit)


class Question(NamedTuple):
    """All that a row depends on; the key under which it is remembered."""

    frame: Frame
    limits: TrainingLimits
    observed: tuple[Observations, ...]
    grad_sqr: float
    grad_var: float
    fixed_batch: int
    requested: int


def answer_all(questions: Sequence[Question]) -> list[FloatArray]:
    """(configs + types,) for each question: goodput on every configuration, then on the request by type.

    In steps of the initial batch per second; NaN where the job cannot run. Of a job that serves 1 where it
    keeps its service level, else NaN.
    """
    together: dict[Frame, list[int]] = {}
    for number, asked in enumerate(questions):
        together.setdefault(asked.frame, []).append(number)
    answers = [np.zeros(0)] * len(questions)
    for frame, numbers in together.items():
        rows = _goodput(frame, [questions[number] for number in numbers])
        for number, row in zip(numbers, rows, strict=True):
            answers[number] = frozen(row)
    return answers


def _goodput(frame: Frame, questions: Sequence[Question]) -> FloatArray:
    """(questions, configs + types) as `answer_all` says."""
    # Columns in the units of the type whose model answers: its replicas, on its nodes.
    limits = [asked.limits for asked in questions]
    shape = _shapes(frame, questions)
    rows = np.arange(len(questions))[:, None]
    believed = _believed(frame, questions)
    source = believed.source[:, shape.kind]  # (questions, columns) the type whose model answers
    gpus_there = shape.replicas * _by_type(limits, "replica_gpus")[rows, source]
    nodes_there = -(-gpus_there // np.array(frame.gpus_per_node)[source])

    # Batches of most goodput under these models; a fixed batch has no noise to weigh.
    fixed = np.array([asked.fixed_batch for asked in questions])[:, None]
    init = np.array([limit.init_batch for limit in limits])[:, None]
    sqr = np.array([asked.grad_sqr for asked in questions])[:, None]
    var = np.array([asked.grad_var for asked in questions])[:, None]
    params = believed.params[rows, source]
    perfect = believed.perfect[:, shape.kind]
    if perfect.any():
        params = np.where(perfect[..., None], without_sync(params), params)
    bounds = _bounds(questions, source, shape.replicas)
    tried_from = np.asarray(bounds.init_batch)
    best = best_batches(
        params,
        (np.where(fixed > 0, np.nan, sqr), np.where(fixed > 0, np.nan, var)),
        bounds,
        np.where(source == shape.kind, shape.nodes, nodes_there),
        np.maximum(shape.replicas, 1),
        wanted=shape.runs,
    )
    # Goodput in steps of the initial batch, on the asked type.
    steps_per_s = best.goodput / tried_from * np.where(fixed > 0, gain(tried_from, init, var, sqr), 1.0)
    steps_per_s *= believed.ratio[:, shape.kind]
    # Nothing shown yet: the profile of one replica, scaled perfectly.
    unseen = np.array([not any(asked.observed) for asked in questions])
    if unseen.any():
        single = _single_per_s(frame, limits)[:, shape.kind]
        steps_per_s[unseen] = (perfectly_scaled(single, shape.replicas) / init)[unseen]
    steps_per_s = np.where(shape.runs & (steps_per_s > 0), steps_per_s, np.nan)
    for row in np.flatnonzero([limit.service_level is not None for limit in limits]).tolist():
        steps_per_s[row] = _serving(frame, questions[row], believed, shape, row)
    return steps_per_s


def _serving(frame: Frame, asked: Question, believed: "_Believed", shape: "_Shapes", row: int) -> FloatArray:
    """(columns,) of a job that serves. Where nothing is known of it, all that it could run on is hoped for.

    On a type where it never ran, batches take what they do on the type that stands in, by the ratio of
    speeds. Before anything was observed, they take as long as the profile says.
    """
    limits, kind = asked.limits, shape.kind
    assert limits.service_level is not None
    if any(asked.observed):
        params = believed.params[row, believed.source[row]] / believed.ratio[row][:, None]
        alpha_s, beta_s = params[:, 0], params[:, 1]
        hoped_for = np.zeros(len(params), dtype=np.bool_)
    else:
        hoped_for = ~np.isfinite(limits.single_per_s) | (frame.mode is Mode.NO_PROF)
        beta_s = 1.0 / np.where(hoped_for, 1.0, limits.single_per_s)
        alpha_s = np.zeros(len(beta_s))
    most_local = limits.max_local[kind]
    holds = kept(limits.service_level, alpha_s[kind], beta_s[kind], shape.replicas[row], most_local).holds
    return np.where(shape.runs[row] & (holds | hoped_for[kind]), KEPT_PER_S, np.nan)


def _bounds(questions: Sequence[Question], source: IntArray, replicas: IntArray) -> BatchLimits:
    """(questions, columns) what batches must keep to where the model of type `source` answers."""
    limits, rows = [asked.limits for asked in questions], np.arange(len(questions))[:, None]
    fixed = np.array([asked.fixed_batch for asked in questions])[:, None]
    init = np.array([limit.init_batch for limit in limits])[:, None]
    tried_from = np.where(fixed > 0, fixed, init)
    most = np.where(fixed > 0, fixed, np.array([limit.max_batch for limit in limits])[:, None])
    # A job that does not choose its batch runs however little of it is left for each GPU.
    min_local = np.where(fixed > 0, 1, _by_type(limits, "min_local")[rows, source])
    soft = np.array([limit.max_is_soft for limit in limits])[:, None]
    most = np.where(soft & (fixed == 0), np.maximum(most, min_local * replicas), most)
    return BatchLimits(tried_from, most, min_local, _by_type(limits, "max_local")[rows, source])


class Held(NamedTuple):
    """A question about GPUs that a job is to hold; the key under which the answer is remembered."""

    question: Question
    kind: int
    nodes: int
    gpus: int


def chosen_batches(asked: Sequence[Held]) -> list[BatchChoice]:
    """The batch of most goodput for each; all 0 for a job that has shown nothing, or cannot run so.

    The model of the type answers, or of another type where it is the one believed, as in `answer_all`.
    """
    chosen = [BatchChoice(0.0, 0, 0, 0)] * len(asked)
    known = [number for number, allocation in enumerate(asked) if any(allocation.question.observed)]
    for frame in dict.fromkeys(asked[number].question.frame for number in known):
        numbers = [number for number in known if asked[number].question.frame is frame]
        for number, choice in zip(numbers, _chosen(frame, [asked[place] for place in numbers]), strict=True):
            chosen[number] = choice
    return chosen


def _chosen(frame: Frame, asked: Sequence[Held]) -> list[BatchChoice]:
    questions = [allocation.question for allocation in asked]
    limits, rows = [question.limits for question in questions], np.arange(len(asked))[:, None]
    believed = _believed(frame, questions)
    kind = np.array([allocation.kind for allocation in asked])[:, None]
    source = believed.source[rows, kind]
    # A type that stands in is asked about as many replicas, on nodes of its own size.
    replicas = (
        np.array([allocation.gpus for allocation in asked])[:, None]
        // _by_type(limits, "replica_gpus")[rows, kind]
    )
    gpus_there = replicas * _by_type(limits, "replica_gpus")[rows, source]
    nodes_there = -(-gpus_there // np.array(frame.gpus_per_node)[source])
    nodes = np.array([allocation.nodes for allocation in asked])[:, None]
    params = believed.params[rows, source]
    perfect = believed.perfect[rows, kind]
    best = best_batches(
        np.where(perfect[..., None], without_sync(params), params),
        (
            np.array([question.grad_sqr for question in questions])[:, None],
            np.array([question.grad_var for question in questions])[:, None],
        ),
        _bounds(questions, source, replicas),
        np.where(source == kind, nodes, nodes_there),
        np.maximum(replicas, 1),
    )
    return [
        BatchChoice(float(goodput), int(total), int(local), int(passes))
        for goodput, total, local, passes in zip(*(column[:, 0] for column in best), strict=True)
    ]


class _Shapes(NamedTuple):
    """The columns: every configuration, then the fewest nodes with the GPUs asked for, by type."""

    kind: IntArray  # (columns,)
    nodes: IntArray  # (questions, columns)
    replicas: IntArray  # (questions, columns)
    runs: BoolArray  # (questions, columns) whole replicas, on a type that the model runs on


def _shapes(frame: Frame, questions: Sequence[Question]) -> _Shapes:
    columns, per_node = frame.configurations, np.array(frame.gpus_per_node)
    kind = np.concatenate([columns.kind, np.arange(len(per_node))])
    gpus = np.empty((len(questions), len(kind)), dtype=np.int64)
    nodes = np.empty_like(gpus)
    requested = np.array([asked.requested for asked in questions])[:, None]
    gpus[:, : len(columns)], nodes[:, : len(columns)] = columns.gpus, columns.nodes
    gpus[:, len(columns) :], nodes[:, len(columns) :] = requested, -(-requested // per_node)
    limits = [asked.limits for asked in questions]
    replicas, part = np.divmod(gpus, np.maximum(_by_type(limits, "replica_gpus"), 1)[:, kind])
    runs = (_by_type(limits, "max_local") > 0)[:, kind] & (part == 0) & (replicas > 0)
    return _Shapes(kind, nodes, replicas, runs)


class _Believed(NamedTuple):
    """Whose model answers for each type: `bootstrap.Source` as columns."""

    params: FloatArray  # (questions, types, 7) of the type's own model; anything where it has none
    source: IntArray  # (questions, types) the type whose model answers
    ratio: FloatArray  # (questions, types) by which its answer is multiplied
    perfect: BoolArray  # (questions, types) what it says about synchronising is left out


def _believed(frame: Frame, questions: Sequence[Question]) -> _Believed:
    types = len(frame.gpus_per_node)
    observed = [seen for asked in questions for seen in asked.observed if seen]
    fits = iter(map(published_fit, observed) if frame.fit is Fit.PUBLISHED else fit_many(observed))
    params = np.full((len(questions), types, 7), 1.0)
    source = np.tile(np.arange(types), (len(questions), 1))
    ratio = np.ones((len(questions), types))
    perfect = np.zeros((len(questions), types), dtype=np.bool_)
    for row, asked in enumerate(questions):
        if not any(asked.observed):
            continue
        several, alone = zip(*map(_counts, asked.observed), strict=True)
        profiled = asked.limits.single_ratio
        known = Known(
            several,
            alone,
            tuple(asked.limits.single_per_s.tolist()),
            frame.gpus_per_node,
            None if profiled is None else tuple(map(tuple, profiled.tolist())),
        )
        for kind in range(types):
            if asked.observed[kind]:
                params[row, kind] = next(fits)
            source_type = source_of(kind, known, frame.mode, frame.reference)
            assert source_type is not None, "something was observed, so there is something to go by"
            source[row, kind], ratio[row, kind] = source_type.kind, source_type.ratio
            # A model fitted to one GPU scales perfectly as it is.
            perfect[row, kind] = source_type.perfect and several[source_type.kind] > 0
    return _Believed(params, source, ratio, perfect)


@lru_cache(maxsize=65_536)
def _counts(observed: Observations) -> tuple[int, int]:
    """Operating points on several GPUs, and on one."""
    several = sum(point.gpus > 1 for point in observed.points)
    return several, len(observed) - several


def _single_per_s(frame: Frame, limits: Sequence[TrainingLimits]) -> FloatArray:
    """(questions, types) samples/s of one replica; all types alike where no profile says more."""
    single = np.array([one.single_per_s for one in limits])
    unprofiled = ~np.isfinite(single).any(axis=1, keepdims=True) | (frame.mode is Mode.NO_PROF)
    return np.where(unprofiled, 1.0, np.nan_to_num(single))


def _by_type(limits: Sequence[TrainingLimits], field: str) -> IntArray:
    """(questions, types) one column of the limits."""
    return np.array([getattr(one, field) for one in limits])
