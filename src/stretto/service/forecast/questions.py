"""Questions about the future: what may be asked, and the functions that answer.

Bounds of the settings that a what-if may name: users choose them, and the service pays in time.
"""

import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any

from stretto.model import InputError
from stretto.scheduler.round import Scheduler
from stretto.service.forecast.fork import NEW, Fork
from stretto.service.forecast.simulate import DRAWS, as_json, outlook_of, span_json
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.state.events import Configured

LARGEST_COUNT = 1_000  # of a setting that is a whole number; chosen
TIMES_USUAL = 10  # that its default may be multiplied by, where this gives more; chosen


def check_settings(scheduler: Scheduler, named: Iterable[str]) -> None:
    """Raise InputError for a named setting whose count would make a decision take for ever."""
    parts = {"policy": scheduler.policy, "place": scheduler.placer, "estimate": scheduler.estimator}
    for name in named:
        space, _, key = name.partition(".")
        part = parts.get(space)
        usual = {entry.name: entry.default for entry in fields(part)} if is_dataclass(part) else {}
        default, given = usual.get(key), getattr(part, key, None)
        if not isinstance(given, int) or isinstance(given, bool):
            continue
        most = max(LARGEST_COUNT, TIMES_USUAL * default if isinstance(default, int) else 0)
        if given > most:
            raise InputError(f"{name} in a what-if must be at most {most}, got {given}")


# ── questions about the future, as functions that a process beside the service answers ──────────────────────


LONGEST_S = 30.0  # of wall time for one answer; chosen


def packed(function: Callable[..., Any], *arguments: Any) -> bytes:
    """A question on its way."""
    return pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)


def answered(configured: Configured, question: bytes) -> Any:
    """The answer to a packed question.

    A policy from a file of its own is imported first: what it remembers cannot be unpacked without.
    """
    scheduler_of(configured)
    function, arguments = pickle.loads(question)
    return function(*arguments)


def foreseen(forks: Sequence[Fork], draws: int, unix_s: float) -> list[dict[str, Any]]:
    """What becomes of all jobs, fork by fork; fewer draws where time runs out."""
    began = time.perf_counter()
    return [
        as_json(fork, outlook_of(fork, draws, None, began + LONGEST_S * number / len(forks)), unix_s)
        for number, fork in enumerate(forks, start=1)
    ]


def would_start(fork: Fork, unix_s: float) -> dict[str, Any]:
    """Where, when and at what size the job that was added to a fork would start."""
    outlook = outlook_of(fork, DRAWS, None, time.perf_counter() + LONGEST_S)
    start, end = outlook.start(NEW), outlook.end(NEW)
    fate = outlook.draws[0].fates.get(NEW)
    first = fate.first if fate is not None else None
    cluster = fork.cluster
    return {
        "starts": isfinite(start.middle_s),
        "now": round(fork.now_s + unix_s, 3),
        "start": span_json(start, unix_s),
        "end": span_json(end, unix_s),
        "gpus": 0 if first is None else first.gpus,
        "gpu_type": "" if first is None else cluster.type_names[first.kind],
        "nodes": {}
        if first is None
        else {
            cluster.nodes[node].id: mask.bit_count()
            for node, mask in zip(first.nodes, first.masks, strict=True)
        },
        "assumed": list(fork.assumed),
    }
