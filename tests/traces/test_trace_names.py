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
