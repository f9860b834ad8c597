"""What `stretto submit` makes of its words, without a service."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from stretto.cli.submit import submission
from stretto.jobfile import read_submission
from stretto.model import InputError

pytestmark = pytest.mark.processes


def entries(words: list[str], interactive: bool = False, **said: Any) -> dict[str, Any]:
    text = submission(
        words, interactive, "/here", {f"--{key.replace('_', '-')}": value for key, value in said.items()}
    )
    assert isinstance(text, str)
    read_submission(text)  # the service would take it
    found: dict[str, Any] = json.loads(text)
    return found


def test_words_are_kept_apart_as_they_were_given() -> None:
    assert entries(["python", "train.py", "a b"])["run"] == "python train.py 'a b'"


def test_one_word_with_spaces_is_a_line_for_the_shell() -> None:
    found = entries(["echo hi; sleep 1 && exit 3"])
    assert (found["run"], found["name"]) == ("echo hi; sleep 1 && exit 3", "echo")


def test_options_say_of_a_command_what_a_file_would() -> None:
    found = entries(
        ["true"], gpus=2, type="a100", name="mine", queue="q", priority=3, max_time="4h", image="team/a:1"
    )
    assert found == {
        "name": "mine",
        "run": "true",
        "workdir": "/here",
        "resources": {"accelerators": "a100:2"},
        "queue": "q",
        "priority": 3,
        "max_time": "4h",
        "image": "team/a:1",
    }


def test_a_session_is_one_process_with_all_its_gpus() -> None:
    found = entries([], interactive=True, gpus=2)
    assert found["name"] == "shell"
    assert found["resources"] == {"accelerators": 2, "gpus_per_worker": 2}


def test_a_session_in_an_image_needs_a_command_since_the_image_has_no_terminal_of_ours() -> None:
    assert entries(["jupyter", "lab"], interactive=True, image="team/a:1")["image"] == "team/a:1"
    with pytest.raises(InputError, match="--image: expected a command with --interactive"):
        submission([], True, "/here", {"--image": "team/a:1"})


@pytest.mark.parametrize(("option", "value"), [("--gpus", 2), ("--queue", "q"), ("--priority", 0)])
def test_a_file_is_not_contradicted_by_options(tmp_path: Path, option: str, value: Any) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("run: 'true'\n")
    with pytest.raises(InputError, match=rf"^{option} {value}: is for commands; expected it in .*job.yaml$"):
        submission([str(file)], False, "/here", {option: value})
    assert submission([str(file)], False, "/here", {option: None, "--name": "mine"}) == file


def test_a_command_reaches_its_shell_whatever_signs_are_in_it() -> None:
    word = "größer 🎻 \x7f \x85 \\ud83c \u2028 \t \n ' \" $x"
    text = submission(["echo", word], False, "/größer 🎻")
    assert isinstance(text, str)
    spec, _ = read_submission(text)
    assert (shlex.split(spec.run), spec.workdir) == (["echo", word], "/größer 🎻")


def test_a_directory_is_no_command(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a job file, or -- and a command, got a directory"):
        submission([str(tmp_path)], False, "/here")


@pytest.mark.parametrize(
    ("text", "preemptible"),
    [
        pytest.param("run: x", False, id="it would begin anew"),
        pytest.param("run: x\npreemptible: true", True, id="it says so"),
        pytest.param("run: x\nelastic: {min: 1, max: 2}", True, id="elastic"),
        pytest.param("run: x\ncheckpoint: {dir: there}", True, id="it keeps its state"),
        pytest.param("run: x\ncheckpoint: {dir: there}\npreemptible: no", False, id="it says no"),
        pytest.param("#!/bin/sh\n#SBATCH --gres=gpu:1\nx", False, id="a batch script"),
        pytest.param("#!/bin/sh\n#SBATCH --requeue\nx", True, id="a batch script that may be requeued"),
        pytest.param("run: x\nresources: {accelerators: 'A100:1', use_spot: true}", True, id="a spot task"),
        pytest.param("run: x\nnum_nodes: 1", False, id="a task"),
    ],
)
def test_only_who_can_go_on_may_be_stopped_for_others_unless_it_says(text: str, preemptible: bool) -> None:
    spec, _ = read_submission(text)
    assert spec.preemptible is preemptible
