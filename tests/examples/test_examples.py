"""The examples run, and print what their page says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stretto.jobfile.submission import read_submission

pytestmark = pytest.mark.processes

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = (EXAMPLES / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```console\n\$ ([^\n]+)\n(.*?)^```$", PAGE, flags=re.M | re.S)
NUMBER = re.compile(r"\d+\.\d+")
NEAR = 0.08  # chosen: a machine that adds in another order is a few of 360 digits off, early in a training


@pytest.mark.slow
@pytest.mark.parametrize(("command", "expected"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_script_prints_what_the_page_shows(command: str, expected: str) -> None:
    words = shlex.split(command)
    program = {"python": [], "torchrun": ["-m", "torch.distributed.run"]}[words[0]]
    done = subprocess.run(
        [sys.executable, *program, *words[1:]],
        cwd=EXAMPLES,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert NUMBER.sub("N", done.stdout) == NUMBER.sub("N", expected)
    printed, shown = ([float(one) for one in NUMBER.findall(text)] for text in (done.stdout, expected))
    assert printed == pytest.approx(shown, abs=NEAR)


def test_the_page_shows_every_script() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"seen.py"}
    assert {word for command, _ in SHOWN for word in shlex.split(command) if word.endswith(".py")} == scripts


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_a_job_file_is_understood_whole(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    spec, warnings = read_submission(text, path.name)
    assert (spec.name, list(warnings)) == (yaml.safe_load(text)["name"], [])


@pytest.mark.long
def test_a_target_that_is_not_reached_is_a_failure() -> None:
    command = [sys.executable, "digits_cnn.py", "--epochs", "1", "--channels", "4", "--target", "0.99"]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout.count("accuracy")) == (1, 1), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("script", ["digits_cnn.py --target 0", "tiny_transformer.py --target 99"])
def test_a_script_that_is_stopped_after_its_last_epoch_has_nothing_left_but_to_say_so(script: str) -> None:
    command = [sys.executable, *script.split(), "--epochs", "0"]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, len(NUMBER.findall(done.stdout))) == (0, 1), done.stderr


def test_samples_that_were_left_out_or_done_twice_are_noticed(tmp_path: Path) -> None:
    def verdict(*lines: str) -> int:
        for folder in ("one", "other"):
            (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / "other" / "1.1.0.1.jsonl").write_text("[0, 0, [0, 1]]\n[1, 0, [2]]\n")
        (tmp_path / "one" / "1.1.0.1.jsonl").write_text(lines[0])
        (tmp_path / "one" / "1.2.0.1.jsonl").write_text("".join(lines[1:]))
        command = [sys.executable, str(EXAMPLES / "seen.py"), str(tmp_path / "one"), str(tmp_path / "other")]
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert verdict("[0, 0, [0, 1]]\n", "[1, 0, [2]]\n") == 0
    assert verdict("[0, 0, [0, 1]]\n[1, 0, [2]]\n", "[1, 0, [2]]\n") == 0  # done anew from a checkpoint
    assert verdict("[0, 0, [0, 1]]\n") == 1
    assert verdict("[0, 0, [0, 1, 1]]\n", "[1, 0, [2]]\n") == 1
