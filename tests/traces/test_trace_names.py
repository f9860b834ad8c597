import re
from itertools import combinations
from pathlib import Path

import pytest

from stretto.model import InputError
from stretto.traces import FORMATS, MADE, built_in_traces, read_trace
from stretto.traces.datasets import DATA_VARIABLE
from stretto.traces.reading import Format
from stretto.traces.registry import format_of
from stretto.traces.table import Table

SIA = "name,time,application,num_replicas,batch_size\na-0,10,cifar10,6,2048\n"


def a_data_folder(folder: Path) -> Path:
    for place in ("sia/workloads/philly/workload-3.csv", "sia/workloads/scale/scale_8x/workload-1.csv"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(SIA)
    return folder


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_every_format_is_recognised_by_its_columns_and_more(kind: Format) -> None:
    columns = dict.fromkeys((*kind.columns, "one more"), ("",))
    assert format_of(Table("file", columns, (2,))) is kind


def test_the_formats_of_stretto_are_told_apart() -> None:
    """Where all files of one format fit another one too, it is declared which is meant."""
    for one, other in combinations(FORMATS, 2):
        if one.columns <= other.columns or other.columns <= one.columns:
            assert one.name in other.instead_of or other.name in one.instead_of


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", "tiresias"),
        (",best_effort,expect_time_list,expect_value_list", "chronus"),
        (",ddl,batch_size", "elasticflow"),
    ],
)
def test_a_format_may_be_meant_instead_of_another(more: str, expected: str) -> None:
    header = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval" + more
    assert format_of(Table("file", dict.fromkeys(header.split(","), ("",)), (2,))).name == expected


def test_a_file_that_fits_two_formats_is_refused_until_it_says_which(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    text = (
        "job_id,submitted_s,gpus,name,time,application,num_replicas,batch_size\nj,0,1,a,10,cifar10,6,2048\n"
    )
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_trace(path)
    assert str(refused.value) == (
        f"{path}: its columns fit the formats 'stretto' and 'sia'; "
        "expected those of one, or a first line like '# format: stretto'"
    )
    path.write_text(f"# format: sia\n{text}")
    assert [job.id for job in read_trace(path).jobs] == ["a"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stretta", "unknown format 'stretta', did you mean 'stretto'?"),
        (
            "philly",
            "missing column cluster, duration, num_gpus, timestamp of format 'philly', which it names",
        ),
    ],
)
def test_a_file_that_names_a_format_that_it_has_not_is_refused(
    name: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"# format: {name}\njob_id,submitted_s,gpus\nj,0,1\n")
    with pytest.raises(InputError, match=re.escape(message)):
        read_trace(path)


PAGE = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
(ON_THE_PAGE,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.M | re.S)
TOY = (
    ON_THE_PAGE
    + """
NUMBER = 7
TAKEN = Format("sia", frozenset({"who"}), read, "")
"""
)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """A package of others that names a trace format, as an installer leaves it."""
    (folder / "toy_traces.py").write_text(TOY)
    info = folder / "toy_traces-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-traces\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[stretto.trace_formats]\nminutes = {target}\n")
    monkeypatch.syspath_prepend(folder)


def test_a_format_of_an_installed_package_is_read_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.csv"
    path.write_text("who,minute\na,2\nb,1\n")
    with pytest.raises(InputError, match="unknown format with the columns who, minute"):
        read_trace(path)
    install(tmp_path, monkeypatch, "toy_traces:MINUTES")
    workload = read_trace(path)
    assert [(job.id, job.submitted_s) for job in workload.jobs] == [("b", 60.0), ("a", 120.0)]
    assert "a log in minutes" in workload.source


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("toy_traces:NUMBER", "expected a stretto.traces.Format, got int"),
        ("toy_traces:NOTHING", "cannot be loaded: module 'toy_traces' has no attribute 'NOTHING'"),
        ("toy_absent:X", "cannot be loaded: No module named 'toy_absent'"),
        ("toy_traces:TAKEN", "expected a name of its own, but there is a format 'sia'"),
    ],
)
def test_a_package_whose_format_is_none_is_one_clear_line(
    target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.csv").write_text("who,minute\na,2\n")
    install(tmp_path, monkeypatch, target)
    with pytest.raises(InputError, match=re.escape(f"trace format 'minutes' ({target}")) as refused:
        read_trace(tmp_path / "log.csv")
    assert message in str(refused.value)


def test_data_sets_have_names_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_data_folder(tmp_path)
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    assert set(built_in_traces(folder)) == {*MADE, "sia-philly-3", "sia-scale-8x"}
    assert set(built_in_traces()) == set(MADE)
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    assert read_trace("sia-philly-3").name == "sia-philly-3"
    assert read_trace("sia-philly-3", data=folder).jobs[0].id == "a-0"


def test_a_made_workload_is_read_by_name() -> None:
    workload = read_trace("synthetic-sia:jobs=3,seed=7")
    assert workload.synthetic
    assert len(workload.jobs) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param(
            "sia-philly-1", "its owners publish it at github.com/siasosp23/artifacts", id="an absent set"
        ),
        pytest.param("helios-venus", "helios/*/cluster_log.csv below the data folder", id="an absent family"),
        pytest.param("synthetic-phily", "did you mean 'synthetic-philly'?", id="a slip"),
        pytest.param(
            "jobs.csv", "no trace file and no built-in trace is called 'jobs.csv'", id="an absent file"
        ),
    ],
)
def test_an_unknown_trace_is_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as refused:
        read_trace(name)
    assert message in str(refused.value)
