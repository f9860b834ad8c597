"""Whatever is thrown at it, a submission is a job or one line; and soon."""

import json
import os
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.client.messages import submission
from stretto.jobfile import MOST_BYTES, JobSpec, read_submission, yaml_tree
from stretto.jobfile.stretto_file import BATCH, ELASTIC, KEYS, RESOURCES, STOP
from stretto.model import InputError

from .test_neighbours import PICKY, SKY, TRAIN_JOB, pytorch_job
from .test_stretto_file import EVERYTHING

SOON_S = 5.0  # of a processor: far above what is needed, far below what a trap would take


def understood_or_refused(text: str) -> None:
    said = ""
    try:
        spec, warnings = read_submission(text)
    except InputError as error:
        said = str(error)
    if said:
        assert len(said.splitlines()) == 1
        assert len(said) < 1_000
        return
    assert JobSpec.from_json(spec.to_json()) == spec
    assert all(len(warning.splitlines()) == 1 for warning in warnings)


WORDS = (
    *(*KEYS, *RESOURCES, *ELASTIC, *BATCH, *STOP, "by", "worth", "job", "when", "url", "on", "num_nodes"),
    *("apiVersion", "kind", "spec", "kubeflow.org/v1", "PyTorchJob", "TrainJob", "pytorchReplicaSpecs"),
    *("Master", "trainer", "command", "containers", "template", "env", "any_of", "A100:8", "4h", "1e400"),
    *("-1", "0", "9" * 30, "2030-01-31T18:00:00Z", "0001-01-01T00:00:00+14:00", "1-3%2", "~", "<<"),
    *("\x00", "\ud800", "é漢", "nan", "!!int", "*a", "&a", "a\nb", "x\x85y", "k" * 500),
)
SCALARS = (
    st.sampled_from(WORDS) | st.text(max_size=8) | st.integers() | st.floats() | st.none() | st.booleans()
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=25,
)


@settings(max_examples=scaled(100), deadline=None)
@given(document=st.dictionaries(st.sampled_from(WORDS), TREES, max_size=8))
def test_any_document_is_understood_or_refused(document: dict[str, object]) -> None:
    understood_or_refused(yaml.safe_dump({"run": "x"} | document, allow_unicode=True))


VALID = [
    yaml.load(text, yaml.BaseLoader)  # all scalars as texts
    for text in (EVERYTHING, SKY, TRAIN_JOB, pytorch_job(PICKY, PICKY, "runPolicy: {backoffLimit: 1}"))
]


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a document with every key or index of it."""
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(inside):
        yield document, key
        if isinstance(value, dict | list):
            yield from places(value)


@settings(max_examples=scaled(300), deadline=None)
@given(data=st.data(), document=st.sampled_from(VALID), values=st.lists(TREES, min_size=1, max_size=2))
def test_a_valid_document_with_a_few_other_values_is_understood_or_refused(
    data: st.DataObject, document: dict[str, Any], values: list[object]
) -> None:
    changed = deepcopy(document)
    for value in values:
        container, key = data.draw(st.sampled_from(list(places(changed))))
        container[key] = value
    understood_or_refused(yaml.safe_dump(changed, allow_unicode=True))


@settings(max_examples=scaled(300), deadline=None)
@given(text=st.text() | st.text(st.sampled_from("ab:-?[]{}&*!|>'\"%@`#,<~ \n\t0"), max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    understood_or_refused(text)
    understood_or_refused(f"run: x\nname: {text}")


OPTIONS = st.sampled_from(
    (
        *(
            "-G",
            "-N",
            "-n",
            "-t",
            "-p",
            "-a",
            "-d",
            "-b",
            "-c",
            "-D",
            "-J",
            "-H",
            "--x",
            "--requeue",
            "--gres",
        ),
        *(
            "--gres=gpu:",
            "--gpus=",
            "--time=",
            "--array=",
            "--dependency=",
            "--begin=",
            "--signal=",
            "--mem=",
        ),
    )
)


@settings(max_examples=scaled(200), deadline=None)
@given(parts=st.lists(st.tuples(OPTIONS, st.text(max_size=8) | st.sampled_from(WORDS)), max_size=4))
def test_any_batch_script_is_understood_or_refused(parts: list[tuple[str, str]]) -> None:
    header = "".join(f"#SBATCH {option}{value}\n" for option, value in parts)
    understood_or_refused(f"#!/bin/sh\n{header}true\n")


def bomb(levels: int, each: int = 9) -> str:
    inside = (f"  a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * each)}]" for level in range(1, levels))
    return "\n".join(["run: x", "labels:", "  a0: &a0 [x]", *inside])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(bomb(12), "at most 50000 values, aliases counted in full", id="aliases of aliases"),
        pytest.param("run: x\nenvs: " + "[" * 100_000, "at most 40 levels", id="deep lists"),
        pytest.param("run: x\nenvs: " + "{a: " * 100_000, "at most 40 levels", id="deep keys"),
        pytest.param("- " * 100_000, "at most 40 levels", id="deep dashes"),
        pytest.param("run: x\nenvs: [" + "1," * 500_000 + "]", "at most 50000 values", id="many values"),
        pytest.param("run: x\npriority: " + "9" * 1_000_000, "must be a whole number", id="a long number"),
        pytest.param("run: x\ndeadline: " + "1s" * 500_000, "deadline must be", id="a long duration"),
        pytest.param("run: x\narray: " + "1-9999," * 100_000, "array must be", id="many ranges"),
        pytest.param("run: x\narray: 0-999999999", "array must be", id="a wide range"),
        pytest.param("#SBATCH " + "a" * 1_000_000, "at most 4096 characters", id="a long option"),
        pytest.param("\n" * 1_000_000, "got nothing", id="empty lines"),
        pytest.param("'" * 1_000_000, "job file", id="quotes"),
    ],
)
def test_a_trap_is_refused_soon(text: str, said: str) -> None:
    began_s = time.process_time()
    with pytest.raises(InputError, match=said):
        read_submission(text)
    assert time.process_time() - began_s < SOON_S


def test_warnings_are_not_endless() -> None:
    _, warnings = read_submission("#!/bin/sh\n#SBATCH -G1\n" + "#SBATCH --x\n" * 5_000)
    assert (len(warnings), warnings[-1]) == (101, "and 4900 more of that kind")


def test_a_long_script_is_read_soon() -> None:
    began_s = time.process_time()
    with pytest.raises(InputError, match="run, with setup: expected at most"):
        read_submission("#!/bin/bash\n" + "\n" * 500_000 + "python x\n" + " " * 500_000)
    assert time.process_time() - began_s < SOON_S


def test_a_hundred_megabytes_are_refused_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr("stretto.jobfile.yaml_tree.yaml.parse", never)
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.write(b"run: x\n")
        file.truncate(100 << 20)
    began_s = time.process_time()
    with pytest.raises(InputError, match=f"expected at most {MOST_BYTES} bytes"):
        read_submission(path)
    assert time.process_time() - began_s < SOON_S / 5
    with pytest.raises(InputError, match="bytes"):
        read_submission("run: x # " + "é" * (MOST_BYTES // 2))


HERE = "/data/ada's train"
POD = (
    "kind: PyTorchJob\nspec: {pytorchReplicaSpecs: {Worker: {replicas: 1, template: {spec: {containers: "
    "[{name: pytorch, command: [x]}]}}}}}"
)


def test_a_file_as_large_as_may_be_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.job.yaml"
    path.write_text("run: x\n#".ljust(MOST_BYTES, "#"))
    assert read_submission(path)[0] == JobSpec(run="x", name="train")


@pytest.mark.parametrize(
    ("name", "job"),
    [("bert.yaml", "bert"), ("a b.yaml", "job"), (".yaml", "job"), ("run.sh", "run")],
)
def test_a_job_without_a_name_is_called_after_its_file(tmp_path: Path, name: str, job: str) -> None:
    (tmp_path / name).write_text("run: x")
    assert read_submission(tmp_path / name)[0].name == job
    assert read_submission("run: x", name)[0].name == job
    assert read_submission("run: x", f"there/{name}")[0].name == job


@pytest.mark.parametrize(
    ("text", "workdir"),
    [
        pytest.param("run: python train.py\n", HERE, id="our file"),
        pytest.param("run: |\n  python train.py\n  true", HERE, id="a command of several lines at the end"),
        pytest.param("  run: x\n  name: y\n", HERE, id="a file that begins further right"),
        pytest.param("---\nrun: x\n...\n", HERE, id="a document with its end"),
        pytest.param('{"run": "true"}', HERE, id="one line of JSON"),
        pytest.param("run: 'true'\nworkdir: /there\n", "/there", id="a file that says where"),
        pytest.param("'run': x\n'workdir': /there\n", "/there", id="with its keys in quotes"),
        pytest.param("#!/bin/sh\n#SBATCH --gres=gpu:1\npython train.py\n", HERE, id="a batch script"),
        pytest.param("# mine\n#SBATCH --gres=gpu:1\ntrue\n", HERE, id="a script without an interpreter"),
        pytest.param("#!/bin/sh\n#SBATCH -D /there\ntrue\n", "/there", id="a script that says where"),
        pytest.param("workdir: .\nresources: {accelerators: A100}\nnum_nodes: 1\nrun: x", HERE, id="a task"),
        pytest.param("apiVersion: kubeflow.org/v1\n" + POD, "", id="a manifest of Kubernetes"),
    ],
)
def test_a_job_that_does_not_say_where_runs_where_it_was_submitted(text: str, workdir: str) -> None:
    spec, _ = read_submission(text, workdir=HERE)
    assert spec.workdir == workdir
    if text.startswith("#"):
        assert spec.run == text, "what is run is the script as it was written"


@pytest.mark.parametrize("run", ["echo 🎻🎻", "echo \\ud83c\\udfbb", "echo \\\\🎻", "é"])
def test_json_may_write_every_character_as_its_writers_do(run: str) -> None:
    assert read_submission(json.dumps({"run": run}))[0].run == run


def test_marks_of_other_editors_do_no_harm() -> None:
    assert read_submission("\ufeffrun: x\r\nname: y\r\n")[0] == JobSpec(run="x", name="y")


@pytest.mark.parametrize(
    ("made", "said"),
    [("nothing", "No such file"), ("folder", "expected a file|Is a directory"), ("pipe", "expected a file"),
     ("latin", "expected UTF-8 text"), ("nul", "cannot be read")],
)  # fmt: skip
def test_what_is_no_text_file_is_refused(tmp_path: Path, made: str, said: str) -> None:
    path = tmp_path / made
    if made == "folder":
        path.mkdir()
    elif made == "pipe":
        os.mkfifo(path)
    elif made == "latin":
        path.write_bytes(b"run: \xe9")
    elif made == "nul":
        path = tmp_path / "a\0b"
    with pytest.raises(InputError, match=said):
        read_submission(path)


def test_without_the_fast_parser_the_same_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "run: x\nname: ~\nenvs: &e {A: '~', B: }\nlabels: {<<: *e}\nresources: {accelerators: [A100:8]}\n"
    fast = read_submission(text)
    monkeypatch.setattr(yaml_tree, "PARSER", yaml.Loader)
    assert read_submission(text) == fast
    assert fast[0].envs == {"A": "~", "B": ""}
    for wrong in (bomb(12), "run: x\nenvs: " + "[" * 500, "x: *y", "a: b: c"):
        with pytest.raises(InputError):
            read_submission(wrong)


def test_a_file_with_every_value_in_quotes_is_the_same_job_and_can_be_kept() -> None:
    plain, _ = read_submission(EVERYTHING)
    quoted = yaml.safe_dump(yaml.load(EVERYTHING, yaml.BaseLoader), default_style='"')
    spec, _ = read_submission(quoted)
    assert spec == plain
    assert JobSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("key", ["run", "setup", "envs.A"])
def test_what_no_process_can_be_started_with_is_refused_when_it_is_submitted(key: str) -> None:
    long = "x" * 120_001
    texts = {
        "run": f"run: {long}",
        "setup": f"run: a\nsetup: {long}",
        "envs.A": f"run: a\nenvs: {{A: {long}}}",
    }
    with pytest.raises(
        InputError, match=f"{key.split()[0]}.*at most 120000 bytes, got 12000[12]: keep it in a file"
    ):
        read_submission(texts[key])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("name: one\nrun: x", id="a file of ours"),
        pytest.param("run: x", id="a file without a name"),
        pytest.param("#!/bin/sh\n#SBATCH --job-name=one\n#SBATCH --gpus=1\nx", id="a script for Slurm"),
    ],
)
def test_a_file_can_be_submitted_under_another_name(text: str) -> None:
    own, _ = read_submission(text, "file.yaml")
    spec, _ = read_submission(text, "file.yaml", name="two")
    assert (own.name, spec.name) == (own.name, "two")
    assert replace(spec, name=own.name) == own
    assert submission(text, "", "two")["job_name"] == "two"


def test_another_name_must_be_one() -> None:
    with pytest.raises(InputError, match=r"^name must be a name of 1 to 63 letters, .*, got 'a b'$"):
        read_submission("run: x", "file.yaml", name="a b")
