"""Our own job file."""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from math import gcd
from typing import Any, TypeVar

from stretto.errors import InputError
from stretto.jobfile.kubernetes_section import kubernetes_of
from stretto.jobfile.parts import (
    LR_SCALINGS,
    MOST_WORTH,
    RULES_BEFORE,
    Accelerators,
    After,
    Array,
    Batch,
    BatchPolicy,
    Checkpoint,
    Dependency,
    Elastic,
    Resources,
    Restart,
    Serving,
    Stop,
    Webhook,
    WebhookEvent,
    Worth,
)
from stretto.jobfile.quantities import accelerators, array, duration_s, memory_gb, number, truth, when, whole
from stretto.jobfile.spec import PLAIN_KEYS, JobSpec
from stretto.jobfile.yaml_tree import Entry, Section, Tree

KEYS = (
    *(
        "name",
        "labels",
        "queue",
        "priority",
        "run",
        "setup",
        "workdir",
        "image",
        "envs",
        "secrets",
        "resources",
        "elastic",
    ),
    *(
        "batch",
        "serving",
        "deadline",
        "rewards",
        "stop",
        "checkpoint",
        "preemptible",
        "grace_period",
        "max_time",
    ),
    *("start_after", "array", "depends_on", "restart", "notify", "expected_time", "slurm"),
    *("kubernetes", *PLAIN_KEYS),
)
RESOURCES = ("accelerators", "gpus_per_worker", "heterogeneous", "within", "cpus", "memory")
ELASTIC = ("min", "max", "sizes")
BATCH = ("policy", "init", "max", "per_gpu", "lr_scaling")
STOP = ("steps", "epochs", "metric", "target", "max")
CHECKPOINT = ("dir", "every")
RESTART = ("max", "on_exit")
SERVING = ("latency", "requests_per_s")

WHOLE = "a whole number"
PRIORITY = "a whole number, or the name of a priority class"
CLASS = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,62}")
NUMBER = "a number"
DURATION = 'a duration with its unit, like "90s", "30m", "4h" or "1d12h"'
WHEN = 'a duration like "4h", or a date with its zone like "2030-01-31T18:00:00Z"'
GPUS = '"TYPE:COUNT" like "A100:8", a count, or a list or map of alternatives'
ARRAY = 'indices like "0-9", "1,3,8-10", "0-99%4" or how many, at most 10000'
TRUTH = "true or false"

READS: Mapping[type, tuple[Callable[[str], Any], str]] = {  # what reads a plain key, and what it expects
    bool: (truth, TRUTH),
    int: (whole, WHOLE),
    float: (number, NUMBER),
}

Part = TypeVar("Part")


def _priority(text: str) -> int | str:
    """A number, or the name of a class."""
    return text if CLASS.fullmatch(text) else whole(text)


def spec_of(entry: Entry, default_name: str) -> JobSpec:
    """The specification in a job file. Raises InputError."""
    entry.check_keys(KEYS)
    if not entry.has("run"):
        raise InputError(f"{entry.where}: missing run, the command to run")
    elastic = _elastic(entry)
    goes_on = elastic is not None or entry.has("checkpoint")  # others would begin anew, all work lost

    usual: int | str = 0
    priority = entry.read("priority", _priority, PRIORITY, usual)

    def build() -> JobSpec:
        return JobSpec(
            run=entry.text("run"),
            name=entry.text("name", default_name),
            labels=entry.texts("labels"),
            queue=entry.text("queue"),
            priority=priority if isinstance(priority, int) else 0,
            priority_class=priority if isinstance(priority, str) else "",
            setup=entry.text("setup"),
            workdir=entry.text("workdir"),
            image=entry.text("image"),
            envs=entry.texts("envs"),
            secrets=_secrets(entry),
            resources=resources_of(entry),
            elastic=elastic,
            batch=_batch(entry),
            serving=_serving(entry),
            deadline=entry.read("deadline", when, WHEN, None),
            rewards=_rewards(entry),
            stop=_stop(entry),
            checkpoint=_checkpoint(entry),
            preemptible=entry.read("preemptible", truth, TRUTH, goes_on),
            grace_period_s=entry.read("grace_period", duration_s, DURATION, 30.0),
            max_time_s=entry.read("max_time", duration_s, DURATION, None),
            start_after=entry.read("start_after", when, WHEN, None),
            array=_array(entry),
            depends_on=_dependencies(entry),
            restart=_restart(entry),
            notify=_notices(entry),
            expected_time_s=entry.read("expected_time", duration_s, DURATION, None),
            slurm=entry.texts("slurm"),
            kubernetes=kubernetes_of(entry),
            **_plain_values(entry),
        )

    return located(entry.where, build)


def _plain_values(entry: Entry) -> dict[str, Any]:
    """What the file says under keys that are read as their declaration says."""
    values = {}
    for name, declared in PLAIN_KEYS.items():
        default: Any = declared.default
        kind = type(default)
        if kind is str:
            values[name] = entry.text(name, default)
        elif issubclass(kind, StrEnum):
            values[name] = entry.read(name, kind, _one_of(kind), default)
        else:
            values[name] = entry.read(name, *READS[kind], default)
    return values


def located(where: str, build: Callable[[], Part]) -> Part:
    """What `build` returns; an error that does not say where it is gets told so."""
    try:
        return build()
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(where) else f"{where}: {text}") from None


def resources_of(entry: Entry) -> Resources:
    """Under `resources`, GPUs with alternatives, cores and memory."""
    inner = entry.entry("resources", RESOURCES)
    if inner is None:
        return Resources()
    by_type = _by_type(inner, "gpus_per_worker")
    return _built(
        inner,
        lambda: Resources(
            accelerators=alternatives(inner),
            gpus_per_worker=(
                gcd(*by_type.values()) or 1 if by_type else inner.read("gpus_per_worker", whole, WHOLE, 1)
            ),
            replica_gpus=by_type,
            heterogeneous=inner.read("heterogeneous", truth, TRUTH, False),
            within=inner.text("within"),
            cpus=inner.read("cpus", number, NUMBER, None),
            memory_gb=inner.read("memory", memory_gb, 'a size like "64GB" or "512MiB"', None),
        ),
    )


def _by_type(entry: Entry, key: str) -> dict[str, int]:
    """Of a key that is one number or a map from GPU type to number, the map; empty where it is no map."""
    numbers = entry.tree(key)
    if not isinstance(numbers, Section):
        return {}
    of_types = Entry(entry.where, numbers, entry.name(key))
    if not numbers.values:
        raise entry.wrong(key, f"{WHOLE}, or a map from GPU type to one", numbers)
    return {name: of_types.read(name, whole, WHOLE, 0) for name in numbers.values}


def alternatives(entry: Entry) -> tuple[Accelerators, ...]:
    """GPUs that would do: one text, a list of them, or a map from type to count."""
    value = entry.tree("accelerators")
    if isinstance(value, Section):
        counts = entry.texts("accelerators")
        pairs = [f"{gpu_type}:{count}" if count else gpu_type for gpu_type, count in counts.items()]
        texts: list[Tree] = list(pairs)
    else:
        texts = value if isinstance(value, list) else [] if value is None else [value]
    listed = Section(entry.section.line, {"accelerators": texts}, {"accelerators": _line(entry)})
    return Entry(entry.where, listed, entry.path).reads("accelerators", accelerators, GPUS)


def _line(entry: Entry) -> int:
    return entry.section.lines.get("accelerators", entry.section.line)


def _elastic(entry: Entry) -> Elastic | None:
    inner = entry.entry("elastic", ELASTIC)
    if inner is None:
        return None
    sizes = inner.reads("sizes", whole, "a list of whole numbers")
    return _built(
        inner,
        lambda: Elastic(
            min_gpus=inner.read("min", whole, WHOLE, sizes[0] if sizes else 1),
            max_gpus=inner.read("max", whole, WHOLE, sizes[-1] if sizes else None),
            sizes=sizes,
        ),
    )


def _batch(entry: Entry) -> Batch:
    inner = entry.entry("batch", BATCH)
    if inner is None:
        return Batch()
    by_type = _by_type(inner, "per_gpu")
    return _built(
        inner,
        lambda: Batch(
            policy=inner.read("policy", BatchPolicy, _one_of(BatchPolicy), BatchPolicy.FIXED),
            init=inner.read("init", whole, WHOLE, None),
            max=inner.read("max", whole, WHOLE, None),
            per_gpu=min(by_type.values()) if by_type else inner.read("per_gpu", whole, WHOLE, None),
            lr_scaling=_lr_scaling(inner),
            per_gpu_of=by_type,
        ),
    )


def _secrets(entry: Entry) -> dict[str, str]:
    """Names of secrets by variable; in a list each secret is a variable of its own name."""
    if not isinstance(entry.tree("secrets"), list):
        return entry.texts("secrets")
    names = entry.reads("secrets", str, "a list of names of secrets")
    return dict(zip(names, names, strict=True))


def _lr_scaling(inner: Entry) -> str:
    """A rule that the SDK has: logs have others, which nothing ever followed. Raises InputError."""
    rule = inner.text("lr_scaling")
    if rule in RULES_BEFORE:
        raise inner.wrong("lr_scaling", f"one of {', '.join(LR_SCALINGS)}", rule)
    return rule


def _rewards(entry: Entry) -> tuple[Worth, ...]:
    rewards = []
    for inner in _entries(entry, "rewards", ("by", "worth")):
        by = inner.read("by", when, WHEN, None)
        worth = inner.read("worth", number, NUMBER, None)
        if by is None or worth is None:
            raise InputError(f"{inner.at('by')}: {inner.path} must have by and worth")
        if not 0 < worth <= MOST_WORTH:  # the part itself lets more pass, which logs have
            why = ", since no reward may outweigh a strict deadline" if worth > 0 else ""
            expected = f"a number above 0 and at most {MOST_WORTH:g}{why}"
            raise inner.wrong("worth", expected, f"{worth:g}")
        rewards.append(_built(inner, lambda by=by, worth=worth: Worth(by, worth)))  # type: ignore[misc]
    return tuple(rewards)


def _stop(entry: Entry) -> Stop | None:
    inner = entry.entry("stop", STOP)
    if inner is None:
        return None
    return _built(
        inner,
        lambda: Stop(
            steps=inner.read("steps", whole, WHOLE, None),
            epochs=inner.read("epochs", whole, WHOLE, None),
            metric=inner.text("metric"),
            target=inner.read("target", number, NUMBER, None),
            max_epochs=inner.read("max", whole, WHOLE, None),
        ),
    )


def _serving(entry: Entry) -> Serving | None:
    inner = entry.entry("serving", SERVING)
    if inner is None:
        return None
    latency_s = inner.read("latency", duration_s, 'a duration with its unit, like "200ms"', None)
    per_s = inner.read("requests_per_s", number, NUMBER, None)
    if latency_s is None or per_s is None:
        raise InputError(f"{inner.where}: {inner.path} must have latency and requests_per_s")
    return _built(inner, lambda: Serving(latency_s, per_s))


def _checkpoint(entry: Entry) -> Checkpoint | None:
    inner = entry.entry("checkpoint", CHECKPOINT)
    if inner is None:
        return None
    return _built(
        inner, lambda: Checkpoint(inner.text("dir"), inner.read("every", duration_s, DURATION, None))
    )


def _array(entry: Entry) -> Array | None:
    if isinstance(entry.tree("array"), list):
        return Array(tuple(sorted(set(entry.reads("array", whole, ARRAY)))))
    return entry.read("array", array, ARRAY, None)


def _dependencies(entry: Entry) -> tuple[Dependency, ...]:
    value = entry.tree("depends_on")
    if isinstance(value, str):
        return (Dependency(value),)
    dependencies = []
    for item in entry.items("depends_on"):
        if isinstance(item, Section):
            inner = Entry(entry.where, item, "depends_on")
            inner.check_keys(("job", "when"))
            dependencies.append(
                Dependency(inner.text("job"), inner.read("when", After, _one_of(After), After.SUCCEEDED))
            )
        elif isinstance(item, str):
            dependencies.append(Dependency(item))
        else:
            raise entry.wrong("depends_on", "a list of jobs", item)
    return tuple(dependencies)


def _restart(entry: Entry) -> Restart:
    inner = entry.entry("restart", RESTART)
    if inner is None:
        return Restart()
    return _built(
        inner,
        lambda: Restart(
            max=inner.read("max", whole, WHOLE, 0),
            on_exit=inner.reads("on_exit", whole, "exit statuses from 1 to 255"),
        ),
    )


def _notices(entry: Entry) -> tuple[Webhook, ...]:
    value = entry.tree("notify")
    if isinstance(value, str):
        return (Webhook(value),)
    webhooks = []
    for item in entry.items("notify"):
        if isinstance(item, Section):
            inner = Entry(entry.where, item, "notify")
            inner.check_keys(("url", "on"))
            on = inner.reads("on", WebhookEvent, f"a list of {', '.join(WebhookEvent)}")
            webhooks.append(Webhook(inner.text("url"), *([on] if on else [])))
        elif isinstance(item, str):
            webhooks.append(Webhook(item))
        else:
            raise entry.wrong("notify", "a list of addresses", item)
    return tuple(webhooks)


def _entries(entry: Entry, key: str, keys: tuple[str, ...]) -> list[Entry]:
    entries = []
    for number_, item in enumerate(entry.items(key), start=1):
        if not isinstance(item, Section):
            raise entry.wrong(key, "a list of keys and values", item)
        inner = Entry(entry.where, item, f"{key}, entry {number_}")
        inner.check_keys(keys)
        entries.append(inner)
    return entries


def _built(entry: Entry, build: Callable[[], Part]) -> Part:
    """A part that checks itself, with the line of its section."""
    return located(entry.where, lambda: _at_line(entry, build))


def _at_line(entry: Entry, build: Callable[[], Part]) -> Part:
    try:
        return build()
    except InputError as error:
        text = str(error)
        raise InputError(
            text if text.startswith(entry.where) else f"{entry.where} line {entry.section.line}: {text}"
        ) from None


def _one_of(choices: type[StrEnum]) -> str:
    return f"one of {', '.join(choices)}"
