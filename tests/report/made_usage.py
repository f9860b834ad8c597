"""Rows of usage as a service answers them, made."""

from collections.abc import Sequence
from typing import Any

from stretto.report.usage import USES, UsageReport


def a_row(user: str, period: str = "", priced: bool = True, **hours: float) -> dict[str, Any]:
    """Hours by use, and `charged` where it differs from what was held."""
    used = {use: hours.get(use, 0.0) * 3_600 for use in USES}
    held_s = sum(used.values())
    charged_s = hours.get("charged", held_s / 3_600) * 3_600
    return {
        "user": user,
        "period": period,
        "jobs": 3,
        "gpus": 2,
        "gpu_hours": held_s / 3_600,
        "gpu_seconds": held_s,
        **{f"{use}_gpu_seconds": seconds for use, seconds in used.items()},
        "charged_gpu_seconds": charged_s,
        "unpriced_gpu_seconds": 0.0 if priced else charged_s,
        "cost": charged_s / 3_600 * 2.5 if priced else None,
    }


def a_report(rows: Sequence[dict[str, Any]] | None = None, **changes: Any) -> UsageReport:
    """Three users over two months, and the cluster itself."""
    made = [
        a_row("ada", "2026-10", useful=790.02, lost=18.2, idle=4.28, charged=806.1),
        a_row("ada", "2026-11", useful=80.4, unsaved=14.9, lost=0.31, idle=0.5),
        a_row("bob", "2026-10", useful=119.1, lost=0.4, idle=0.5, charged=126.4),
        a_row("", "2026-11", charged=3.0),
        a_row("a.user.with.a.very.long.name@example.org", "2026-11", useful=31, unsaved=3, idle=9),
    ]
    words: dict[str, Any] = {"by": ("user", "month"), "period": "month", "zone": "Europe/Berlin"}
    words |= {"command": "stretto usage --by user --by month", "made": "2026-11-24 12:00 UTC"}
    return UsageReport(rows=made if rows is None else rows, **(words | changes))
