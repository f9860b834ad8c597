"""The schema of a job file: what the reader takes it takes, and what no reader could take it refuses."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stretto.jobfile import schema
from stretto.jobfile.kubernetes_section import KEYS as OF_KUBERNETES
from stretto.jobfile.parts import After, BatchPolicy, WebhookEvent
from stretto.jobfile.stretto_file import (
    BATCH,
    CHECKPOINT,
    ELASTIC,
    KEYS,
    RESOURCES,
    RESTART,
    SERVING,
    STOP,
    spec_of,
)
from stretto.jobfile.yaml_tree import Entry, Section, read_tree, values_of
from stretto.model import InputError, Kind, Purpose

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
CHECK = jsonschema.Draft202012Validator(schema.file_schema())


def wrong_by_schema(text: str) -> list[str]:
    """What an editor would underline in a file."""
    return [error.message for error in CHECK.iter_errors(values_of(read_tree(text, "job.yaml")))]


def test_it_is_a_schema_and_has_the_keys_of_the_reader() -> None:
    CHECK.check_schema(schema.file_schema())
    assert schema.JOB_FILE.keys() == {*KEYS}
    parts = {
        "resources": RESOURCES,
        "elastic": ELASTIC,
        "batch": BATCH,
        "serving": SERVING,
        "stop": STOP,
        "restart": RESTART,
        "checkpoint": CHECKPOINT,
        "kubernetes": OF_KUBERNETES,
    }
    properties = schema.file_schema()["properties"]
    assert {key: properties[key]["properties"].keys() for key in parts} == {
        key: {*names} for key, names in parts.items()
    }


def test_every_key_is_explained_in_a_sentence() -> None:
    def keys_in(properties: dict[str, Any]) -> list[str]:
        own = [each.get("description", "") for each in properties.values()]
        return own + [text for each in properties.values() for text in keys_in(each.get("properties", {}))]

    texts = keys_in(schema.file_schema()["properties"])
    assert len(texts) > 60
    assert [text for text in texts if not text.endswith(".") or len(text.split()) > 25] == []


def shipped() -> list[Path]:
    """Job files of the examples, and those of other projects' kinds left out."""
    files = sorted((ROOT / "examples").glob("*.yaml"))
    assert files
    return files


@pytest.mark.parametrize("file", shipped(), ids=lambda file: file.name)
def test_the_examples_are_good_by_it(file: Path) -> None:
    assert wrong_by_schema(file.read_text()) == []


def test_the_files_on_the_page_of_jobs_are_good_by_it() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "jobs.md").read_text(), flags=re.M | re.S)
    whole = [block for block in blocks if re.search(r"^run:", block, flags=re.M)]
    assert len(whole) > 3
    assert [wrong for block in whole for wrong in wrong_by_schema(block)] == []


NAMES = st.sampled_from(["a", "train-1", "x.y", "1", "true"])
COUNTS = st.one_of(st.integers(1, 9), st.sampled_from(["3", "1_000"]))
DURATIONS = st.sampled_from(["90s", "30m", "4h", "1d12h", "1.5h", " 2h ", "250ms", "1h 30min", "2w"])
MOMENTS = DURATIONS | st.just("2030-01-31T18:00:00Z")
TRUTHS = st.sampled_from([True, False, "yes", "off"])
NUMBERS = st.one_of(st.integers(1, 9), st.floats(0.5, 9.5), st.just("2.5"))
ODD = st.sampled_from([0, -1, 2.5, "", "?", [], {}, [1], {"a": 1}, "12:30", True, "5"])
TEXTS = st.dictionaries(st.sampled_from(["A", "B_C"]), st.sampled_from(["x", 1, True, 2.5]), max_size=2)


def section(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=keys)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "run": st.sampled_from(["true", "python train.py"]),
    **dict.fromkeys(("name", "queue", "model", "workdir", "setup"), NAMES),
    **dict.fromkeys(("labels", "envs"), TEXTS),
    "image": st.sampled_from(["registry.example/team/train:1.2", "/shared/train.sif", 24]),
    "secrets": st.sampled_from([["A"], [], {"B_C": "x"}, {"A": 1}]),
    "priority": COUNTS | st.sampled_from([-5, "urgent"]),
    "resources": section(
        accelerators=st.sampled_from([8, "a100:8", "8", ["a100:2", "t4:2"], {"a100": 4, "t4": 4}]),
        gpus_per_worker=st.sampled_from([1, 2, "2", {"a100": 2, "t4": 4}]),
        heterogeneous=TRUTHS,
        within=st.sampled_from(["rack", "leaf", 7]),
        cpus=NUMBERS,
        memory=st.sampled_from(["64GB", "512MiB", 64, "1e3"]),
    ),
    "elastic": section(min=COUNTS, max=COUNTS, sizes=st.lists(COUNTS, max_size=3)),
    "batch": section(
        policy=st.sampled_from(list(map(str, BatchPolicy))),
        init=COUNTS,
        max=COUNTS,
        per_gpu=st.sampled_from([1, 64, "8", {"a100": 64, "t4": 16}]),
        lr_scaling=st.sampled_from(["linear", "sqrt", "fixed"]),
    ),
    "serving": st.fixed_dictionaries({"latency": DURATIONS, "requests_per_s": NUMBERS}),
    **dict.fromkeys(("deadline", "start_after"), MOMENTS),
    "rewards": st.lists(st.fixed_dictionaries({"by": MOMENTS, "worth": NUMBERS}), max_size=2),
    "stop": section(steps=COUNTS, epochs=COUNTS, metric=NAMES, target=NUMBERS, max=COUNTS),
    "checkpoint": section(dir=NAMES, every=DURATIONS),
    **dict.fromkeys(("preemptible", "hold"), TRUTHS),
    **dict.fromkeys(("grace_period", "max_time", "expected_time"), DURATIONS),
    "array": st.sampled_from([4, "0-9", "1,3,8-10", "0-99%4", [1, 2], ["3"]]),
    "depends_on": st.sampled_from(["a", ["a", 2], [{"job": "a", "when": str(After.ENDED)}]]),
    "restart": section(max=COUNTS, on_exit=st.lists(COUNTS, max_size=2, unique=True)),
    "notify": st.sampled_from(
        ["https://x.example/a", [{"url": "https://x.example", "on": [str(WebhookEvent.STARTED)]}]]
    ),
    "slurm": st.just({"partition": "gpu", "qos": 1}),
    "kubernetes": section(
        image=NAMES,
        volumes=st.just([{"name": "x"}]),
        pod=st.just({"x": 1}),
        image_pull_secrets=st.just(["a"]),
    ),
    "kind": st.sampled_from([str(member) for member in Kind]),
    "purpose": st.sampled_from([str(member) for member in Purpose]),
}


def test_all_keys_are_drawn() -> None:
    assert VALUES.keys() == {*KEYS}


@st.composite
def files(draw: st.DrawFn) -> str:
    """Job files, most of them good; in some a value, at any depth, is odd."""
    keys = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True))
    tree = {"run": draw(VALUES["run"])} | {key: draw(VALUES[key]) for key in keys}
    if draw(st.booleans()):
        key = draw(st.sampled_from(sorted(tree)))
        inner = tree[key]
        if isinstance(inner, dict) and inner and draw(st.booleans()):
            tree[key] = {**inner, draw(st.sampled_from(sorted(inner))): draw(ODD)}
        else:
            tree[key] = draw(ODD)
    text: str = yaml.safe_dump(tree)
    return text


@given(files())
def test_what_the_reader_takes_the_schema_takes(text: str) -> None:
    tree = read_tree(text, "job.yaml")
    assert isinstance(tree, Section)
    try:
        spec_of(Entry("job.yaml", tree, ""), "job")
    except InputError:
        return
    assert wrong_by_schema(text) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x", "'run' is a required property"),
        ("{run: x, nam: y}", "'nam' was unexpected"),
        ("{run: x, elastic: {mn: 1}}", "'mn' was unexpected"),
        ("{run: x, elastic: {min: 0}}", "0 is less than the minimum"),
        ("{run: x, kind: batchh}", "'batchh' is not one of"),
        ("{run: x, batch: {policy: best}}", "'best' is not one of"),
        ("{run: x, max_time: 90}", "90 is not of type 'string'"),
        ("{run: x, max_time: 90 minutes}", "does not match"),
        ("{run: x, name: [y]}", "is not of type"),
        ("{run: x, rewards: [{by: 4h}]}", "'worth' is a required property"),
        ("{run: x, kubernetes: {imag: y}}", "'imag' was unexpected"),
        ("{run: x, kubernetes: {volumes: {name: x}}}", "is not of type 'array'"),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_submitted(text: str, said: str) -> None:
    assert said in " ".join(wrong_by_schema(text))
