"""The parts of a job's specification, named like the keys of the file.

Each part checks itself when it is built. A check raises InputError naming key, value and expectation.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import gcd, isfinite, lcm
from typing import TypeVar

from stretto.errors import InputError
from stretto.suggestions import did_you_mean

T = TypeVar("T")

LONGEST_NAME = 63
NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_NAME}}}")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
LABEL = re.compile(r"[A-Za-z0-9._/-]{1,128}")  # keys as on Kubernetes: a prefix may stand before the name
ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")  # as of variables and of files
LONGEST_SECRET_BYTES = 64 << 10
RESERVED = "STRETTO_"  # environment variables that workers get from us
CONTROL = re.compile(r"[\x00-\x1f\x7f]")

LONGEST_TEXT = 1 << 20
LONGEST_PATH = 4096
MOST_GPUS = 1_000_000  # chosen: far beyond any cluster; a slip should not fill the memory
MOST_SAMPLES = 2**53
LONGEST_S = 10 * 365 * 86_400.0  # chosen: ten years
LATEST_UNIX_S = 253_402_300_800.0  # the end of the year 9999
LARGEST_PRIORITY = 1_000_000


def shown(value: object) -> str:
    """A value as it stands in a message: on one line, and not long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def plain(text: str, longest: int = 80) -> str:
    """A foreign text inside a message: on one line, and not long."""
    line = text if text.isprintable() else repr(text)[1:-1]
    return line if len(line) <= longest else f"{line[: longest - 3]}..."


def wrong(key: str, expected: str, value: object) -> InputError:
    """What to raise for a value."""
    return InputError(f"{key} must be {expected}, got {shown(value)}")


def check_name(key: str, value: str) -> None:
    """A name: of jobs, queues and whatever becomes part of a path or an address."""
    if not NAME.fullmatch(value) or value in {".", ".."}:
        raise wrong(key, "a name of 1 to 63 letters, digits, dots, dashes and underscores", value)


def check_secret_name(key: str, value: str) -> None:
    """Raise InputError unless this may name a secret."""
    if not SECRET_NAME.fullmatch(value):
        expected = "the name of a secret: 1 to 64 letters, digits, dots, dashes and underscores"
        raise wrong(key, expected, value)


def check_text(key: str, value: str, longest: int = LONGEST_TEXT) -> None:
    """A text that a process can be given."""
    if "\0" in value:
        raise wrong(key, "a text without NUL", value)
    if len(value) > longest:
        raise wrong(key, f"a text of at most {longest} characters", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(key, "a text that UTF-8 can hold", value) from None


def check_line(key: str, value: str, longest: int = 256) -> None:
    """A text on one line."""
    check_text(key, value, longest)
    if CONTROL.search(value):
        raise wrong(key, "a text without control characters", value)


def check_path(key: str, value: str) -> None:
    """A path that stays below where it starts."""
    check_line(key, value, LONGEST_PATH)
    if ".." in value.split("/"):
        raise wrong(key, "a path without '..'", value)


def check_image(key: str, value: str) -> None:
    """A container image, as any tool takes it for one argument of its own."""
    check_line(key, value, LONGEST_PATH)
    if not value or value.startswith("-") or any(letter.isspace() for letter in value):
        raise wrong(key, "an image, like registry.example/team/train:1.2", value)


def check_count(key: str, value: int | None, at_least: int = 1, at_most: int = MOST_GPUS) -> None:
    """A whole number within bounds; None passes."""
    if value is not None and not at_least <= value <= at_most:
        raise wrong(key, f"a whole number from {at_least} to {at_most}", value)


def check_by_type(key: str, values: Mapping[str, int], at_most: int) -> None:
    """Whole numbers by GPU type, each type once in whichever case."""
    for gpu_type, value in values.items():
        check_name(f"{key}: a GPU type", gpu_type)
        check_count(f"{key}.{gpu_type}", value, at_most=at_most)
    if len({name.lower() for name in values}) != len(values):
        raise wrong(key, "each GPU type once", ", ".join(values))


def by_names(values: Mapping[str, int], names: Iterable[str], otherwise: T) -> int | T:
    """The value of a GPU type with these names, the first that is said in whichever case."""
    by_name = {name.lower(): value for name, value in values.items()}
    return next((by_name[name.lower()] for name in names if name.lower() in by_name), otherwise)


def check_number(key: str, value: float | None, above: float, at_most: float) -> None:
    """A finite number within bounds; None passes."""
    if value is not None and not (isfinite(value) and above < value <= at_most):
        raise wrong(key, f"a number above {above:g} and at most {at_most:g}", value)


def check_seconds(key: str, value: float | None, at_least: float = 0.0) -> None:
    """A duration; None passes."""
    if value is not None and not (isfinite(value) and at_least <= value <= LONGEST_S):
        bound = f"of at least {at_least:g} s and " if at_least else ""
        raise wrong(key, f"a duration {bound}of at most ten years", f"{value:g}s")


# ── the parts ───────────────────────────────────────────────────────────────────────────────────────────────


MOST_ALTERNATIVES = 64
MOST_TASKS = 10_000  # of an array


# Rules of learning rates that the SDK has, and one that job files were allowed to name and nothing followed.
LR_SCALINGS = ("linear", "sqrt", "square-root", "adascale", "adamscale", "fixed")
RULES_BEFORE = ("legw",)

# Of a reward in a job file: "values ranging between 0 and 100" [UniSched, section III-C2].
MOST_WORTH = 100.0


class BatchPolicy(StrEnum):
    """What chooses the batch size."""

    FIXED = "fixed"
    ADAPTIVE = "adaptive"  # the scheduler; the script uses the SDK


class After(StrEnum):
    """What must have become of a job before another may start."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"  # either way
    STARTED = "started"


class WebhookEvent(StrEnum):
    """What a webhook can tell of."""

    STARTED = "started"
    PREEMPTED = "preempted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class When:
    """A point in time: either on the calendar, or so long after the submission."""

    at_unix_s: float | None = None
    after_s: float | None = None

    def __post_init__(self) -> None:
        """Check that it is one of both, and a time."""
        if (self.at_unix_s is None) == (self.after_s is None):
            raise InputError("a time must be either a date or a duration")
        check_number("a date", self.at_unix_s, above=0.0, at_most=LATEST_UNIX_S)
        check_seconds("a time after submission", self.after_s)

    def seconds(self, submitted_s: float, epoch_s: float) -> float:
        """The time on the clock whose zero was at `epoch_s` Unix time."""
        return submitted_s + self.after_s if self.after_s is not None else (self.at_unix_s or 0.0) - epoch_s


@dataclass(frozen=True, slots=True)
class Accelerators:
    """GPUs that would do."""

    gpu_type: str = ""  # as the file calls it; "" = any
    gpus: int = 0  # 0 = not said

    def __post_init__(self) -> None:
        """Check the values."""
        if self.gpu_type:
            check_name("resources.accelerators: a GPU type", self.gpu_type)
        check_count("resources.accelerators: the number of GPUs", self.gpus, at_least=0)

    def __str__(self) -> str:
        """As a file would say it."""
        return f"{self.gpu_type or 'any'}:{self.gpus}" if self.gpus else self.gpu_type or "any"


@dataclass(frozen=True, slots=True)
class Resources:
    """What a job asks for. Cores and memory go with the GPUs asked for; another size gets its share."""

    accelerators: tuple[Accelerators, ...] = ()  # alternatives, most wanted first; empty = any GPUs
    gpus_per_worker: int = 1  # GPUs of one process; the job grows and shrinks by so many
    cpus: float | None = None  # cores
    memory_gb: float | None = None
    # GPUs of one process by type, where types differ: it runs on these; `gpus_per_worker` divides them all
    replica_gpus: Mapping[str, int] = field(default_factory=dict)
    heterogeneous: bool = False  # may hold GPUs of several of its types at once
    within: str = ""  # the level of the network of which all its nodes must be in one domain; "": none

    def __post_init__(self) -> None:
        """Check the values."""
        check_count("resources.gpus_per_worker", self.gpus_per_worker, at_most=64)
        self._check_replicas()
        if len(self.within) > LONGEST_NAME:
            raise wrong("resources.within", f"at most {LONGEST_NAME} characters", self.within)
        check_number("resources.cpus", self.cpus, above=0.0, at_most=1e7)
        check_number("resources.memory", self.memory_gb, above=0.0, at_most=1e9)
        if len(self.accelerators) > MOST_ALTERNATIVES:
            raise wrong(
                "resources.accelerators", f"at most {MOST_ALTERNATIVES} alternatives", len(self.accelerators)
            )
        names = [alternative.gpu_type.lower() for alternative in self.accelerators]
        if len(set(names)) != len(names):
            raise wrong("resources.accelerators", "alternatives of different types", _list(self.accelerators))
        if self.heterogeneous:
            self._check_mixing(names)

    def _check_mixing(self, names: list[str]) -> None:
        if len(names) == 1 and names[0]:
            expected = "several GPU types, or any, where resources.heterogeneous is true"
            raise wrong("resources.accelerators", expected, _list(self.accelerators))
        if self.replica_gpus:
            raise InputError(
                "resources.heterogeneous and resources.gpus_per_worker by type exclude each other: expected"
                " workers of one size"
            )

    @property
    def gpus_of_whole_workers(self) -> int:
        """The least number of GPUs that makes whole workers on every type."""
        return lcm(*self.replica_gpus.values()) if self.replica_gpus else self.gpus_per_worker

    def worker_gpus(self, names: Iterable[str]) -> int:
        """GPUs of one worker on a type with these names, the first that is said; 0: it does not run there."""
        return by_names(self.replica_gpus, names, 0 if self.replica_gpus else self.gpus_per_worker)

    def _check_replicas(self) -> None:
        key, sizes = "resources.gpus_per_worker", self.replica_gpus
        if not sizes:
            return
        check_by_type(key, sizes, at_most=64)
        if self.gpus_per_worker != gcd(*sizes.values()):
            raise wrong(key, f"{gcd(*sizes.values())}, the common divisor of all types", self.gpus_per_worker)
        for alternative in self.accelerators:
            each = self.worker_gpus([alternative.gpu_type]) if alternative.gpu_type else 1
            if each and alternative.gpus % each:
                expected = f"a multiple of {key}.{alternative.gpu_type}={each}"
                raise wrong("resources.accelerators", expected, str(alternative))
            if not each:
                raise InputError(
                    f"{key} must say how many for {alternative.gpu_type}, as resources.accelerators names it,"
                    f" got {', '.join(sizes)}"
                )


@dataclass(frozen=True, slots=True)
class Elastic:
    """The sizes that a job may have."""

    min_gpus: int = 1
    max_gpus: int | None = None  # None: as many as there are
    sizes: tuple[int, ...] = ()  # only these, ascending; they then make the range

    def __post_init__(self) -> None:
        """Check the values."""
        check_count("elastic.min", self.min_gpus)
        check_count("elastic.max", self.max_gpus)
        for size in self.sizes:
            check_count("elastic.sizes", size)
        if list(self.sizes) != sorted(set(self.sizes)):
            raise wrong("elastic.sizes", "whole numbers that grow", list(self.sizes))
        if self.sizes and (self.min_gpus, self.max_gpus) != (self.sizes[0], self.sizes[-1]):
            raise wrong(
                "elastic.min and elastic.max",
                f"left out or {self.sizes[0]} and {self.sizes[-1]} as elastic.sizes says",
                f"{self.min_gpus} and {self.max_gpus}",
            )
        if self.max_gpus is not None and self.max_gpus < self.min_gpus:
            raise wrong("elastic.max", f"at least elastic.min={self.min_gpus}", self.max_gpus)


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples that are trained on in one step."""

    policy: BatchPolicy = BatchPolicy.FIXED
    init: int | None = None  # of all GPUs together, as the script was tuned for
    max: int | None = None  # the largest that may be tried
    per_gpu: int | None = None  # the most that fit on one GPU of any type
    lr_scaling: str = ""  # how the learning rate follows, unless the script says; "" = as it does
    # The same by GPU type, where types differ; `per_gpu` is the least of these, for types that are not named.
    per_gpu_of: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values."""
        check_by_type("batch.per_gpu", self.per_gpu_of, at_most=MOST_SAMPLES)
        for key in ("init", "max", "per_gpu"):
            check_count(f"batch.{key}", getattr(self, key), at_most=MOST_SAMPLES)
        if self.per_gpu_of and self.per_gpu != (least := min(self.per_gpu_of.values())):
            raise wrong("batch.per_gpu", f"{least}, the least of all types", self.per_gpu)
        if self.init is not None and self.max is not None and self.max < self.init:
            raise wrong("batch.max", f"at least batch.init={self.init}", self.max)
        if self.lr_scaling and self.lr_scaling not in (*LR_SCALINGS, *RULES_BEFORE):
            raise InputError(
                f"batch.lr_scaling: unknown rule {self.lr_scaling!r}, "
                f"{did_you_mean(self.lr_scaling, LR_SCALINGS)}"
            )

    def most_on(self, names: Iterable[str]) -> int | None:
        """The most samples that fit on one GPU of a type with these names; None where that is not said."""
        return by_names(self.per_gpu_of, names, self.per_gpu)


@dataclass(frozen=True, slots=True)
class Worth:
    """What finishing by a time is worth. Logs have more than `MOST_WORTH`, which job files could once say."""

    by: When
    worth: float

    def __post_init__(self) -> None:
        """Check the value."""
        check_number("rewards: worth", self.worth, above=0.0, at_most=1e12)


@dataclass(frozen=True, slots=True)
class Stop:
    """When the training is done: after so many steps, so many epochs, or once a metric is reached."""

    steps: int | None = None
    epochs: int | None = None
    metric: str = ""
    target: float | None = None  # reached or exceeded at the end of an epoch
    max_epochs: int | None = None  # done then at the latest

    def __post_init__(self) -> None:
        """Check that it is one of the three."""
        check_count("stop.steps", self.steps, at_most=MOST_SAMPLES)
        check_count("stop.epochs", self.epochs, at_most=MOST_SAMPLES)
        check_count("stop.max", self.max_epochs, at_most=MOST_SAMPLES)
        by_metric = (bool(self.metric), self.target is not None, self.max_epochs is not None)
        if any(by_metric) and not all(by_metric):
            missing = [
                key for key, there in zip(("metric", "target", "max"), by_metric, strict=True) if not there
            ]
            raise InputError(f"stop: metric, target and max go together, missing {' and '.join(missing)}")
        if (self.steps is not None) + (self.epochs is not None) + any(by_metric) != 1:
            raise InputError("stop must say one of steps, epochs, or metric with target and max")
        if self.metric:
            check_line("stop.metric", self.metric, 63)
        if self.target is not None and not isfinite(self.target):
            raise wrong("stop.target", "a finite number", self.target)


@dataclass(frozen=True, slots=True)
class Serving:
    """What a job that answers requests promises."""

    latency_s: float  # of each request, from its arrival to its answer
    requests_per_s: float  # up to which it holds

    def __post_init__(self) -> None:
        """Check the values."""
        check_number("serving.latency", self.latency_s, above=0.0, at_most=3600.0)
        check_number("serving.requests_per_s", self.requests_per_s, above=0.0, at_most=1e9)


@dataclass(frozen=True, slots=True)
class Upload:
    """What a job has brought along, which its workers begin in a copy of."""

    digest: str  # SHA-256 of its manifest
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the script keeps its state, and how often."""

    dir: str = ""  # "" = where the service puts it
    every_s: float | None = None  # None: as the script does

    def __post_init__(self) -> None:
        """Check the values."""
        check_path("checkpoint.dir", self.dir)
        check_seconds("checkpoint.every", self.every_s, at_least=1.0)


@dataclass(frozen=True, slots=True)
class Restart:
    """What follows a failure. Being stopped by us, and lost nodes, do not count."""

    max: int = 0  # so often
    on_exit: tuple[int, ...] = ()  # only after these exit statuses; empty = any

    def __post_init__(self) -> None:
        """Check the values."""
        check_count("restart.max", self.max, at_least=0, at_most=1_000_000)
        for status in self.on_exit:
            check_count("restart.on_exit", status, at_least=1, at_most=255)
        if len(set(self.on_exit)) != len(self.on_exit):
            raise wrong("restart.on_exit", "different exit statuses", list(self.on_exit))


@dataclass(frozen=True, slots=True)
class Array:
    """One job for each index."""

    indices: tuple[int, ...]
    at_once: int | None = None  # at most so many at the same time

    def __post_init__(self) -> None:
        """Check the values."""
        if not 1 <= len(self.indices) <= MOST_TASKS:
            raise wrong("array", f"1 to {MOST_TASKS} indices", f"{len(self.indices)} of them")
        if list(self.indices) != sorted(set(self.indices)) or self.indices[0] < 0:
            raise wrong("array", "indices >= 0 that grow", list(self.indices[:9]))
        check_count("array", self.indices[-1], at_least=0, at_most=2**31 - 1)
        check_count("array: how many at once", self.at_once)


@dataclass(frozen=True, slots=True)
class Dependency:
    """A job that comes first."""

    job: str  # its id or name
    when: After = After.SUCCEEDED

    def __post_init__(self) -> None:
        """Check the name."""
        check_name("depends_on", self.job)


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where to send what happens, and which of it."""

    url: str
    on: tuple[WebhookEvent, ...] = (WebhookEvent.COMPLETED, WebhookEvent.FAILED, WebhookEvent.TIMEOUT)

    def __post_init__(self) -> None:
        """Check the values."""
        check_line("notify", self.url, 2048)
        scheme, _, rest = self.url.partition("://")
        if scheme not in {"http", "https"} or not rest or rest.startswith("/") or " " in self.url:
            raise wrong("notify", "an address that starts with http:// or https://", self.url)
        if not self.on or len(set(self.on)) != len(self.on):
            raise wrong("notify: on", "different moments, at least one", [str(one) for one in self.on])


def _list(accelerators: tuple[Accelerators, ...]) -> str:
    return ", ".join(map(str, accelerators))
