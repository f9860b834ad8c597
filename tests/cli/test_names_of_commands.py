"""What a job is called that was submitted as a command."""

import pytest

from stretto.cli.submit import name_of


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ([], "shell"),
        (["python", "train.py"], "python"),
        (["/opt/tools/run.sh --fast"], "run.sh"),
        (["PYTHONPATH=.:/opt/src python3 train.py"], "python3"),
        (["A=1", "B_2=x", "./train.sh"], "train.sh"),
        (["A=1"], "command"),
        ([""], "command"),
        (["../--odd name--"], "odd"),
    ],
)
def test_it_is_called_by_its_program(command: list[str], name: str) -> None:
    assert name_of(command) == name
