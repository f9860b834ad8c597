"""What a notebook gets of a simulation: the command's figures, frames, comparisons, one line for errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.ran import CLUSTER, TRACE

import stretto
from stretto.cli.app import status_of
from stretto.model import InputError
from stretto.notebook import frame

TIMING = {"policy_ms_p50", "policy_ms_p95", "wall_s", "peak_rss_mb"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small cluster and trace in the current directory, and no pandas."""
    (tmp_path / "tiny.yaml").write_text(CLUSTER)
    (tmp_path / "four.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(frame, "find_spec", lambda name: None)
    return tmp_path


def a_run(policy: str = "fifo", **more: Any) -> stretto.Run:
    return stretto.simulate("four.csv", cluster="tiny.yaml", policy=policy, **more)


def test_a_run_has_the_figures_that_the_command_prints(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "simulate --cluster tiny.yaml --trace four.csv --policy tiresias --seed 3 --fairness --bounds --json"
    )
    bounds = "policy.queue_bounds_gpu_s=100,400"
    assert status_of([*words.split(), "--set", bounds, "--set", "policy.gittins=true"]) == 0
    printed = json.loads(capsys.readouterr().out)
    settings = {"policy.queue_bounds_gpu_s": [100, 400], "policy.gittins": True}
    run = stretto.simulate(
        Path("four.csv"),
        cluster=Path("tiny.yaml"),
        policy="tiresias",
        seed=3,
        settings=settings,
        fairness=True,
        bounds=True,
    )
    assert printed.keys() == run.summary.keys()
    same = json.loads(json.dumps(run.summary))
    assert [key for key in printed if key not in TIMING and printed[key] != same[key]] == []


def test_frames_say_what_happened_on_a_schedule_made_by_hand(here: Path) -> None:
    # a takes the first slow node at 0; b joins the second at 10; c takes a GPU at 20; d waits for four free
    # ones of a type: a frees its node at 100, so d runs 100 to 300.
    run = a_run()
    assert run.jobs["job"].tolist() == ["a", "b", "c", "d"]
    assert run.jobs["queue_s"].tolist() == [0, 0, 0, 70]
    assert run.jobs["completed_s"].tolist()[3] == 300
    held = [row for row in run.allocations.tolist() if row[0] == "d"]
    assert held == [("d", 100.0, 300.0, "slow", 4)]
    waited = run.rounds["waiting_jobs"][run.rounds["at_s"] == 30]
    assert waited.tolist() == [1]
    assert run.rounds["busy_slow"].max() == 4 + 2 + 1
    assert set(run.rounds["usable_fast"].tolist()) == {2}
    assert len(run.rounds) == len(run.result.decision_ms) == run.summary["rounds"]


def test_gpu_time_of_the_frames_is_that_of_the_summary(here: Path) -> None:
    run = a_run("tiresias")
    spans = run.allocations["end_s"] - run.allocations["start_s"]
    assert (spans * run.allocations["gpus"]).sum() == pytest.approx(run.jobs["gpu_s"].sum())
    assert run.jobs["jct_s"].mean() == pytest.approx(run.summary["avg_jct_s"])


def test_a_comparison_has_a_row_for_each_run_and_policy_the_best_first(here: Path) -> None:
    runs = a_run().compare([a_run("tiresias"), a_run("srtf")])
    assert runs.summary["policy"].tolist() == ["fifo", "tiresias", "srtf"]
    means = runs.policies["avg_jct_s"].tolist()
    assert means == sorted(means)
    assert sorted(runs.policies["policy"]) == ["fifo", "srtf", "tiresias"]
    assert np.isnan(runs.summary["avg_ftf"]).all()  # does not apply


def test_runs_of_one_policy_are_told_apart_by_the_names_they_are_given(here: Path) -> None:
    runs = stretto.compare([a_run(), a_run(name="fifo, again")])
    assert sorted(runs.policies["policy"]) == ["fifo", "fifo, again"]
    with pytest.raises(InputError, match=r"runs must differ in policy, trace or seed, got fifo .* twice"):
        stretto.compare([a_run(), a_run()])


def test_a_comparison_writes_the_page_of_the_command(here: Path) -> None:
    runs = stretto.compare([a_run(), a_run("srtf")])
    runs.write("report.html")
    assert (here / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(InputError, match=r"^absent/report\.html: cannot be written: No such file"):
        runs.write("absent/report.html")


def test_figures_are_written_as_the_option_writes_them_and_a_warning_says_what_is_not(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.report.figure_file.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"^figures are SVG only: for PNG install stretto\[png\]$"):
        a_run().write_figures("alone")
    assert (here / "alone" / "jobs.csv").exists()
    assert (here / "alone" / "timelines.svg").exists()
    (here / "file").touch()
    with pytest.raises(InputError, match=r"^figures file: cannot be written: File exists$"):
        stretto.compare([a_run(), a_run("srtf")]).write_figures("file")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param({"trace": "nowhere.csv"}, "nowhere.csv", id="no such trace"),
        pytest.param({"cluster": "tny"}, "tny", id="no such cluster"),
        pytest.param({"cluster": None}, "cluster must be a file or a built-in name, got None", id="none"),
        pytest.param({"policy": "fif"}, "fif.*did you mean 'fifo'", id="no such policy"),
        pytest.param({"seed": -1}, "seed must be a whole number >= 0, got -1", id="a negative seed"),
        pytest.param({"seed": 1.5}, "seed must be a whole number >= 0, got 1.5", id="half a seed"),
        pytest.param({"settings": {"round_s": 5}}, "^settings: round_s=5: expected SPACE.KEY", id="no space"),
        pytest.param({"settings": {"pol.x": 5}}, "^settings: pol.x=5: unknown space 'pol'", id="other space"),
        pytest.param({"settings": ["sim.x=1"]}, "settings must be values by SPACE.KEY, got", id="a list"),
    ],
)
def test_what_is_wrong_with_the_words_is_said_in_one_line(
    words: dict[str, Any], message: str, here: Path
) -> None:
    asked = {"trace": "four.csv", "cluster": "tiny.yaml", "policy": "fifo"} | words
    with pytest.raises(InputError, match=message) as wrong:
        stretto.simulate(**asked)
    assert "\n" not in str(wrong.value)


def test_what_cannot_be_compared_is_refused(here: Path) -> None:
    (here / "other.yaml").write_text(CLUSTER.replace("tiny", "other"))
    other = stretto.simulate("four.csv", cluster="other.yaml", policy="srtf")
    with pytest.raises(InputError, match="expected runs on one cluster, got other, tiny"):
        stretto.compare([a_run(), other])
    with pytest.raises(InputError, match=r"expected runs of stretto\.simulate, got 'fifo'"):
        stretto.compare([a_run(), "fifo"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="expected at least one run, got none"):
        stretto.compare([])


@pytest.mark.processes
def test_the_package_alone_loads_nothing_else() -> None:
    program = (
        "import sys, stretto; begins = ('stretto.', 'numpy', 'pandas');"
        "alone = {name for name in sys.modules if name.startswith(begins)};"
        "print(sorted(alone), 'simulate' in dir(stretto), callable(stretto.simulate), stretto.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=3)[:3] == ["[]", "True", "True"]


def test_a_name_that_the_package_has_not_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'stretto' has no attribute 'simulat'"):
        _ = stretto.simulat
