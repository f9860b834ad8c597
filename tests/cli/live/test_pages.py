"""The pages about jobs and the service keep up with the code."""

import inspect
import re
from pathlib import Path

import pytest

from stretto.jobfile import stretto_file
from stretto.model import Why
from stretto.service.reconcile import worker_env
from stretto.service.state.messages import NEVER, WORDS, headline, reason_in_words
from stretto.service.state.status import Reason

pytestmark = pytest.mark.processes

DOCS = Path(__file__).parents[3] / "docs"


def rows_of(page: str, heading: str) -> dict[str, str]:
    """First cell to the rest, of the first table below a heading."""
    text = (DOCS / page).read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return {line.split("|")[1].strip(): line for line in lines}


def test_every_key_of_a_job_file_has_its_row() -> None:
    rows = {name.strip("`"): line for name, line in rows_of("jobs.md", "Keys").items()}
    assert set(rows) == set(stretto_file.KEYS)
    for key in ("resources", "elastic", "batch", "stop", "checkpoint", "restart"):
        for inner in getattr(stretto_file, key.upper()):
            assert f"`{inner}`" in rows[key]


def test_every_variable_of_a_worker_is_told_of() -> None:
    set_there = set(re.findall(r'"([A-Z][A-Z_]+)":', inspect.getsource(worker_env)))
    told = set(re.findall(r"`([A-Z][A-Z_]+)`", " ".join(rows_of("jobs.md", "Environment of a worker"))))
    assert set_there - told == {"PYTHONUNBUFFERED"}
    assert told <= set_there


def test_every_reason_has_words() -> None:
    codes = {reason.value for reason in Reason} | {why.name for why in Why}
    assert codes - set(WORDS) == {"", "RUNS"}
    assert {why.name for why in Why if why < 0} <= NEVER
    waits = {
        "gpus": 2,
        "gpu_type": "t4",
        "ended": False,
        "basis": "",
        "reason": "SWITCHING",
        "evidence": "why",
    }
    assert headline(waits, "").endswith(f"; {WORDS['SWITCHING']}: why")
    assert reason_in_words("QUOTA", "team has 4") == "its queue holds as many GPUs as it may: team has 4"
