"""Specifications of every shape, for properties."""

from collections.abc import Callable
from dataclasses import Field, replace
from enum import StrEnum
from math import gcd
from typing import Any

from hypothesis import strategies as st

from stretto.estimate.learning_rate import RULES
from stretto.jobfile import (
    Accelerators,
    After,
    Array,
    Batch,
    BatchPolicy,
    Checkpoint,
    Dependency,
    Elastic,
    JobSpec,
    Resources,
    Restart,
    Serving,
    Stop,
    Webhook,
    WebhookEvent,
    When,
    Worth,
)
from stretto.jobfile.spec import PLAIN_KEYS
from stretto.model import Purpose

NAMES = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
SECONDS = st.floats(1.0, 1e8)
WHENS = st.builds(When, at_unix_s=st.floats(1.0, 2e11)) | st.builds(When, after_s=SECONDS)
FALLING = st.lists(st.floats(0.01, 1e9), max_size=3).map(lambda worths: sorted(worths, reverse=True))
COUNTS = st.integers(1, 1_000)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """Resources, range and batch that go together."""
    each = draw(st.integers(1, 4))
    elastic = draw(st.sampled_from(["", "range", "open", "sizes"]))
    workers = sorted(draw(st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True)))
    names = draw(st.lists(NAMES, max_size=3, unique_by=str.lower))
    asked = draw(st.sampled_from([0, *(each * count for count in workers)]))
    made: dict[str, Any] = {
        "resources": Resources(
            tuple(Accelerators(name, asked) for name in names),
            each,
            draw(maybe(st.floats(0.1, 1e4))),
            draw(maybe(st.floats(0.1, 1e6))),
            within=draw(st.sampled_from(["", "rack"])),
        )
    }
    if elastic == "sizes":
        span = tuple(each * count for count in workers)
        made["elastic"] = Elastic(span[0], span[-1], span)
    elif elastic:
        made["elastic"] = Elastic(each * workers[0], each * workers[-1] if elastic == "range" else None)
    policies = list(BatchPolicy) if elastic else [BatchPolicy.FIXED]
    init = draw(maybe(COUNTS))
    made["batch"] = Batch(
        draw(st.sampled_from(policies)),
        init,
        draw(maybe(st.integers(init or 1, 10**6))),
        draw(maybe(COUNTS)),
        draw(st.sampled_from(["", *RULES])),
    )
    fits = draw(st.dictionaries(NAMES, COUNTS, max_size=2))
    if fits and len({name.lower() for name in fits}) == len(fits):
        made["batch"] = replace(made["batch"], per_gpu=min(fits.values()), per_gpu_of=fits)
    by_type = draw(st.dictionaries(NAMES, st.sampled_from([1, 2, 4]), min_size=1, max_size=2))
    if elastic == "open" and len({name.lower() for name in by_type}) == len(by_type) and draw(st.booleans()):
        shared = {"gpus_per_worker": gcd(*by_type.values()), "replica_gpus": by_type}
        made["resources"] = replace(made["resources"], accelerators=(), **shared)
    return made


STOPS = (
    st.builds(Stop, steps=COUNTS)
    | st.builds(Stop, epochs=COUNTS)
    | st.builds(
        Stop, metric=NAMES, target=st.floats(allow_nan=False, allow_infinity=False), max_epochs=COUNTS
    )
)
ARRAYS = st.builds(
    Array,
    st.lists(st.integers(0, 10**6), min_size=1, max_size=5, unique=True).map(
        lambda some: tuple(sorted(some))
    ),
    maybe(COUNTS),
)
NOTICES = st.builds(
    Webhook,
    NAMES.map("https://{}.example/x".format),
    st.lists(st.sampled_from(WebhookEvent), min_size=1, unique=True).map(tuple),
)


PLAIN: dict[type, Callable[[Field[Any]], st.SearchStrategy[Any]]] = {
    bool: lambda _: st.booleans(),
    int: lambda one: st.integers(one.metadata["at_least"], one.metadata["at_most"]),
    float: lambda one: st.floats(one.metadata["at_least"], one.metadata["at_most"]),
    str: lambda one: TEXTS.filter(lambda text: len(text) <= one.metadata["at_most"]),
}


def plain_values(key: Field[Any]) -> st.SearchStrategy[Any]:
    """Values of a key that needs nothing but its declaration."""
    kind = type(key.default)
    return st.sampled_from(kind) if issubclass(kind, StrEnum) else PLAIN[kind](key)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """Any specification that there can be."""
    timed = draw(st.sampled_from(["", "deadline", "rewards"]))
    values = {name: draw(plain_values(key)) for name, key in PLAIN_KEYS.items()}
    stop, sized = draw(maybe(STOPS)), draw(sizes())
    batch = sized["batch"]
    learns = batch.policy is BatchPolicy.ADAPTIVE or batch.lr_scaling or (stop and stop.steps is None)
    if learns:
        values["purpose"] = Purpose.TRAINING
    serves = values["purpose"] is Purpose.SERVING and not stop and not sized["resources"].heterogeneous
    if values["purpose"] is Purpose.SERVING and not serves:
        values["purpose"] = Purpose.BATCH_INFERENCE
    positive = st.floats(0.0, 3600.0, exclude_min=True)
    after_s = sorted(draw(st.lists(SECONDS, min_size=3, max_size=3, unique=True)))
    worths = draw(FALLING)
    return JobSpec(
        run=draw(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
        + " train",
        name=draw(NAMES),
        labels=draw(st.dictionaries(NAMES, TEXTS, max_size=3)),
        queue=draw(st.just("") | NAMES),
        priority=draw(st.integers(-1_000_000, 1_000_000)),
        setup=draw(TEXTS),
        workdir=draw(st.sampled_from(["", "a/b", "/scratch/x", "~/y"])),
        image=draw(st.sampled_from(["", "registry.example/team/train:1.2", "/shared/train.sif"])),
        envs=draw(
            st.dictionaries(st.from_regex(r"[A-RT-Z_][A-Z0-9_]{0,8}", fullmatch=True), TEXTS, max_size=3)
        ),
        deadline=draw(WHENS) if timed == "deadline" else None,
        rewards=tuple(Worth(When(after_s=by), worth) for by, worth in zip(after_s, worths, strict=False))
        if timed == "rewards"
        else (),
        stop=stop,
        serving=draw(st.builds(Serving, positive, positive)) if serves else None,
        checkpoint=draw(maybe(st.builds(Checkpoint, st.sampled_from(["", "ckpt"]), maybe(SECONDS)))),
        preemptible=draw(st.booleans()),
        grace_period_s=draw(st.floats(0.0, 1e5)),
        max_time_s=draw(maybe(SECONDS)),
        start_after=draw(maybe(WHENS)),
        array=draw(maybe(ARRAYS)),
        depends_on=tuple(draw(st.lists(st.builds(Dependency, NAMES, st.sampled_from(After)), max_size=3))),
        restart=Restart(
            draw(st.integers(0, 9)), tuple(draw(st.lists(st.integers(1, 255), unique=True, max_size=3)))
        ),
        notify=tuple(draw(st.lists(NOTICES, max_size=2))),
        expected_time_s=draw(maybe(SECONDS)),
        **values,
        **sized,
    )
