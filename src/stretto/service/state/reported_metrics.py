"""What reports of trainings add up to, and what of them is believed.

What reports of a training add up to.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, isnan
from typing import Any

from stretto.errors import InputError
from stretto.estimate.shared_points import tells_more
from stretto.service.state.records import Learned, Prior

MOST_POINTS = 64  # operating points kept of one job; chosen: a fit gains nothing from more
NEAR = 0.05  # times that differ by less count as the same; chosen: a fit gains nothing from less
MOST_SHARED_POINTS = 256  # of all jobs of a model; chosen: four types with a dozen placements, and some
BOUNDS = ("init_batch", "max_batch", "max_local", "min_local", "accumulates")  # of a batch, by its script
NOISE = ("grad_sqr", "grad_var")
REQUESTS = "requests"  # that each worker of a job that serves has answered, by the id of the worker

Points = tuple[tuple[float, ...], ...]


def with_report(
    learned: Learned, report: Mapping[str, Any], kind: int, now_s: float, metrics_kept: int = 0
) -> Learned:
    """The same with one more report; what it does not say stays as it was.

    metrics_kept: so many metrics of epochs that are known come before those of the report.
    """
    profile = report.get("profile")
    report = {key: value for key, value in report.items() if key != "profile"}
    latest = merged(learned.latest, {key: value for key, value in report.items() if value is not None})
    points_told = told_points(report, kind)
    points = with_points(
        learned.points, [point for point in points_told if len(point) == 7 and all(map(isfinite, point))]
    )
    newer = report.get("epoch_metrics")
    metrics = (*learned.metrics[:metrics_kept], *map(float, newer)) if newer else learned.metrics
    loss = report.get("loss")
    initial_loss = learned.initial_loss
    if isnan(initial_loss) and loss is not None and isfinite(loss):
        initial_loss = float(loss)
    return replace(
        learned,
        latest=latest,
        points=points,
        metrics=metrics,
        initial_loss=initial_loss,
        reported_s=now_s,
        profile=json.dumps(profile, sort_keys=True) if profile else learned.profile,
    )


def merged(before: Mapping[str, Any], report: Mapping[str, Any]) -> dict[str, Any]:
    """A report over an earlier one: of requests each worker speaks for itself, for as long as its attempt."""
    together = {**before, **report}
    if REQUESTS in report and REQUESTS in before:
        attempts = {name.rpartition(".")[0] for name in report[REQUESTS]}
        of_attempt = {
            worker: counts
            for worker, counts in before[REQUESTS].items()
            if worker.rpartition(".")[0] in attempts
        }
        together[REQUESTS] = {**of_attempt, **report[REQUESTS]}
    return together


def told_points(report: Mapping[str, Any], kind: int) -> list[tuple[float, ...]]:
    """The points of a report, as they are kept: by GPU type first."""
    return [(float(kind), *(float(value) for value in point)) for point in report.get("points") or ()]


def with_points(points: Points, newer: Sequence[tuple[float, ...]], most: int = MOST_POINTS) -> Points:
    """The points with newer ones, which are means over more steps; one of the same shape is replaced.

    The same object where nothing differs by enough to matter.
    """
    place_of = {point[:5]: place for place, point in enumerate(points)}
    changed = list(points)
    for point in newer:
        place = place_of.get(point[:5])
        if place is None and len(changed) < most:
            place_of[point[:5]] = len(changed)
            changed.append(point)
        elif place is not None and not _are_near(changed[place], point):
            changed[place] = point
    return points if len(changed) == len(points) and all(map(_is, changed, points)) else tuple(changed)


def with_news(points: Points, newer: Points, replaces: bool) -> Points:
    """The points with newer ones of placements of which little is known; the same object if there are none.

    A placement is described by a few local batches, so that points which many jobs share do not become ever
    more. replaces: newer ones of the same shape take the place of others, where they differ.
    """
    known = {point[:5] for point in points}
    news = [point for point in newer if replaces and point[:5] in known]
    batches: dict[tuple[float, ...], list[float]] = {}
    for point in points:
        batches.setdefault(point[:3], []).append(point[3])
    for point in newer:
        others = batches.setdefault(point[:3], [])
        if tells_more(point[3], others):
            others.append(point[3])
            news.append(point)
    return with_points(points, news, MOST_SHARED_POINTS) if news else points


def with_experience(prior: Prior, learned: Learned, shared: bool = False) -> Prior:
    """What is known of a model, with what one of its jobs has shown; the same object where nothing is new.

    shared: with jobs that train. What was measured first stays then. Jobs of a model need not be equal. If
    each wrote over what others showed, every report would have all looked at again.
    """
    points = (
        with_news(prior.points, learned.points, replaces=False)
        if shared
        else with_points(prior.points, learned.points)
    )
    reported = {**prior.said, **{key: learned.latest[key] for key in BOUNDS if key in learned.latest}}
    if all(key in learned.latest for key in NOISE):
        noise = {key: learned.latest[key] for key in NOISE}
        reported = {**noise, **reported}  # the earliest: it grows in training
    same = points is prior.points and reported == prior.said and shared == prior.shared
    return prior if same else Prior(points, reported, shared)


def _are_near(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(abs(a - b) <= NEAR * abs(a) for a, b in zip(one[5:], other[5:], strict=True))


def _is(one: object, other: object) -> bool:
    return one is other


# ── what of a worker's report is believed: scripts write reports, and decisions are made of them ────────────


LARGEST_REPORT = 64  # keys of a report; chosen
LONGEST_LIST, LONGEST_TEXT, DEEPEST = 4096, 1024, 3  # chosen: a report is some hundred bytes
MOST_COUNTED = 2**53  # beyond, floats cannot tell two counts apart


def checked_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report without what is no number, text or short list, or not what its name says.

    Raises InputError for one with too many entries.
    """
    if len(report) > LARGEST_REPORT:
        raise InputError(f"a report must have at most {LARGEST_REPORT} entries, got {len(report)}")
    return {
        str(key): value
        for key, value in report.items()
        if key != "worker" and _plain(value) and (value is None or _KINDS.get(key, _anything)(value))
    }


def _anything(value: Any) -> bool:
    return True


def _never(value: Any) -> bool:
    return False


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _amount(value: Any) -> bool:
    """At least 0."""
    return _number(value) and 0 <= value <= MOST_COUNTED


def _count(value: Any) -> bool:
    return isinstance(value, int) and _amount(value)


def _some(value: Any) -> bool:
    return _count(value) and value > 0


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_number, value))


def _named_numbers(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(name, str) and 0 < len(name) <= LONGEST_TEXT for name in value)
        and all(map(_number, value.values()))
    )


def _requests(value: Any) -> bool:
    """By worker: how many requests it has answered, how many of them late, and latencies."""
    return isinstance(value, dict) and all(map(_are_counts, value.values()))


def _are_counts(value: Any) -> bool:
    kinds = {"answered": _count, "late": _count, "p50_s": _amount, "p99_s": _amount}
    return isinstance(value, dict) and all(key in kinds and kinds[key](value[key]) for key in value)


def _points(value: Any) -> bool:
    """[nodes, gpus, local_batch, passes of a step, grad_s of a pass, step_s of all passes], each."""
    return isinstance(value, list) and all(
        isinstance(point, list) and len(point) == 6 and all(map(_amount, point)) for point in value
    )


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("step", "epoch", "samples"), _count),
    **dict.fromkeys(("dataset_samples", "init_batch", "max_batch", "max_local", "min_local"), _some),
    **dict.fromkeys(("progress_steps", "left_s", "grad_sqr", "grad_var"), _amount),
    **dict.fromkeys(("loss", "metric"), _number),
    **dict.fromkeys(("finished", "accumulates", "epoch_end", "in_place"), _truth),
    "profile": _never,  # is for those who measure; scripts report what they see
    "batch": _some,
    "points": _points,
    REQUESTS: _requests,
    "epoch_metrics": _numbers,
    "metrics": _named_numbers,
}


def _plain(value: Any, depth: int = DEEPEST) -> bool:
    """JSON of bounded size whose numbers are finite."""
    if value is None or isinstance(value, bool | str):
        return not isinstance(value, str) or len(value) <= LONGEST_TEXT
    if isinstance(value, int | float):
        return isfinite(value) if isinstance(value, float) else abs(value) <= MOST_COUNTED
    if depth and isinstance(value, list):
        return len(value) <= LONGEST_LIST and all(_plain(entry, depth - 1) for entry in value)
    if depth and isinstance(value, dict):
        return len(value) <= LARGEST_REPORT and all(_plain(entry, depth - 1) for entry in value.values())
    return False
