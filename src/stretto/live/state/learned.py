"""What reports of a training add up to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, isnan
from typing import Any

from stretto.live.state.records import Learned, Prior

MOST_POINTS = 64  # operating points kept of one job; chosen: a fit gains nothing from more
NEAR = 0.05  # times that differ by less count as the same; chosen: a fit gains nothing from less
BOUNDS = ("init_batch", "max_batch", "max_local", "min_local", "accumulates")  # of a batch, by its script
NOISE = ("grad_sqr", "grad_var")

Points = tuple[tuple[float, ...], ...]


def with_report(
    learned: Learned, report: Mapping[str, Any], kind: int, now_s: float, metrics_kept: int = 0
) -> Learned:
    """The same with one more report; what it does not say stays as it was.

    metrics_kept: so many metrics of epochs that are known come before those of the report.
    """
    said = report.get("profile")
    report = {key: value for key, value in report.items() if key != "profile"}
    latest = {**learned.latest, **{key: value for key, value in report.items() if value is not None}}
    told = told_points(report, kind)
    points = with_points(learned.points, [one for one in told if len(one) == 7 and all(map(isfinite, one))])
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
        profile=json.dumps(said, sort_keys=True) if said else learned.profile,
    )


def told_points(report: Mapping[str, Any], kind: int) -> list[tuple[float, ...]]:
    """The points of a report, as they are kept: by GPU type first."""
    return [(float(kind), *(float(value) for value in point)) for point in report.get("points") or ()]


def with_points(points: Points, newer: Sequence[tuple[float, ...]]) -> Points:
    """The points with newer ones, which are means over more steps; one of the same shape is replaced.

    The same object where nothing differs by enough to matter.
    """
    at = {point[:5]: place for place, point in enumerate(points)}
    changed = list(points)
    for one in newer:
        place = at.get(one[:5])
        if place is None and len(changed) < MOST_POINTS:
            at[one[:5]] = len(changed)
            changed.append(one)
        elif place is not None and not _are_near(changed[place], one):
            changed[place] = one
    return points if len(changed) == len(points) and all(map(_is, changed, points)) else tuple(changed)


def with_experience(prior: Prior, learned: Learned) -> Prior:
    """What is known of a model, with what one of its jobs has shown; the same object where nothing is new."""
    points = with_points(prior.points, learned.points)
    said = {**prior.said, **{key: learned.latest[key] for key in BOUNDS if key in learned.latest}}
    if all(key in learned.latest for key in NOISE):
        said = {**{key: learned.latest[key] for key in NOISE}, **said}  # the earliest: it grows in training
    return prior if points is prior.points and said == prior.said else Prior(points, said)


def _are_near(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(abs(a - b) <= NEAR * abs(a) for a, b in zip(one[5:], other[5:], strict=True))


def _is(one: object, other: object) -> bool:
    return one is other
