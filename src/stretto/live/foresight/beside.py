"""Questions about the future, as functions that a process beside the service answers."""

import pickle
import time
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from stretto.live.decide.scheduling import scheduler_of
from stretto.live.foresight.fork import NEW, Fork
from stretto.live.foresight.whatif import DRAWS, as_json, outlook_of, span_json
from stretto.live.state.events import Configured

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
