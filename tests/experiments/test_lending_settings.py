"""From settings to lenders: who lends, how much of it they need themselves, and by which rule."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stretto.experiments.log import decision
from stretto.experiments.spec import RunSpec, run_spec, set_up
from stretto.model import InputError

LENDING = """
gpu_types: {own: {}, lent: {speed: 0.5, stand_ins: 2}}
nodes: [{type: own, gpus: 8}]
lenders: [{name: inference, type: lent, gpus: 8, count: 4, headroom: 0.25, demand: DEMAND}]
"""


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    demand, path = tmp_path / "demand.csv", tmp_path / "lending.yaml"
    demand.write_text("timestamp_s,demand_fraction\n0,0.25\n300,0.5\n")
    path.write_text(LENDING.replace("DEMAND", str(demand)))
    return str(path)


def spec(cluster: str, **settings: str) -> RunSpec:
    named = {key.replace("_", ".", 1): value for key, value in settings.items()}
    return RunSpec(cluster, "synthetic-philly:jobs=20,hours=2", "fifo", settings=named)


def test_without_settings_of_lend_nobody_lends(cluster: str) -> None:
    _, setup = set_up(spec(cluster))
    assert (setup.lending, setup.lenders) == (None, ())


def test_the_demand_of_the_cluster_file_holds_unless_another_is_named(cluster: str) -> None:
    _, setup = set_up(spec(cluster, lend_rule="lyra"))
    (lender,) = setup.lenders
    assert (lender.name, lender.headroom, lender.demand.tolist()) == ("inference", 0.25, [0.25, 0.5])
    assert lender.nodes.tolist() == [1, 2, 3, 4]
    _, setup = set_up(spec(cluster, lend_rule="lyra", lend_demand="synthetic"))
    assert len(setup.lenders[0].demand) > 1_000


def test_the_demand_in_a_cluster_file_is_looked_for_beside_it(tmp_path: Path) -> None:
    (tmp_path / "use.csv").write_text("timestamp_s,demand_fraction\n0,0.25\n300,0.5\n")
    (tmp_path / "lending.yaml").write_text(LENDING.replace("DEMAND", "use.csv"))
    _, setup = set_up(spec(str(tmp_path / "lending.yaml"), lend_rule="lyra"))
    assert setup.lenders[0].demand.tolist() == [0.25, 0.5]


def test_a_demand_may_come_several_times(cluster: str) -> None:
    _, setup = set_up(spec(cluster, lend_repeat="3"))
    (lender,) = setup.lenders
    assert lender.demand.tolist() == [0.25, 0.5] * 3
    assert lender.source.endswith("demand.csv, 3 times")


def test_lent_nodes_are_used_and_the_result_says_by_which_settings(cluster: str) -> None:
    told = run_spec(spec(cluster, lend_forecast="last")).summary()
    assert told["completed"] == told["jobs"]
    assert told["settings"]["lend.forecast"] == "last"
    assert told["settings"]["lend.demand"].endswith("demand.csv")
    assert told["usage_overall"] is not None
    assert run_spec(spec(cluster)).summary()["usage_overall"] is None


def test_runs_of_old_logs_go_on_foreseeing_by_the_oracle(cluster: str) -> None:
    now, then = spec(cluster, lend_rule="lyra"), replace(spec(cluster, lend_rule="lyra"), former=True)
    lending = [set_up(run)[1].lending for run in (now, then)]
    assert [one.foresight for one in lending if one is not None] == [False, True]


def test_a_log_says_what_was_settled_with_lenders(cluster: str) -> None:
    told: list[dict[str, Any]] = []
    run = spec(cluster, lend_forecast="oracle")
    run_spec(run, record=lambda seen, plan: told.append(decision(seen, plan)))
    settled = [one["loans"] for one in told if "loans" in one]
    assert [one["on_loan"] for one in settled] == [1, 1]  # of 4, headroom 1, and 2 needed within 300 s
    assert all(one["preempted"] == one["scaled_in"] == [] for one in settled)
    assert len(settled) < len(told)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lend_rule": "lira"}, "lend.rule"),
        ({"lend_forecst": "last"}, r"unknown setting lend\.forecst, did you mean 'forecast'"),
        ({"lend_demnd": "synthetic"}, r"unknown setting lend\.demnd, did you mean 'demand'"),
        ({"lend_repeat": "0"}, "lend.repeat must be a whole number from 1 to 1000, got '0'"),
        ({"lend_demand": "nowhere.csv"}, "demand 'nowhere.csv': expected a file"),
    ],
)
def test_wrong_settings_are_refused(cluster: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        set_up(spec(cluster, **settings))


def test_jobs_that_only_lent_nodes_could_run_are_refused_where_nobody_lends(cluster: str) -> None:
    only_lent = "synthetic-philly:jobs=5@lyra:own_type=own,lent_type=lent,keep=fungible,fungible=1"
    run = RunSpec(cluster, only_lent, "fifo")
    with pytest.raises(InputError, match=r"job job-0: gpus must be at most 0, .*\(lent\)"):
        set_up(run)
    assert len(set_up(replace(run, settings={"lend.rule": "lyra"}))[0].jobs) == 5


def test_a_cluster_without_lenders_cannot_lend() -> None:
    with pytest.raises(InputError, match=r"lend\.rule: cluster sia-homo-64 has no lenders"):
        set_up(spec("sia-homo-64", lend_rule="lyra"))


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("synthetic-philly@unknown", "unknown recipe 'unknown'"),
        ("synthetic-philly@cornucopia:shares=1", "shares"),
        ("synthetic-philly@cornucopia:seed", "parameters must be key=value"),
        ("synthetic-philly@cornucopia:seed=x", "seed"),
        ("synthetic-philly:jobs=5@lyra:keep=fungible,fungible=0", "expected one that leaves jobs of"),
    ],
)
def test_a_wrong_recipe_is_refused(trace: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        set_up(RunSpec("sia-homo-64", trace, "fifo"))
