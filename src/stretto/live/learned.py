"""What reports of a training add up to."""

import json
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite, isnan
from typing import Any

from stretto.live.records import Learned

MOST_POINTS = 64  # operating points kept of one job; chosen: a fit gains nothing from more


def with_report(learned: Learned, report: Mapping[str, Any], kind: int, now_s: float) -> Learned:
    """The same with one more report; what it does not say stays as it was."""
    said = report.get("profile")
    report = {key: value for key, value in report.items() if key != "profile"}
    latest = {**learned.latest, **{key: value for key, value in report.items() if value is not None}}
    points = learned.points
    seen = {(point[0], *point[1:5]) for point in points}
    for point in report.get("points") or ():
        one = (float(kind), *(float(value) for value in point))
        if len(one) == 7 and all(map(isfinite, one)) and one[:5] not in seen and len(points) < MOST_POINTS:
            points = (*points, one)
            seen.add(one[:5])
    metrics = tuple(float(value) for value in report.get("epoch_metrics") or learned.metrics)
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
