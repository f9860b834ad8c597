"""The specification of a job, and its form as JSON.

Frozen dataclasses to JSON values and back, exactly, by the types of their fields.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from math import isfinite
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from stretto.jobfile.kubernetes_section import check_kubernetes
from stretto.jobfile.parts import (
    ENVIRONMENT,
    LABEL,
    LARGEST_PRIORITY,
    RESERVED,
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
    Upload,
    Webhook,
    When,
    Worth,
    check_count,
    check_image,
    check_line,
    check_name,
    check_path,
    check_seconds,
    check_secret_name,
    check_text,
    plain,
    shown,
    wrong,
)
from stretto.model import InputError, Kind, Purpose
from stretto.suggestions import did_you_mean

PLAIN = frozenset({str, int, float, bool, type(None)})


def encoded(value: Any) -> Any:
    """JSON values: objects for dataclasses and mappings, lists for tuples, values for members."""
    kind: Any = type(value)
    if kind in PLAIN:
        return value
    if names := _names(kind):
        return {name: encoded(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: encoded(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [encoded(inner) for inner in value]
    return value


def decoded(hint: Any, value: Any, name: str) -> Any:
    """The value of type `hint` that `encoded` wrote as `value`. Raises InputError."""
    return _decoder_of_whole(hint)(value, name)


MOST_SHARED = 1_000  # records of one kind; chosen
Decoder = Callable[[Any, str], Any]  # of a value and its name


@cache
def _decoder_of_whole(hint: Any) -> Decoder:
    """As `_decoder`, of what is no part of anything, and so not shared."""
    return _record(hint) if is_dataclass(hint) else _decoder(hint)


@cache
def _decoder(hint: Any) -> Decoder:
    """How a type is read: looked at once, since whole logs are decoded."""
    if hint is Any:  # values of JSON that somebody else checks
        return lambda value, name: value
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        inner = _decoder(next(argument for argument in get_args(hint) if argument is not type(None)))
        return lambda value, name: None if value is None else inner(value, name)
    if is_dataclass(hint):
        return _shared(_record(hint))
    if origin is tuple:
        return _tuple(_decoder(get_args(hint)[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_decoder(get_args(hint)[1]))
    if issubclass(hint, Enum):
        return partial(_member, {str(member.value): member for member in hint})
    return partial(_plain, hint)


def _tuple(inner: Decoder) -> Decoder:
    def decode(value: Any, name: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise wrong(name, "a list", value)
        return tuple(inner(one, name) for one in value)

    return decode


def _mapping(inner: Decoder) -> Decoder:
    def decode(value: Any, name: str) -> dict[str, Any]:
        if not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
            raise wrong(name, "an object", value)
        return {key: inner(one, f"{name}.{plain(key)}") for key, one in value.items()}

    return decode


def _shared(decode: Decoder) -> Decoder:
    """Equal records are one object: most jobs ask for the same resources, say, and restart alike."""
    known: dict[str, Any] = {}

    def decode_once(value: Any, name: str) -> Any:
        text = repr(value)  # unlike equality it tells 1, 1.0 and True apart
        record = known.get(text)
        if record is None:  # it may be forgotten meanwhile: jobs are read in several threads
            record = decode(value, name)
            if len(known) >= MOST_SHARED:
                known.clear()
            known[text] = record
        return record

    return decode_once


def _record(hint: Any) -> Decoder:
    decoders = {key: _decoder(inner) for key, inner in get_type_hints(hint).items()}

    def decode(value: Any, name: str) -> Any:
        if not isinstance(value, dict):
            raise wrong(name, "an object", value)
        for key in value:
            if key not in decoders:
                known = did_you_mean(str(key), decoders)
                raise InputError(f"{name}: unknown key {shown(key)}, {known}")
        made = {key: decoders[key](inner, f"{name}.{key}") for key, inner in value.items()}
        try:
            return hint(**made)
        except TypeError as error:  # a field without a default is missing
            raise InputError(f"{name}: {error}") from None

    return decode


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """Names of the fields of a dataclass; none of anything else."""
    return tuple(entry.name for entry in fields(kind)) if is_dataclass(kind) else ()


def _member(choices: Mapping[str, Enum], value: Any, name: str) -> Enum:
    if not isinstance(value, str) or value not in choices:
        raise wrong(name, f"one of {', '.join(choices)}", value)
    return choices[value]


def _plain(hint: Any, value: Any, name: str) -> Any:
    if hint is str and type(value) is str:
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if not isfinite(number):
            raise wrong(name, "a finite number", value)
        return number
    if type(value) is not hint:
        expected = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[hint]
        raise wrong(name, expected, value)
    return value


# ── what somebody asks for when submitting a job: frozen, checked, and exactly what the log stores of it ────


Value = TypeVar("Value")
MOST_LABELS = 64
MOST_VARIABLES = 1024
MOST_SECRETS = 32  # of one job; chosen
OF_SLURM = ("partition", "account", "qos", "constraint", "reservation")  # as sbatch calls them


def plain_key(default: Value, at_least: int = 0, at_most: int = 1_000_000) -> Value:
    """A key that is a number, a text, a choice, or true or false, and needs nothing but this line.

    Job files have it, it is checked, and a field of `Job` of the same name takes its value.
    A choice is a member of a StrEnum. at_least, at_most: bounds of a number; at_most is the longest text.
    """
    return field(default=default, metadata={"at_least": at_least, "at_most": at_most})


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as submitted. Fields are the keys of a job file; only `run` is required.

    Invariants: those of its parts; a deadline or rewards, not both. The size asked for lies in the elastic
    range, and without one every alternative asks for the same size. Sizes are whole workers.
    """

    run: str  # for a shell, once for each worker
    name: str = "job"
    labels: Mapping[str, str] = field(default_factory=dict)
    queue: str = ""
    priority: int = 0  # larger is sooner
    priority_class: str = ""  # by name, instead of a number
    kind: Kind = plain_key(Kind.BATCH)  # whether people wait for it
    purpose: Purpose = plain_key(Purpose.TRAINING)  # what it does with its model
    setup: str = ""  # for a shell, before `run`, once on each node of an attempt
    workdir: str = ""  # "" = as the service says; else absolute, or below where it says, or in the upload
    image: str = ""  # of the container in which workers run; "": as the backend says, or on the node itself
    upload: Upload | None = None  # what it has brought along; no key of a file, which knows no digest
    envs: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)  # by variable, the name of a secret of its owner
    resources: Resources = field(default_factory=Resources)
    elastic: Elastic | None = None  # None: exactly as many GPUs as asked for
    batch: Batch = field(default_factory=Batch)
    serving: Serving | None = None  # what it promises, where its purpose is serving
    deadline: When | None = None
    rewards: tuple[Worth, ...] = ()
    stop: Stop | None = None  # None: when the script ends
    checkpoint: Checkpoint | None = None  # None: it keeps nothing when it is stopped, as far as we know
    preemptible: bool = False
    grace_period_s: float = 30.0  # between asking to stop and killing; chosen: as on Kubernetes
    max_time_s: float | None = None  # of running, restarts included
    hold: bool = plain_key(False)  # it waits until somebody releases it
    start_after: When | None = None
    array: Array | None = None
    depends_on: tuple[Dependency, ...] = ()
    restart: Restart = field(default_factory=Restart)
    notify: tuple[Webhook, ...] = ()
    # What it trains; jobs of one model share what is known of its speed
    model: str = plain_key("", at_most=128)
    expected_time_s: float | None = None  # of running on what it asks for, as its owner believes
    slurm: Mapping[str, str] = field(default_factory=dict)  # what it asks of Slurm; elsewhere nothing
    # What it asks of Kubernetes: image, volumes and so on, as the API writes them; elsewhere nothing
    kubernetes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values and how they go together."""
        if not self.run.strip():
            raise wrong("run", "a command", self.run)
        check_text("run", self.run)
        check_text("setup", self.setup)
        check_name("name", self.name)
        if self.queue:
            check_name("queue", self.queue)
        check_path("workdir", self.workdir)
        self._check_image()
        check_line("priority", self.priority_class, 63)
        check_count("priority", self.priority, -LARGEST_PRIORITY, LARGEST_PRIORITY)
        check_seconds("grace_period", self.grace_period_s)
        check_seconds("max_time", self.max_time_s, at_least=1.0)
        check_seconds("expected_time", self.expected_time_s, at_least=1.0)
        self._check_plain_keys()
        self._check_mappings()
        self._check_sizes()
        self._check_purpose()
        self._check_rewards()

    @property
    def gpus(self) -> int:
        """GPUs that the job asks for first."""
        asked = self.resources.accelerators[0].gpus if self.resources.accelerators else 0
        fewest = self.elastic.min_gpus if self.elastic else 1
        each = self.resources.gpus_per_worker if self.elastic else self.resources.gpus_of_whole_workers
        return asked or max(-(-fewest // each) * each, min(self.resources.replica_gpus.values(), default=1))

    @property
    def measured_as(self) -> str:
        """Under which name jobs share what was measured of their speed; "": they do not.

        A pass forward of a job that serves is no step of a training.
        """
        return f"{self.purpose}:{self.model}" if self.model and self.serving is not None else self.model

    @property
    def named_image(self) -> str:
        """The image that the job names, also where it is for Kubernetes alone; "": none."""
        return self.image or str(self.kubernetes.get("image", ""))

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_json` turns into an equal specification. Every field is there."""
        value: dict[str, Any] = encoded(self)
        return value

    @staticmethod
    def from_json(value: object) -> "JobSpec":
        """The specification that `to_json` wrote; what is missing takes its default. Raises InputError."""
        spec: JobSpec = decoded(JobSpec, value, "job")
        return spec

    def _check_plain_keys(self) -> None:
        for name, one in PLAIN_KEYS.items():
            value, least, most = getattr(self, name), one.metadata["at_least"], one.metadata["at_most"]
            if isinstance(value, str):
                check_line(name, value, most)
            elif not (isinstance(value, bool) or least <= value <= most):
                kind = "a whole number" if isinstance(value, int) else "a number"
                raise wrong(name, f"{kind} from {least} to {most}", value)

    def _check_image(self) -> None:
        """One image at most, in words of its own or in those of Kubernetes."""
        if not self.image:
            return
        check_image("image", self.image)
        there = self.kubernetes.get("image", self.image)
        if there != self.image:
            raise InputError(
                f"image and kubernetes.image say different things: {shown(self.image)} and {shown(there)};"
                " one of them suffices"
            )

    def _check_mappings(self) -> None:
        if len(self.labels) > MOST_LABELS:
            raise wrong("labels", f"at most {MOST_LABELS} labels", len(self.labels))
        for key, value in self.labels.items():
            if not LABEL.fullmatch(key):
                raise wrong(
                    "labels: a key", "1 to 128 letters, digits, dots, dashes, underscores and slashes", key
                )
            check_line(f"labels.{key}", value)
        if len(self.envs) > MOST_VARIABLES:
            raise wrong("envs", f"at most {MOST_VARIABLES} variables", len(self.envs))
        for key, value in self.envs.items():
            if not ENVIRONMENT.fullmatch(key):
                raise wrong("envs: a name", "letters, digits and underscores, no digit first", key)
            if key.startswith(RESERVED):
                raise wrong(
                    "envs: a name", f"one that does not start with {RESERVED}, which Stretto sets", key
                )
            check_text(f"envs.{key}", value)
        self._check_secrets()
        check_kubernetes(self.kubernetes)
        for key, value in self.slurm.items():
            if key not in OF_SLURM:
                raise wrong("slurm: a key", f"one of {', '.join(OF_SLURM)}", key)
            check_line(f"slurm.{key}", value)

    def _check_secrets(self) -> None:
        if len(self.secrets) > MOST_SECRETS:
            raise wrong("secrets", f"at most {MOST_SECRETS} secrets", len(self.secrets))
        for key, name in self.secrets.items():
            if not ENVIRONMENT.fullmatch(key):
                expected = "letters, digits and underscores, no digit first; else say VARIABLE: NAME"
                raise wrong("secrets: a variable", expected, key)
            if key.startswith(RESERVED):
                expected = f"one that does not start with {RESERVED}, which Stretto sets"
                raise wrong("secrets: a variable", expected, key)
            if key in self.envs:
                raise wrong("secrets: a variable", "one that is not also in envs", key)
            check_secret_name(f"secrets.{key}", name)

    def _check_sizes(self) -> None:
        asks = {alternative.gpus for alternative in self.resources.accelerators}
        resources = self.resources
        each = resources.gpus_per_worker if self.elastic else resources.gpus_of_whole_workers
        if self.elastic is not None and self.elastic.sizes and resources.replica_gpus:
            raise InputError(
                "elastic.sizes and resources.gpus_per_worker by type exclude each other: say elastic.min and"
                " elastic.max"
            )
        if resources.heterogeneous and self.batch.policy is BatchPolicy.ADAPTIVE:
            raise InputError(
                "resources.heterogeneous and batch.policy adaptive exclude each other: how fast a batch is on"
                " several GPU types at once is not known"
            )
        if self.elastic is None:
            if len(asks) > 1:
                alternatives = " or ".join(map(str, self.resources.accelerators))
                raise InputError(
                    "resources.accelerators must ask for as many GPUs of every type, "
                    f"got {alternatives}; elastic.min and elastic.max would give a range"
                )
            if self.batch.policy is BatchPolicy.ADAPTIVE:
                raise InputError(
                    "batch.policy adaptive needs a range of sizes: say elastic.min and elastic.max"
                )
            sizes = [("resources.accelerators", gpus) for gpus in asks]
        else:
            most = self.elastic.max_gpus
            for gpus in asks - {0}:
                if gpus < self.elastic.min_gpus or (most is not None and gpus > most):
                    raise wrong(
                        "resources.accelerators",
                        f"within elastic.min={self.elastic.min_gpus} and elastic.max={most or 'unlimited'}",
                        gpus,
                    )
                if self.elastic.sizes and gpus not in self.elastic.sizes:
                    raise wrong(
                        "resources.accelerators", f"one of elastic.sizes={list(self.elastic.sizes)}", gpus
                    )
            sizes = [("resources.accelerators", gpus) for gpus in asks]
            sizes += [("elastic.sizes", size) for size in self.elastic.sizes]
            sizes += [("elastic.max", most)] if most is not None else []
        for key, gpus in sizes:
            if gpus % each and resources.replica_gpus:
                words = ", ".join(f"{count} on {name}" for name, count in resources.replica_gpus.items())
                raise wrong(key, f"a multiple of {each}, whole workers on each GPU type ({words})", gpus)
            if gpus % each:
                raise wrong(key, f"a multiple of resources.gpus_per_worker={each}", gpus)
        for name, worker in resources.replica_gpus.items():
            if self.elastic and worker > (self.elastic.max_gpus or worker):
                expected = f"at least one worker of {worker} GPUs on {name}"
                raise wrong("elastic.max", expected, self.elastic.max_gpus)
        if self.elastic and self.elastic.max_gpus is not None and self.gpus > self.elastic.max_gpus:
            raise wrong("elastic.max", f"at least one worker of {each} GPUs", self.elastic.max_gpus)

    def _check_purpose(self) -> None:
        """A job that only infers learns nothing, and each of its workers keeps a batch of its own."""
        serves = self.purpose is Purpose.SERVING
        if serves is not (self.serving is not None):
            there = "serving" if self.serving is not None else "no serving"
            raise InputError(
                f"purpose {Purpose.SERVING} and serving go together: expected both or none,"
                f" got purpose {self.purpose} and {there}"
            )
        if self.purpose is Purpose.TRAINING:
            return
        stop, batch = self.stop, self.batch
        of_trainings = (
            ("batch.policy", batch.policy.value if batch.policy is BatchPolicy.ADAPTIVE else ""),
            ("batch.lr_scaling", batch.lr_scaling),
            ("stop.epochs", stop.epochs if stop is not None else None),
            ("stop.metric", stop.metric if stop is not None else ""),
            ("stop.steps", stop.steps if stop is not None and serves else None),
            ("resources.heterogeneous", self.resources.heterogeneous and serves),
        )
        for key, value in of_trainings:
            if value:
                raise InputError(
                    f"purpose {self.purpose} and {key} exclude each other: expected no {key}, got"
                    f" {shown(value)}"
                )

    def _check_rewards(self) -> None:
        if self.deadline is not None and self.rewards:
            raise InputError("deadline and rewards exclude each other: give one of them")
        for sooner, later in zip(self.rewards, self.rewards[1:], strict=False):
            if later.worth > sooner.worth:
                raise wrong("rewards", f"of falling worth, {sooner.worth:g} first", later.worth)
            comparable = (sooner.by.after_s is None) == (later.by.after_s is None)
            if comparable and later.by.seconds(0.0, 0.0) <= sooner.by.seconds(0.0, 0.0):
                raise InputError("rewards must be listed by time, the soonest first")


PLAIN_KEYS: Mapping[str, Field[Any]] = {one.name: one for one in fields(JobSpec) if one.metadata}
