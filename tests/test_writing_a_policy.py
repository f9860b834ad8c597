"""The policy of docs/writing-a-policy.md, taken from the page as it stands there, installed and run."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stretto.testing.conformance import PROMISES

PAGE = Path(__file__).parents[1] / "docs" / "writing-a-policy.md"

CLUSTER = """
gpu_types:
  gpu: {memory_gb: 16}
nodes:
  - {type: gpu, gpus: 4, count: 1}
"""
# While `first` holds all four GPUs, a large and then a small request arrive.
TRACE = "job_id,submitted_s,gpus,duration_s\nfirst,0,4,100\nlarge,10,4,1000\nsmall,90,2,50\n"


def code_on_the_page(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as an installer leaves it: the module, and beside it what says where its entry points are."""
    module, test = code_on_the_page("python")
    project = tomllib.loads(code_on_the_page("toml")[0])["project"]
    (tmp_path / "small_first.py").write_text(module, encoding="utf-8")
    (tmp_path / "test_small_first.py").write_text(test, encoding="utf-8")
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    named = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{named}", encoding="utf-8")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    (tmp_path / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    (tmp_path / "trace.csv").write_text(TRACE, encoding="utf-8")
    return tmp_path


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def stretto(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "stretto.cli.app", *arguments)


def simulated(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return stretto(folder, "simulate", "--cluster", "cluster.yaml", "--trace", "trace.csv", "--json", *more)


def test_the_policy_takes_fewer_than_forty_lines() -> None:
    lines = [line for line in code_on_the_page("python")[0].splitlines() if line.strip()]
    assert len(lines) < 40


@pytest.mark.processes
def test_an_installed_policy_is_listed_by_name(installed: Path) -> None:
    listed = stretto(installed, "policies", "--json")
    assert "small-first" in {row["name"] for row in json.loads(listed.stdout)["policies"]}, listed.stderr


@pytest.mark.processes
def test_a_policy_that_is_not_installed_is_not_listed(tmp_path: Path) -> None:
    listed = stretto(tmp_path, "policies", "--json")
    assert "small-first" not in {row["name"] for row in json.loads(listed.stdout)["policies"]}


@pytest.mark.processes
def test_an_installed_policy_runs_by_name(installed: Path) -> None:
    done = simulated(installed, "--policy", "small-first")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["policy"], summary["completed"]) == ("small-first", 3)
    # at 100 s the large one counts 3.9, the small one 2: first until 100, small until 150, large until 1150
    assert summary["avg_jct_s"] == pytest.approx((100 + (150 - 90) + (1150 - 10)) / 3)


@pytest.mark.slow
@pytest.mark.processes
def test_the_file_alone_runs_too(installed: Path) -> None:
    by_name = json.loads(simulated(installed, "--policy", "small-first").stdout)
    by_file = json.loads(simulated(installed, "--policy", "small_first.py:SmallFirst").stdout)
    assert by_file["avg_jct_s"] == by_name["avg_jct_s"]


@pytest.mark.processes
def test_its_parameters_are_set_by_name(installed: Path) -> None:
    done = simulated(installed, "--policy", "small-first", "--set", "policy.patience_s=1")
    assert done.returncode == 0, done.stderr
    # now waiting counts for more than size, 4 / 91 against 2 / 11: large until 1100, small until 1150
    assert json.loads(done.stdout)["avg_jct_s"] == pytest.approx((100 + (1100 - 10) + (1150 - 90)) / 3)


@pytest.mark.processes
def test_a_parameter_that_makes_no_sense_is_one_line_and_status_2(installed: Path) -> None:
    done = simulated(installed, "--policy", "small-first", "--set", "policy.patience_s=0")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == ["stretto: policy.patience_s must be > 0, got 0"]


@pytest.mark.processes
def test_its_parameters_are_listed_with_their_ranges(installed: Path) -> None:
    listed = stretto(installed, "policies", "small_first.py:SmallFirst", "--json")
    assert json.loads(listed.stdout)["settings"] == [
        {
            "name": "patience_s",
            "default": "3600",
            "expects": "a number > 0",
            "about": "seconds until a request counts half",
        }
    ]


@pytest.mark.slow
@pytest.mark.processes
def test_the_tests_on_the_page_pass(installed: Path) -> None:
    done = python(installed, "-m", "pytest", "-p", "no:cacheprovider", "test_small_first.py")
    assert done.returncode == 0, done.stdout
    assert f"{2 + len(PROMISES)} passed" in done.stdout
