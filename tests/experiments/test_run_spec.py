"""A run as words: what they mean, where they may be said, and which part of a trace they keep."""

from dataclasses import replace
from pathlib import Path

import pytest

from stretto.experiments.spec import RunSpec, parse_settings, run_spec, set_up, setup_of
from stretto.model import InputError
from stretto.sim.run import world_of

TRACE = "job_id,submitted_s,gpus,duration_s\n" + "".join(f"j{at},{at},1,5\n" for at in range(0, 101, 10))


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eleven.csv").write_text(TRACE)
    return "eleven.csv"


def spec(trace: str, **rest: object) -> RunSpec:
    return RunSpec("sia-homo-64", trace, rest.pop("policy", "fifo"), **rest)  # type: ignore[arg-type]


def test_settings_are_split_at_the_first_sign_of_equality() -> None:
    assert parse_settings(["policy.x=a=b", "place.rule="]) == {"policy.x": "a=b", "place.rule": ""}


@pytest.mark.parametrize(
    ("window", "jobs"),
    [(1.0, 11), (0.5, 6), (0.1, 2), (0.0, 1)],
    ids=["all", "half of the time", "a tenth of the time", "only the first"],
)
def test_a_window_keeps_the_first_arrivals(window: float, jobs: int, trace: str) -> None:
    workload, _ = set_up(spec(trace, window=window))
    assert [job.id for job in workload.jobs] == [f"j{10 * number}" for number in range(jobs)]
    assert len(workload.truths) == jobs


def test_words_from_anywhere_name_files_absolutely_and_leave_names_alone(trace: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    moved = spec(trace, policy="mine.py:Mine", profiles="nowhere").from_anywhere()
    assert moved.trace == str(tmp_path / "eleven.csv")
    assert moved.policy == f"{tmp_path / 'mine.py'}:Mine"
    assert (moved.cluster, moved.profiles) == ("sia-homo-64", "nowhere")
    assert spec("demo:jobs=3").from_anywhere() == spec("demo:jobs=3")


def test_the_demand_of_lenders_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "use.csv").write_text("timestamp_s,demand_fraction\n0,0.5\n300,0.5\n")
    moved = spec("demo", settings={"lend.demand": "use.csv", "lend.rule": "lyra"}).from_anywhere()
    assert moved.settings == {"lend.demand": str(tmp_path / "use.csv"), "lend.rule": "lyra"}
    named = spec("demo", settings={"lend.demand": "synthetic"})
    assert named.from_anywhere() == named


def test_a_folder_may_have_the_mark_of_recipes_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "me@home"
    folder.mkdir()
    (folder / "eleven.csv").write_text(TRACE)
    plain, _ = set_up(spec(str(folder / "eleven.csv")))
    prepared, _ = set_up(spec(f"{folder / 'eleven.csv'}@cornucopia:seed=1"))
    assert (len(plain.jobs), prepared.name) == (11, "eleven@cornucopia:seed=1")
    assert {job.max_gpus for job in prepared.jobs} == {2}


def test_a_window_is_taken_of_what_the_recipes_have_made(trace: str) -> None:
    whole, _ = set_up(spec(f"{trace}@cornucopia:interactive_s=1"))
    part, _ = set_up(spec(f"{trace}@cornucopia:interactive_s=1", window=0.5))
    assert list(part.jobs) == list(whole.jobs[:6])


def test_a_model_without_a_curve_is_named_before_anything_runs(trace: str, tmp_path: Path) -> None:
    rows = "j0,0,1,5,vgg16\nj1,1,1,5,resnet999\n"
    (tmp_path / "models.csv").write_text("job_id,submitted_s,gpus,duration_s,model\n" + rows)
    wrong = spec("models.csv", settings={"sim.scaling": "catalogue"})
    workload, setup = set_up(wrong)
    with pytest.raises(InputError, match=r"^job j1: sim\.scaling=catalogue: unknown model 'resnet999'"):
        world_of(workload, setup)
    assert set_up(replace(wrong, skip_bad=True))[0].skipped[0].startswith("job j1: sim.scaling=catalogue")


def test_a_made_trace_takes_the_seed_of_the_run_unless_it_names_one() -> None:
    workload, _ = set_up(spec("demo:jobs=4", seed=7))
    named, _ = set_up(spec("demo:jobs=4,seed=7", seed=1))
    assert [job.submitted_s for job in workload.jobs] == [job.submitted_s for job in named.jobs]


def test_profiles_bring_the_fidelity_of_the_published_simulator_unless_told_otherwise(tmp_path: Path) -> None:
    folder = tmp_path / "profiles" / "cifar10"
    folder.mkdir(parents=True)
    (folder / "placements-aws.csv").touch()  # contents are read when a job asks for them
    given = {"policy": "sia", "profiles": str(tmp_path / "profiles")}
    asked = ("sim.fidelity", "policy.first_type", "policy.discount")

    def resolved(**rest: object) -> list[object]:
        settings = setup_of(spec("demo", **rest)).resolved()
        return [settings[name] for name in asked]

    assert resolved(**given) == ["artifact", "blind", "paper"]
    assert resolved(**given, settings={"sim.fidelity": "paper"}) == ["paper", "profiled", "paper"]
    assert resolved(policy="sia") == ["paper", "profiled", "robust"]


def test_nothing_is_recorded_before_all_input_is_good(trace: str, tmp_path: Path) -> None:
    (tmp_path / "nobody.csv").write_text("job_id,submitted_s,gpus,model\na,0,1,nobody\n")
    recorded: list[object] = []
    with pytest.raises(InputError, match="'nobody'"):
        run_spec(spec("nobody.csv"), record=lambda snapshot, plan: recorded.append(plan))
    assert recorded == []


def test_a_training_that_would_mix_types_is_refused_where_there_are_several() -> None:
    mixed = RunSpec("sia-hetero-64", "demo:jobs=4@lyra:heterogeneous=1,own_type=a100,lent_type=t4", "fifo")
    workload, setup = set_up(mixed)
    with pytest.raises(InputError, match="heterogeneous: expected a job with a duration"):
        world_of(workload, setup)
    world_of(*set_up(replace(mixed, cluster="sia-homo-64", trace="demo:jobs=4")))
