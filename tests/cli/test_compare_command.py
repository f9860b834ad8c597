"""`stretto compare`: several runs side by side, in one process or several, with one report."""

import json
from pathlib import Path
from typing import Any

import pytest

from .ran import TRACE, Stretto

TIMING = {"policy_ms_p50", "policy_ms_p95", "wall_s", "peak_rss_mb"}
COMPARE = ("compare", "--cluster", "tiny.yaml", "--trace", "four.csv", "--out", "out")


def untimed(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: figure for name, figure in run.items() if name not in TIMING} for run in runs]


def test_every_policy_runs_on_every_trace_with_every_seed(tiny: Path, stretto: Stretto) -> None:
    (tiny / "again.csv").write_text(TRACE)
    ran = stretto(
        *COMPARE,
        "--trace",
        "again.csv",
        "--policies",
        "fifo,srtf",
        "--seeds",
        2,
        "--seed",
        4,
        "--workers",
        1,
        "--json",
    )
    assert ran.status == 0
    assert [(run["policy"], run["trace"], run["seed"]) for run in ran.json["runs"]] == [
        (policy, trace, seed) for policy in ("fifo", "srtf") for trace in ("four", "again") for seed in (4, 5)
    ]


def test_a_run_beside_others_has_the_figures_of_a_run_alone(tiny: Path, stretto: Stretto) -> None:
    beside = stretto(*COMPARE, "--policies", "fifo,srtf", "--workers", 1, "--json").json["runs"]
    alone = stretto("simulate", "-c", "tiny.yaml", "-t", "four.csv", "-p", "srtf", "--bounds", "--json").json
    assert untimed(beside)[1:] == untimed([alone])


@pytest.mark.slow
@pytest.mark.processes
def test_workers_make_no_difference_but_in_time(tiny: Path, stretto: Stretto) -> None:
    (tiny / "bad.csv").write_text(TRACE + "e,40,99,5\n")
    words = (*COMPARE, "--trace", "bad.csv", "--skip-bad", "--policies", "fifo,gavel", "--json")
    one, two = (stretto(*words, "--workers", workers) for workers in (1, 2))
    assert (one.status, two.status) == (0, 0)
    assert untimed(one.json["runs"]) == untimed(two.json["runs"])
    assert one.err == two.err
    assert one.err == "bad: skipped job e: gpus must be at most the 10 of tiny, got 99\n"


def test_a_report_and_the_figures_are_written(tiny: Path, stretto: Stretto) -> None:
    ran = stretto(*COMPARE, "--policies", "fifo,srtf", "--workers", 1, "--json")
    assert ran.json["report"] == "out/report.html"
    assert "<html" in (tiny / "out" / "report.html").read_text()
    assert json.loads((tiny / "out" / "runs.json").read_text()) == {"runs": ran.json["runs"]}


def test_on_a_pipe_the_table_is_plain(tiny: Path, stretto: Stretto) -> None:
    ran = stretto(*COMPARE, "--policies", "fifo,srtf,sjf", "--workers", 1)
    assert ran.status == 0
    assert len(ran.table) == 4
    assert {len(row) for row in ran.table} == {len(ran.table[0])}
    assert ran.table[0][:2] == ["policy", "JCT min"]
    assert {row[0] for row in ran.table[1:]} == {"fifo", "srtf", "sjf"}
    assert all(cell == cell.strip() and cell.isprintable() for row in ran.table for cell in row)
    assert ran.err.splitlines()[-1] == "report: out/report.html"


def test_a_setting_goes_to_the_policies_that_have_it(tiny: Path, stretto: Stretto) -> None:
    words = ("--policies", "sjf,gavel", "--set", "policy.round_s=120", "--workers", 1, "--json")
    sjf, gavel = stretto(*COMPARE, *words).json["runs"]
    assert gavel["settings"]["policy.round_s"] == 120.0
    assert "policy.round_s" not in sjf["settings"]


def test_a_setting_that_no_policy_has_is_refused(tiny: Path, stretto: Stretto) -> None:
    ran = stretto(*COMPARE, "--policies", "fifo,gavel", "--set", "policy.rund_s=120")
    assert (ran.status, ran.err) == (2, "stretto: unknown setting policy.rund_s, did you mean 'round_s'?\n")


def test_a_policy_or_trace_that_is_named_twice_runs_once(tiny: Path, stretto: Stretto) -> None:
    ran = stretto(*COMPARE, "-t", "four.csv", "--policies", "fifo, srtf,fifo", "--workers", 1, "--json")
    assert [run["policy"] for run in ran.json["runs"]] == ["fifo", "srtf"]


@pytest.mark.processes
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        pytest.param(
            "raise InputError('policy.x must be 1, got 2')", 2, "policy.x must be 1, got 2", id="wrong input"
        ),
        pytest.param(
            "raise BadPlan('GPU 3 twice')",
            1,
            "faulty.py:Faulty on four.csv, seed 0: GPU 3 twice",
            id="a broken promise",
        ),
        pytest.param(
            "return 1 / 0",
            1,
            "faulty.py:Faulty on four.csv, seed 0: ZeroDivisionError: division by zero (faulty.py line 18)",
            id="a bug",
        ),
    ],
)
def test_a_run_that_fails_ends_the_comparison_with_one_line(
    workers: int, fault: str, status: int, says: str, tiny: Path, stretto: Stretto
) -> None:
    (tiny / "faulty.py").write_text(FAULTY.format(fault=fault))
    ran = stretto(*COMPARE, "--policies", "faulty.py:Faulty,fifo", "--workers", workers)
    assert (ran.status, ran.out, ran.err.count("\n")) == (status, "", 1)
    assert ran.err == f"stretto: {says}\n"
    assert not (tiny / "out").exists()


@pytest.mark.processes
def test_a_worker_that_dies_ends_the_comparison_with_one_line(tiny: Path, stretto: Stretto) -> None:
    (tiny / "faulty.py").write_text(FAULTY.format(fault="import os; os._exit(9)"))
    ran = stretto(*COMPARE, "--policies", "faulty.py:Faulty,fifo", "--workers", 2)
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "a worker process has died" in ran.err


FAULTY = '''
"""A policy that fails when it is asked."""

from dataclasses import dataclass
from typing import ClassVar

from stretto.model import BadPlan, InputError
from stretto.policies.fifo import FirstInFirstOut


@dataclass(frozen=True)
class Faulty(FirstInFirstOut):
    """It fails."""

    name: ClassVar[str] = "faulty"

    def allocate(self, snapshot, speeds):
        {fault}
'''
