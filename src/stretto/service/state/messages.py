"""Machine-readable reasons and states in the words that people read. Imports nothing, so that all can."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

WORDS: Mapping[str, str] = {
    "ENDING": "it is ending",
    "HELD": "held until it is released",
    "NOT_BEFORE": "its time has not come",
    "DEPENDENCY": "another job comes first",
    "DEPENDENCY_FAILED": "a job that had to come first ended in the wrong way",
    "ARRAY_LIMIT": "as many of its array run as may",
    "BUDGET": "a budget is used up",
    "QUOTA": "its queue holds as many GPUs as it may",
    "EXCEEDS_QUOTA": "asks for more GPUs than its queue may ever hold",
    "MAY_NOT_BORROW": "may not borrow, since it cannot be preempted",
    "RESERVED": "what it needs is kept for others",
    "PREEMPTED": "a job of higher priority has its GPUs",
    "OUTRANKED": "jobs of higher priority come first",
    "OVER_SHARE": "others are further behind their fair share",
    "NO_FREE_GPUS": "not enough GPUs that suit it are free",
    "BEHIND_IN_ORDER": "an earlier job waits for GPUs, too",
    "WORTH_LESS": "others make more of the GPUs",
    "NODES_CLOSED": "every node that suits it is closed or down",
    "FRAGMENTED": "enough GPUs are free, but not side by side",
    "RECOVERING": "a stop or start is under way",
    "NOT_PROFILED": "its profiling run comes first",
    "TOO_LARGE": "asks for more GPUs than there are",
    "NO_SUCH_TYPE": "no node has a GPU type that it accepts",
    "TOO_SLOW": "no GPUs in its range keep the latency that it has promised",
    "DECLINED": "the policy refused it for good",
    "NODES_TO_COME": "nodes that suit it are to come",
    "SWITCHING": "its size changes once its workers are through with a step or an evaluation",
    "STARTING_SOON": "it has been given GPUs",
    "NOT_CONSIDERED": "it waits for the next decision",
}
NEVER = frozenset({"DEPENDENCY_FAILED", "TOO_LARGE", "NO_SUCH_TYPE", "DECLINED", "EXCEEDS_QUOTA", "TOO_SLOW"})


def reason_in_words(reason: str, evidence: str = "") -> str:
    """A reason for people, with its evidence; what has no words stays as it is."""
    said = WORDS.get(reason, reason.lower().replace("_", " "))
    if reason == "NOT_CONSIDERED":
        return said
    return f"{said}: {evidence}" if said and evidence else said or evidence


def gpus_of(gpus: int, gpu_type: str = "") -> str:
    """A size: 4 x a100."""
    return f"{gpus} x {gpu_type}" if gpu_type else f"{gpus} GPU{'s' * (gpus != 1)}"


def figure_in_words(value: float) -> str:
    """A figure in four digits: 0.9312. It has more where fewer would make a whole number of it: 0.99996."""
    if not isfinite(value) or abs(value) >= 1e15:
        return f"{value:.4g}"
    if value == int(value):
        return f"{value:.0f}"
    texts = (f"{value:.{digits}g}" for digits in range(4, 18))
    return next(text for text in texts if float(text) != int(float(text)) or float(text) == value)


def progress_in_words(progress: Mapping[str, Any]) -> dict[str, str]:
    """What a training reports, by name and in words: metrics by the names that its script gives them."""
    named = progress.get("metrics") or {}
    shown = {
        key: value for key, value in progress.items() if key != "metrics" and not (key == "metric" and named)
    }
    figures = [
        *shown.items(),
        *((f"reported {name}" if name in shown else name, value) for name, value in named.items()),
    ]
    return {
        name: figure_in_words(value) if isinstance(value, float) else str(value) for name, value in figures
    }


def span_in_words(seconds: float) -> str:
    """A duration in the unit that people would choose: 42 s, 12 min, 3.5 h, 2.1 d."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} d"


def headline(explanation: Mapping[str, Any], when: str) -> str:
    """The answer of `explain` in a line. when: the start or end that it foresees, in words; "" unknown."""
    if explanation["ended"]:
        why = reason_in_words(explanation["reason"], explanation["evidence"])
        return f"it has ended: {explanation['state']}" + (f", {why}" if why else "")
    if explanation["gpus"]:
        runs = f"it holds {gpus_of(explanation['gpus'], explanation['gpu_type'])}"
        if explanation["reason"] == "SWITCHING":
            return f"{runs}; {reason_in_words(explanation['reason'], explanation['evidence'])}"
        if explanation["basis"] == "assumed":
            return f"{runs}; nobody has said how long it takes"
        return f"{runs}, ends {when}" if when else runs
    reason = reason_in_words(explanation["reason"], explanation["evidence"])
    if explanation["never"]:
        return f"never: {reason}"
    return f"{reason}; starts {'at the next decision' if when == 'now' else when}" if when else reason
