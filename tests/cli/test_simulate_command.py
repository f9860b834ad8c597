"""`stretto simulate`: its object, its files, its log, and what it leaves out."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from stretto.clusters import read_cluster_file

from .ran import Stretto

PROMISED = (
    "policy",
    "trace",
    "cluster",
    "seed",
    "jobs",
    "completed",
    "avg_jct_s",
    "p50_jct_s",
    "p95_jct_s",
    "p99_jct_s",
    "p99_index_jct_s",
    "makespan_s",
    "avg_queue_s",
    "p95_queue_s",
    "interactive_avg_queue_s",
    "gpu_hours_per_job",
    "restarts_per_job",
    "preemption_ratio",
    "deadline_miss_rate",
    "avg_ftf",
    "worst_ftf",
    "unfair_fraction",
    "avg_contention",
    "max_contention",
    "utilization",
    "rounds",
    "policy_ms_p50",
    "policy_ms_p95",
    "wall_s",
    "peak_rss_mb",
)
TIMING = {"policy_ms_p50", "policy_ms_p95", "wall_s", "peak_rss_mb"}
FOUR = ("--cluster", "tiny.yaml", "--trace", "four.csv")
DEMO = ("--cluster", "sia-hetero-64", "--trace", "demo:jobs=8")


def test_the_object_has_every_promised_field(tiny: Path, stretto: Stretto) -> None:
    ran = stretto("simulate", *FOUR, "--policy", "fifo", "--json")
    assert (ran.status, ran.err) == (0, "")
    assert [name for name in PROMISED if name not in ran.json] == []


def test_figures_are_those_of_a_schedule_made_by_hand(tiny: Path, stretto: Stretto) -> None:
    # a takes the first slow node at 0; b joins the second at 10; c takes a GPU at 20; d waits for four free
    # ones of a type: a frees its node at 100, so d runs 100 to 300.
    figures = stretto("simulate", *FOUR, "--policy", "fifo", "--json").json
    assert (figures["jobs"], figures["completed"], figures["skipped"]) == (4, 4, 0)
    assert figures["avg_queue_s"] == pytest.approx((0 + 0 + 0 + 70) / 4)
    assert figures["gpu_hours_per_job"] > 0
    assert (figures["policy"], figures["trace"], figures["cluster"], figures["seed"]) == (
        "fifo",
        "four",
        "tiny",
        0,
    )


@pytest.mark.parametrize("missing", ["interactive_avg_queue_s", "deadline_miss_rate", "avg_ftf", "worst_ftf"])
def test_a_figure_that_does_not_apply_is_null(missing: str, tiny: Path, stretto: Stretto) -> None:
    assert stretto("simulate", *FOUR, "--policy", "fifo", "--json").json[missing] is None


@pytest.mark.heavy
@pytest.mark.parametrize("policy", ["fifo", "gavel", "sia", "pollux"])
def test_the_same_input_and_seed_give_the_same_bytes_but_for_timing(policy: str, stretto: Stretto) -> None:
    first, second = (
        [
            line
            for line in stretto("simulate", *DEMO, "--policy", policy, "--json", "--seed", 3).out.splitlines()
            if line.split('"')[1:2] not in [[name] for name in TIMING]
        ]
        for _ in range(2)
    )
    assert first == second
    assert len(first) > len(PROMISED)


def test_the_seed_makes_another_workload(stretto: Stretto) -> None:
    one, other = (stretto("simulate", *DEMO, "-p", "fifo", "--json", "--seed", seed).json for seed in (1, 2))
    assert one["avg_jct_s"] != other["avg_jct_s"]
    assert one["trace"] == "demo:jobs=8,seed=1"


def test_settings_are_reported_as_they_were_used(tiny: Path, stretto: Stretto) -> None:
    changed = ("--set", "sim.restart_s=7", "--set", "policy.round_s=120")
    settings = stretto("simulate", *FOUR, "--policy", "sia", *changed, "--json").json["settings"]
    assert (settings["sim.restart_s"], settings["policy.round_s"]) == (7.0, 120.0)
    assert settings["sim.fidelity"] == "paper"
    assert settings["policy.first_type"] == "profiled"


def test_on_a_pipe_the_summary_is_plain_and_what_stands_around_it_goes_to_stderr(
    tiny: Path, stretto: Stretto
) -> None:
    ran = stretto("simulate", *FOUR, "--policy", "fifo")
    assert {len(row) for row in ran.table} == {2}
    assert dict(ran.table)["Jobs completed"] == "4"
    assert all(cell == cell.strip() and cell.isprintable() for row in ran.table for cell in row)
    assert ran.err.startswith("fifo on four (tiny, seed 0)")
    assert "settings: sim.fidelity=paper" in ran.err


def test_a_made_workload_is_said_to_be_made(stretto: Stretto) -> None:
    assert "made data" in stretto("simulate", *DEMO, "--policy", "fifo").err
    assert stretto("simulate", *DEMO, "--policy", "fifo", "--json").json["synthetic"] is True


BAD_ROWS = (
    "job_id,submitted_s,gpus,duration_s,model\na,0,1,5,\nb,0,1,-5,\nc,0,99,5,\nd,0,1,,nobody\ne,1,1,5,\n"
)


def test_bad_rows_are_skipped_on_demand_counted_and_listed(tiny: Path, stretto: Stretto) -> None:
    (tiny / "bad.csv").write_text(BAD_ROWS)
    ran = stretto("simulate", "-c", "tiny.yaml", "-t", "bad.csv", "-p", "fifo", "--skip-bad", "--json")
    assert ran.status == 0
    assert (ran.json["jobs"], ran.json["skipped"]) == (2, 3)
    listed = ran.err.splitlines()
    assert [line.startswith("skipped ") for line in listed] == [True] * 3
    assert "line 3: duration_s" in listed[0]
    assert "job c: gpus" in listed[1]
    assert "job d: " in listed[2]
    assert "nobody" in listed[2]


def test_without_that_the_first_bad_row_ends_it(tiny: Path, stretto: Stretto) -> None:
    (tiny / "bad.csv").write_text(BAD_ROWS)
    ran = stretto("simulate", "-c", "tiny.yaml", "-t", "bad.csv", "-p", "fifo", "--json")
    assert (ran.status, ran.out) == (2, "")
    assert "line 3: duration_s" in ran.err


def test_a_trace_of_bad_rows_only_is_refused_even_then(tiny: Path, stretto: Stretto) -> None:
    (tiny / "bad.csv").write_text("job_id,submitted_s,gpus,model\nd,0,1,nobody\n")
    ran = stretto("simulate", "-c", "tiny.yaml", "-t", "bad.csv", "-p", "fifo", "--skip-bad")
    assert ran.status == 2
    assert "no job can run on cluster tiny" in ran.err


def test_a_run_is_written_with_its_words_summary_jobs_and_decisions(tiny: Path, stretto: Stretto) -> None:
    ran = stretto("simulate", *FOUR, "--policy", "fifo", "--out", "deep/run", "--json")
    written = tiny / "deep" / "run"
    assert {path.name for path in written.iterdir()} == {
        "run.json",
        "summary.json",
        "jobs.csv",
        "decisions.jsonl",
    }
    assert json.loads((written / "summary.json").read_text()) == ran.json
    with (written / "jobs.csv").open(newline="") as file:
        jobs = list(csv.DictReader(file))
    assert [job["id"] for job in jobs] == ["a", "b", "c", "d"]
    assert float(jobs[0]["completed_s"]) == 100
    decisions = [json.loads(line) for line in (written / "decisions.jsonl").read_text().splitlines()]
    assert len(decisions) == ran.json["rounds"]
    assert decisions[0]["actions"] == [["start", "a", {"type": "slow", "nodes": {"slow-0": 15}}]]


def test_a_second_run_leaves_nothing_of_the_first(tiny: Path, stretto: Stretto) -> None:
    stretto("simulate", *FOUR, "--policy", "fifo", "--out", "run")
    stretto("simulate", *FOUR, "--policy", "srtf", "--out", "run")
    assert json.loads((tiny / "run" / "summary.json").read_text())["policy"] == "srtf"
    assert stretto("simulate", "--from-log", "run").status == 0


@pytest.mark.parametrize("policy", ["fifo", "sia"])
def test_a_log_is_decided_again_alike_from_another_directory(
    policy: str, tiny: Path, stretto: Stretto, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stretto("simulate", *FOUR, "--policy", policy, "--seed", 5, "--out", "run", "--json").json
    (tiny / "elsewhere").mkdir()
    monkeypatch.chdir(tiny / "elsewhere")
    ran = stretto("simulate", "--from-log", tiny / "run", "--json")
    assert ran.status == 0
    assert (ran.json["decisions"], ran.json["differences"]) == (made["rounds"], 0)
    untimed = {name: made[name] for name in made if name not in TIMING}
    assert {name: ran.json[name] for name in untimed} == untimed


BEFORE = ("--set", "sim.profiling_trains=false", "--set", "policy.by_clock=false")


def test_a_log_from_before_there_were_some_settings_is_decided_as_it_was(
    tiny: Path, stretto: Stretto
) -> None:
    """Profiling runs trained nothing then: the log says neither that nor that it says nothing."""
    stretto("simulate", *FOUR, "--policy", "unisched", *BEFORE, "--out", "run")
    words = tiny / "run" / "run.json"
    now = json.loads(words.read_text()) | {"settings": {}}
    assert now.pop("former") is False
    words.write_text(json.dumps(now))
    assert stretto("simulate", "--from-log", "run").status == 0
    words.write_text(json.dumps({**now, "former": False}))
    assert stretto("simulate", "--from-log", "run").status == 1


def test_a_setting_that_is_younger_than_a_log_means_in_it_what_was_done_then(
    tiny: Path, stretto: Stretto
) -> None:
    """A log says every setting of its day. What it does not say was not there yet."""
    stretto("simulate", *FOUR, "--policy", "unisched", *BEFORE, "--out", "run")
    words = tiny / "run" / "run.json"
    read = json.loads(words.read_text())
    younger = {key: read["settings"].pop(key) for key in ("policy.by_clock", "sim.profiling_trains")}
    assert set(younger.values()) == {"false"}
    words.write_text(json.dumps(read))
    assert stretto("simulate", "--from-log", "run").status == 0
    read["settings"] |= dict.fromkeys(younger, "true")
    words.write_text(json.dumps(read))
    assert stretto("simulate", "--from-log", "run").status == 1


def test_a_cluster_is_read_once_also_where_the_run_is_written(
    tiny: Path, stretto: Stretto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster file may be a pipe: who asked for its words again would wait for ever."""
    reads: list[str] = []

    def counted(source: str) -> Any:
        reads.append(source)
        return read_cluster_file(source)

    monkeypatch.setattr("stretto.experiments.spec.read_cluster_file", counted)
    assert stretto("simulate", *FOUR, "--policy", "fifo", "--out", "run").status == 0
    assert reads == ["tiny.yaml"]


PATIENT = """
from dataclasses import dataclass

from stretto.policies.fifo import FirstInFirstOut


@dataclass(frozen=True)
class Patient(FirstInFirstOut):
    round_s: float | None = None
"""


def test_a_log_is_decided_as_it_was_when_the_defaults_of_its_policy_have_changed(
    tiny: Path, stretto: Stretto
) -> None:
    (tiny / "then.py").write_text(PATIENT)
    (tiny / "now.py").write_text(PATIENT.replace("= None", "= 7.0"))
    stretto("simulate", *FOUR, "--policy", "then.py:Patient", "--out", "run")
    words = tiny / "run" / "run.json"
    words.write_text(words.read_text().replace("then.py", "now.py"))
    again = ["simulate", "--from-log", "run", "--policy", "now.py:Patient"]
    assert stretto(*again).status == 0
    run = json.loads(words.read_text())
    del run["settings"]["policy.round_s"]
    words.write_text(json.dumps(run))
    assert stretto(*again).status == 1


def test_a_decision_that_was_tampered_with_is_found(tiny: Path, stretto: Stretto) -> None:
    stretto("simulate", *FOUR, "--policy", "fifo", "--out", "run")
    log = tiny / "run" / "decisions.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join([lines[0].replace("slow-0", "slow-1"), *lines[1:]]) + "\n")
    ran = stretto("simulate", "--from-log", "run")
    assert ran.status == 1
    assert ran.out == f"{len(lines)} decisions made again, 1 differ\n"
    assert ran.err.startswith("decision 0: was ")


@pytest.mark.parametrize(
    ("change", "differences"),
    [
        pytest.param(lambda lines: lines[:-1], 1, id="one is missing"),
        pytest.param(lambda lines: [*lines, lines[-1]], 1, id="one is there twice"),
        pytest.param(lambda lines: [], 8, id="all are missing"),
    ],
)
def test_a_log_whose_decisions_are_not_as_many_differs(change, differences, tiny, stretto):  # type: ignore[no-untyped-def]
    made = stretto("simulate", *FOUR, "--policy", "fifo", "--out", "run", "--json").json
    log = tiny / "run" / "decisions.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("".join(f"{line}\n" for line in change(lines)))
    ran = stretto("simulate", "--from-log", "run", "--json")
    assert ran.status == 1
    assert ran.json["differences"] == (differences if change(lines) else made["rounds"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("{", "expected the log of a run", id="no JSON"),
        pytest.param("[]", "expected an object, got", id="no object"),
        pytest.param('{"polcy": "fifo"}', "unknown field 'polcy'", id="an unknown field"),
        pytest.param('{"policy": "fifo"}', "missing cluster", id="a missing field"),
        pytest.param('{"seed": "x"}', "seed must be of type int, got 'x'", id="a wrong type"),
    ],
)
def test_a_log_whose_words_are_broken_is_refused(text: str, says: str, tiny: Path, stretto: Stretto) -> None:
    stretto("simulate", *FOUR, "--policy", "fifo", "--out", "run")
    (tiny / "run" / "run.json").write_text(text)
    ran = stretto("simulate", "--from-log", "run")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert says in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["sia", "gavel", "fifo"])
def test_fairness_is_a_figure_for_every_job_on_demand(policy: str, stretto: Stretto) -> None:
    figures = stretto("simulate", *DEMO, "--policy", policy, "--fairness", "--json").json
    assert 0 < figures["avg_ftf"] <= figures["worst_ftf"]
    assert 0 <= figures["unfair_fraction"] <= 1


def test_a_policy_file_that_cannot_be_imported_is_refused(tiny: Path, stretto: Stretto) -> None:
    (tiny / "broken.py").write_text("import os\nimport no_such_module\n")
    ran = stretto("simulate", *FOUR, "--policy", "broken.py:Broken")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "policy file broken.py cannot be imported: ModuleNotFoundError" in ran.err
    assert "line 2" in ran.err


def test_a_policy_that_never_starts_a_job_fails_with_one_line(tiny: Path, stretto: Stretto) -> None:
    (tiny / "lazy.py").write_text(LAZY)
    ran = stretto("simulate", *FOUR, "--policy", "lazy.py:Lazy", "--set", "sim.max_idle_rounds=5")
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "jobs wait and nothing will start them" in ran.err


LAZY = '''
"""A policy that gives nobody anything."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stretto.model import every
from stretto.policies.common.admission import admit_waiting
from stretto.policies.fifo import FirstInFirstOut


@dataclass(frozen=True)
class Lazy(FirstInFirstOut):
    """Nobody gets anything."""

    name: ClassVar[str] = "lazy"
    triggers = every(60.0)

    def allocate(self, snapshot, speeds):
        return admit_waiting(snapshot, np.zeros(0, dtype=np.int64), skip=False)
'''
