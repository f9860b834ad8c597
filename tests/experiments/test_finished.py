"""What is kept of a finished simulation: all of it, and only for as long as nothing has changed."""

import ast
import os
import sys
import time
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.experiments import finished as module
from stretto.experiments.finished import PACKAGE, Finished, key_of, sources, usual_folder
from stretto.experiments.packing import Damaged, read_values, write_tree, write_values
from stretto.experiments.spec import RunSpec, run_spec
from stretto.model import Adaptivity
from stretto.sim.result import Result
from stretto.testing.builders import a_job

DEMO = RunSpec("sia-hetero-64", "demo:jobs=12", "sia", seed=3)
TRACE = "job_id,submitted_s,gpus,duration_s\na,0,4,100\nb,10,2,50\n"


def same(one: Any, other: Any) -> bool:
    """Whether two values are of the same types and equal, bit for bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if is_dataclass(one) and not isinstance(one, type):
        return all(same(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))
    return bool(one == other) or (one != one and other != other)


def written(path: Path, value: Any) -> Any:
    with path.open("wb") as file:
        write_values(file, value)
    return read_values(path)


@pytest.fixture(scope="module")
def result() -> Result:
    return run_spec(DEMO)


@pytest.fixture
def keep(tmp_path: Path) -> Finished:
    return Finished(tmp_path / "kept")


def put(keep: Finished, spec: RunSpec, result: Result) -> Path:
    key = key_of(spec)
    assert key is not None
    keep.put(spec, key, result, 1.5, 1.25)
    (path,) = keep.folder.iterdir()
    return path


def test_a_result_comes_back_with_every_column(keep: Finished, result: Result) -> None:
    put(keep, DEMO, result)
    taken = keep.take(DEMO)
    assert taken is not None
    assert taken[1:] == (1.5, 1.25)
    assert same(taken[0], result)
    assert taken[0].summary() == result.summary()
    assert taken[0].history.held  # there was something to compare


def test_a_result_with_fairness_and_lenders_columns_comes_back(keep: Finished) -> None:
    spec = replace(DEMO, policy="fifo", fairness=True, skip_bad=True)
    result = run_spec(spec)
    put(keep, spec, result)
    taken = keep.take(spec)
    assert taken is not None
    assert taken[0].fairness is not None
    assert same(taken[0], result)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param([1.5, float("nan"), float("inf"), -0.0], id="numbers that JSON does not know"),
        pytest.param([float(n) for n in range(20)], id="many numbers"),
        pytest.param([2**70, *range(20)], id="numbers that no array holds"),
        pytest.param([1, 1.0, True, None, "1"] * 5, id="alike but different"),
        pytest.param((), id="nothing"),
        pytest.param([(n, np.arange(3)) for n in range(20)], id="pairs with arrays of one shape"),
        pytest.param([np.arange(n) for n in range(20)], id="arrays of many shapes"),
        pytest.param([(n,) * (n % 3) for n in range(20)], id="tuples of many lengths"),
        pytest.param({"a": {("b", 1): np.float32(2.5)}, "c": np.zeros((0, 3), np.int32)}, id="mappings"),
        pytest.param([Adaptivity.RIGID, Adaptivity.ADAPTIVE] * 10, id="enumerations"),
        pytest.param([a_job(f"job-{n}", gpus=1 + n % 4) for n in range(20)], id="jobs"),
        pytest.param(["Zürich", "東京", "", "\n"], id="texts"),
        pytest.param([Adaptivity.RIGID, "rigid", ("rigid",), (), {}, []] * 5, id="words that are alike"),
    ],
)
def test_a_value_comes_back_as_it_was(tmp_path: Path, value: Any) -> None:
    assert same(written(tmp_path / "value.npz", value), value)


@dataclass
class Stranger:
    x: int = 1


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    "value", [object(), Stranger(), Colour.RED, {1, 2}, np.array([object()]), [Stranger()] * 20]
)
def test_what_is_no_value_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError):
        written(tmp_path / "value.npz", value)


def test_reading_makes_nothing_but_values_of_this_package(tmp_path: Path) -> None:
    for name in ("os:system", "subprocess:Popen", "stretto.experiments.finished:Path", "stretto.nowhere:X"):
        with (tmp_path / "value.npz").open("wb") as file:
            write_tree(file, {"of": name, "fields": {}}, [])
        with pytest.raises(Damaged, match=r"no value|No module"):
            read_values(tmp_path / "value.npz")


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_cut_file_is_damaged(keep: Finished, result: Result, cut: int) -> None:
    path = put(keep, DEMO, result)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(Damaged, match=r"sia-demo-jobs=12-"):
        keep.take(DEMO)


def test_an_altered_byte_is_noticed(keep: Finished, result: Result) -> None:
    path = put(keep, DEMO, result)
    whole = path.read_bytes()
    for place in (0, 10, len(whole) // 2, len(whole) - 50, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        with pytest.raises(Damaged, match="incomplete, altered, or no such file"):
            keep.take(DEMO)


def test_numpy_opens_what_is_kept(keep: Finished, result: Result) -> None:
    with np.load(put(keep, DEMO, result), allow_pickle=False) as columns:
        assert any(np.array_equal(columns[name], result.completed_s) for name in columns.files)


def test_a_file_of_another_run_is_not_taken_for_this_one(keep: Finished, result: Result) -> None:
    path = put(keep, DEMO, result)
    other = replace(DEMO, seed=4)
    key = key_of(other)
    assert key is not None
    path.rename(keep.folder / module.file_name(other, key))
    with pytest.raises(Damaged, match="not the run that its name says"):
        keep.take(other)


def test_fresh_takes_nothing_from_before(keep: Finished, result: Result) -> None:
    put(keep, DEMO, result)
    assert replace(keep, since_s=time.time() + 60).take(DEMO) is None
    assert replace(keep, since_s=time.time() - 60).take(DEMO) is not None  # parts of a table may share a run


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 4},
        {"policy": "fifo"},
        {"cluster": "sia-homo-64"},
        {"window": 0.5},
        {"fairness": True},
        {"trace": "demo:jobs=13"},
        {"settings": {"sim.restart_s": "1"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_run_has_another_key(change: dict[str, Any]) -> None:
    assert key_of(DEMO) is not None
    assert key_of(replace(DEMO, **change)) not in (key_of(DEMO), None)


def test_the_key_follows_the_content_of_the_trace_and_not_its_time(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(TRACE)
    spec = replace(DEMO, trace=str(trace), policy="fifo")
    before = key_of(spec)
    os.utime(trace, (1, 1))
    assert key_of(spec) == before
    trace.write_text(TRACE.replace("100", "101"))
    os.utime(trace, (2, 2))
    assert key_of(spec) not in (before, None)


def test_the_key_follows_what_constraints_say_and_not_where_they_lie(tmp_path: Path) -> None:
    """A table writes them to a folder of the moment, and goes on after an interruption all the same."""
    keys = []
    for folder, gpus in (("first", 8), ("second", 8), ("third", 4)):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "queues.yaml"
        path.write_text(f"queues:\n  - {{name: vision, quota_gpus: {gpus}}}\n", encoding="utf-8")
        keys.append(key_of(replace(DEMO, constraints=str(path))))
    assert None not in keys
    assert keys[0] == keys[1] != keys[2]
    assert key_of(DEMO) not in keys


def test_the_key_follows_every_file_of_the_profiles(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    (profiles / "inside").mkdir(parents=True)
    (profiles / "inside" / "one.csv").write_text("1")
    spec = replace(DEMO, profiles=str(profiles))
    before = key_of(spec)
    (profiles / "two.csv").write_text("2")
    with_two = key_of(spec)
    (profiles / "two.csv").rename(profiles / "three.csv")
    assert len({before, with_two, key_of(spec)}) == 3


def test_the_key_follows_a_file_that_a_setting_or_a_recipe_names(tmp_path: Path) -> None:
    file = tmp_path / "demand.csv"
    file.write_text("1")
    by_setting = replace(DEMO, settings={"lend.demand": str(file)})
    by_recipe = replace(DEMO, trace=f"demo@made-up:file={file}")
    before = key_of(by_setting), key_of(by_recipe)
    file.write_text("22")
    assert key_of(by_setting) != before[0]
    assert key_of(by_recipe) != before[1]


def test_the_key_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "sim/world.py",
        "policies/sia.py",
        "cli/app.py",
        "experiments/spec.py",
        "experiments/sia.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    seen = [key_of(DEMO)]
    for name, counts in [
        ("sim/world.py", True),
        ("policies/sia.py", True),
        ("experiments/spec.py", True),
        ("cli/app.py", False),
        ("experiments/sia.py", False),
    ]:
        (tmp_path / name).write_text("22")
        seen.append(key_of(DEMO))
        assert (seen[-1] != seen[-2]) is counts, name


@pytest.mark.heavy
def test_no_source_that_counts_imports_one_that_does_not() -> None:
    counted = {path.relative_to(PACKAGE).as_posix() for path in sources()}
    for path in sources():
        if path.suffix != ".py" or path.name in ("packing.py", "finished.py"):
            continue
        if path == PACKAGE / "__init__.py":
            continue  # it hands out what notebooks use, where somebody asks for it
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                inside = name.split(".")[1:] if name.startswith("stretto.") else []
                if inside and inside[0] in module.APART:
                    assert "/".join(inside) + ".py" in counted, f"{path.name} imports {name}"


def test_nothing_is_kept_of_what_depends_on_more_than_can_be_seen(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import elsewhere\n")
    (tmp_path / "mine.yaml").write_text("")
    assert key_of(replace(DEMO, policy=f"{tmp_path}/mine.py:Mine")) is None
    assert key_of(replace(DEMO, cluster=f"{tmp_path}/mine.yaml")) is None
    assert key_of(replace(DEMO, trace="nobody-knows")) is None


def test_half_a_file_never_bears_the_name(
    keep: Finished, result: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(file: Any, value: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_values", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(keep, DEMO, result)
    assert list(keep.folder.iterdir()) == []


def test_what_a_killed_process_left_is_tidied_up_later(keep: Finished) -> None:
    keep.folder.mkdir()
    old, new = keep.folder / "old.part", keep.folder / "new.part"
    old.touch()
    new.touch()
    os.utime(old, (1, 1))
    keep.tidy()
    assert [path.name for path in keep.folder.iterdir()] == ["new.part"]


def test_the_usual_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert usual_folder() == tmp_path / "cache" / "stretto" / "finished"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert usual_folder() == tmp_path / ".cache" / "stretto" / "finished"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert usual_folder() == tmp_path / "Library" / "Caches" / "stretto" / "finished"
