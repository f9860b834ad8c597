"""Options of the service from a file: as on the command line, which counts before it."""

from pathlib import Path
from typing import Any

import pytest

from stretto.cli.app import status_of


def written(folder: Path, text: str) -> str:
    file = folder / "service.yaml"
    file.write_text(text)
    return str(file)


def test_options_are_taken_from_a_file_by_their_names(tmp_path: Path, started: list[Any]) -> None:
    file = written(
        tmp_path,
        "listen: 127.0.0.1:0\nbackend: slurm\npartition: [low, high]\npolicy: tiresias\n"
        "set: {policy.round_s: 5}\ninsecure-loopback: true\nkeep_ended: 2h\n",
    )
    assert status_of(["serve", "--config", file]) == 0
    config = started[0]
    assert (config.host, config.port, config.backend.name, config.policy) == (
        "127.0.0.1",
        0,
        "slurm",
        "tiresias",
    )
    assert config.backend.partitions == ("low", "high")
    assert config.open_on_loopback
    assert config.keep.ended_s == 7200.0
    assert status_of(["serve", "--set", "policy.round_s=5", "--policy", "tiresias"]) == 0
    assert config.settings == started[1].settings


def test_the_command_line_counts_before_the_file_wherever_it_names_it(
    tmp_path: Path, started: list[Any]
) -> None:
    file = written(tmp_path, "slots: 3\npolicy: tiresias\ngpu_type: cpu\n")
    assert status_of(["serve", "--policy", "fifo", "--config", file, "--slots", "2"]) == 0
    assert (started[0].policy, started[0].backend.slots, started[0].backend.gpu_type) == ("fifo", 2, "cpu")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy: sia\nslotss: 2", "line 2: slotss is no option; slots is"),
        ("config: other.yaml", "line 1: config is no option"),
        ("slots: many", "line 1: slots: "),
        ("slots: 0", "line 1: slots: "),
        ("slots: [1, 2]", "line 1: slots: expected one value, got 2"),
        ("policy:", "line 1: policy: expected a value, or a list of them"),
        ("insecure-loopback: perhaps", "line 1: insecure-loopback: "),
        ("- sia", "expected options and what they say"),
        ("", "expected options and what they say"),
        ("policy: sia\npolicy: fifo", "line 2"),
    ],
)
def test_what_is_wrong_in_the_file_is_one_line_that_says_where(
    text: str, said: str, tmp_path: Path, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["serve", "--config", written(tmp_path, text)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert "service.yaml" in line
    assert started == []


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["serve", "--config", str(tmp_path / "nowhere.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
