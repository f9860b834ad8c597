from dataclasses import MISSING, fields, replace
from enum import StrEnum
from math import isnan, nan
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.drawn import scaled

from stretto.model import Adaptivity, Goal, InputError, Job, JobId, Purpose, Reward
from stretto.traces import Outcome, Truth, Workload, read_trace, write_trace
from stretto.traces.learning import LearningCurve

WORDS = st.text("abcXYZ 0123-_.:;|,\"'é#=/", max_size=8).map(str.strip)
NAMES = st.text("abc-019_", min_size=1, max_size=8)
TIMES = st.floats(0, 1e7)
ENDINGS = [".csv", ".csv.gz", pytest.param(".parquet", marks=pytest.mark.parquet)]


CURVES = st.builds(
    LearningCurve,
    epochs=st.integers(1, 50),
    dataset_samples=st.floats(1, 1e6),
    noise=st.floats(0, 0.1),
    seed=st.integers(0, 9),
)


# Values that depend on each other
NOT_ALONE = {"gpus_per_worker", "min_gpus", "max_gpus", "gpus", "purpose", "latency_s", "requests_per_s"}
POSITIVE = st.floats(0, 1e6, exclude_min=True)


def values_of(kind: type, at_least: float = -5, above: float = -10) -> st.SearchStrategy[Any]:
    """Values of a field that is a number, a text, a truth or a choice."""
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(int(max(at_least, -5)), 4096)
    if kind is float:
        return st.floats(max(above, -10), 100, exclude_min=True)
    return st.sampled_from(list(kind)) if issubclass(kind, StrEnum) else WORDS


PLAIN = {
    one.name: values_of(kind, one.metadata.get("at_least", -5), one.metadata.get("above", -10))
    for one, kind in ((one, get_type_hints(Job)[one.name]) for one in fields(Job))
    if isinstance(kind, type)
    and issubclass(kind, bool | int | float | str)
    and one.default is not MISSING
    and one.metadata.get("in_traces", True)
    and one.name not in NOT_ALONE
}


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    submitted_s = draw(TIMES)
    least = draw(st.integers(1, 8))
    gpus = draw(st.integers(least, 64))
    steps = draw(st.lists(st.floats(0, 1e6), max_size=3, unique=True).map(sorted))
    values = sorted((draw(st.floats(-10, 10)) for _ in steps), reverse=True)
    types = tuple(draw(st.lists(NAMES, max_size=3)))
    on_type = st.sampled_from(types) if types else NAMES
    plain = {name: draw(values) for name, values in PLAIN.items()}
    purpose = draw(st.sampled_from(Purpose))
    if purpose is Purpose.SERVING:
        plain |= {"heterogeneous": False, "latency_s": draw(POSITIVE), "requests_per_s": draw(POSITIVE)}
    return Job(
        id=JobId(draw(NAMES)),
        submitted_s=submitted_s,
        gpus=gpus,
        min_gpus=least,
        max_gpus=draw(st.sampled_from([0, gpus, 128])),
        checkpoints=draw(st.sampled_from([None, True, False])),
        goal=draw(st.none() | st.builds(Goal, st.floats(-1, 1), st.integers(1, 99))),
        gpu_types=types,
        reserved=draw(st.none() | st.tuples(st.integers(1, gpus), st.just(gpus), on_type)),
        rewards=tuple(
            Reward(due, value)
            for due, value in zip(sorted({submitted_s + step for step in steps}), values, strict=False)
        ),
        labels=draw(st.dictionaries(WORDS, WORDS, max_size=2)),
        purpose=purpose,
        **plain,
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    found = draw(st.lists(jobs(), min_size=1, max_size=5, unique_by=lambda job: job.id))
    ordered = sorted(found, key=lambda job: (job.submitted_s, job.id))
    truths = [
        Truth(
            duration_s=draw(st.just(nan) | st.floats(0, 1e6)),
            gpu_type=draw(NAMES),
            steps=draw(st.just(nan) | st.floats(1, 1e6)),
            outcome=draw(st.sampled_from(Outcome)),
            learning=draw(st.none() | CURVES),
            cpus_per_gpu=draw(st.just(nan) | st.floats(0.5, 32)),
        )
        for _ in ordered
    ]
    return Workload("some name", tuple(ordered), tuple(truths), "where it is from", draw(st.booleans()))


def test_every_field_of_a_job_is_drawn_here_or_is_in_no_trace() -> None:
    in_traces = {one.name for one in fields(Job) if one.metadata.get("in_traces", True)}
    by_hand = {
        "id",
        "submitted_s",
        *NOT_ALONE,
        "checkpoints",
        "goal",
        "gpu_types",
        "reserved",
        "rewards",
        "labels",
    }
    assert in_traces == {*PLAIN, *by_hand}


def same_number(one: float, other: float) -> bool:
    return one == other or (isnan(one) and isnan(other))


@pytest.mark.parametrize("ending", ENDINGS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=scaled(60), deadline=None)
@given(workload=workloads())
def test_reading_gives_back_what_was_written(tmp_path: Path, ending: str, workload: Workload) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"trace{ending}"
    write_trace(workload, path)
    again = read_trace(path)
    assert again.jobs == workload.jobs
    for truth, expected in zip(again.truths, workload.truths, strict=True):
        for number in ("duration_s", "steps", "cpus_per_gpu"):
            assert same_number(getattr(truth, number), getattr(expected, number))
        without = [replace(one, duration_s=0, steps=0, cpus_per_gpu=0) for one in (truth, expected)]
        assert without[0] == without[1]
    assert (again.name, again.source, again.synthetic) == (
        workload.name,
        workload.source,
        workload.synthetic,
    )
    assert again.skipped == ()


def a_workload(duration_s: float = nan) -> Workload:
    return Workload("w", (Job(JobId("a"), 0.0, 2),), (Truth(duration_s),))


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_same_workload_gives_the_same_bytes(tmp_path: Path, ending: str) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    first, second = tmp_path / f"a{ending}", tmp_path / f"b{ending}"
    write_trace(a_workload(duration_s=5.0), first)
    write_trace(a_workload(duration_s=5.0), second)
    assert first.read_bytes() == second.read_bytes()


def test_three_columns_are_enough_and_a_job_is_rigid_unless_it_says_more(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("job_id,submitted_s,gpus,cost_center\na,5,2,17\n")
    (job,) = read_trace(path).jobs
    assert job == Job(JobId("a"), 5.0, 2, adaptivity=Adaptivity.RIGID)


def test_an_empty_cell_means_what_a_missing_column_means(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    columns = (
        "duration_s,steps,batch_size,min_gpus,max_gpus,adaptivity,kind,preemptible,weight,priority,labels"
    )
    path.write_text(f"job_id,submitted_s,gpus,{columns}\na,5,2{',' * len(columns.split(','))}\n")
    (job,) = read_trace(path).jobs
    assert job == Job(JobId("a"), 5.0, 2, adaptivity=Adaptivity.RIGID)


def test_a_deadline_is_short_for_a_single_reward(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("job_id,submitted_s,gpus,deadline_s\na,5,2,50\nb,6,2,\n")
    assert [job.rewards for job in read_trace(path).jobs] == [(Reward(50.0, 1.0),), ()]


def test_deadline_and_rewards_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("job_id,submitted_s,gpus,deadline_s,rewards\na,5,2,50,50:1\n")
    with pytest.raises(InputError, match="expected deadline_s or rewards, found both"):
        read_trace(path)


def test_a_job_outside_its_own_range_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("job_id,submitted_s,gpus,min_gpus,max_gpus,adaptivity\na,0,1,,,\nb,5,2,4,3,adaptive\n")
    with pytest.raises(
        InputError, match=r"line 3: job b: expected 1 <= min_gpus <= gpus <= max_gpus, got 4, 2 and 3"
    ):
        read_trace(path)
    workload = read_trace(path, skip_bad=True)
    assert [job.id for job in workload.jobs] == ["a"]
    assert "line 3: job b: expected 1 <= min_gpus" in workload.skipped[0]


def test_a_trace_is_written_under_known_endings_only(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a name that ends in \.csv, \.csv\.gz or \.parquet"):
        write_trace(a_workload(), tmp_path / "trace.xlsx")
    with pytest.raises(InputError, match="cannot be written: No such file"):
        write_trace(a_workload(), tmp_path / "nowhere" / "trace.csv")


def test_every_column_is_documented() -> None:
    from stretto.traces.own import COLUMNS, DEADLINE

    page = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
    names = (*(column.name for column in COLUMNS), DEADLINE)
    assert [name for name in names if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize(
    "learning",
    [
        '{"epochs": 2.5, "dataset_samples": 9}',
        '{"epochs": 2, "dataset_samples": 9, "seed": -1}',
        '{"epochs": 2, "dataset_samples": 9, "best": NaN}',
        '{"epochs": "2", "dataset_samples": 9}',
        "[1, 2]",
        "{",
    ],
)
def test_a_learning_curve_that_is_none_is_one_clear_line(learning: str, tmp_path: Path) -> None:
    quoted = learning.replace('"', '""')
    path = tmp_path / "jobs.csv"
    path.write_text(f'job_id,submitted_s,gpus,duration_s,learning\na,0,1,5,"{quoted}"\n')
    with pytest.raises(InputError, match=r"line 2: learning must be a JSON object, the fields of a"):
        read_trace(path)


def test_a_job_of_larger_workers_has_at_least_one_of_them(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "job_id,submitted_s,gpus,duration_s,adaptivity,gpus_per_worker,max_gpus\n"
        "a,0,4,5,strong-scaling,2,8\nb,0,4,5,strong-scaling,,8\n"
    )
    assert [job.min_gpus for job in read_trace(path).jobs] == [2, 1]
