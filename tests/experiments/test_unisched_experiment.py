from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from stretto.experiments.published import EXPERIMENTS
from stretto.experiments.reproduction import Made, Request, verdicts_of
from stretto.experiments.spec import RunSpec
from stretto.experiments.unisched import comparison, estimator, parts, runs
from stretto.experiments.unisched.comparison import figure6, figure6_density, figure12, table3
from stretto.experiments.unisched.parts import figure9, figure10, figure11
from stretto.experiments.unisched.runs import miss_rate
from stretto.sim.result import Result

pytestmark = pytest.mark.heavy

MADE = Request(data=None, scale=0.0, workers=1)


@pytest.fixture(autouse=True)
def a_few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rival, one cluster, a short stretch of arrivals, and few points of each curve."""
    few: dict[str, object] = {
        "DEADLINE_AWARE": ("hydra",),
        "LEARNERS": ("unheard-of",),
        "OTHERS": ("hydra", "unheard-of"),
        "CLUSTERS": {"C120": "gpu8-960"},
        "HELIOS": ("H_MIX1", "H_MIX2"),
        "LEAST_JOBS": 25,
        "DENSITIES": (1.0, 1.6),
        "OVERHEADS": (1,),
        "ERRORS": (0.4,),
        "LEASES_MIN": (10,),
        "HOSTILE": (0.8,),
        "SEEDS": range(2),
        "TESTBED_FIGURES": {60: (4.97, 266.39)},
        "FEWER_JOBS": (30,),
        "SCALES": {"gpu8-256": 256},
    }
    for module in (runs, comparison, parts, estimator):
        for name in few.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, few[name])


def ours(made: Made) -> dict[tuple[str, str], float | None]:
    return {(row.row, row.metric): row.ours for row in made[1]}


def test_the_figures_can_be_made_by_name() -> None:
    names = {name.removeprefix("unisched-") for name in EXPERIMENTS if name.startswith("unisched-")}
    assert names == {
        "table3",
        "fig1",
        "fig3",
        "fig6",
        "fig6cd",
        "fig7",
        "fig8",
        "fig9",
        "fig10",
        "fig11",
        "fig12",
    }


def test_without_philly_its_workloads_are_left_out_and_absent_policies_are_named() -> None:
    made = figure6(MADE)
    rates = [name for name, metric in ours(made) if metric == "R_slo"]
    assert rates == [
        f"C120 {workload}: {policy}" for workload in ("H_MIX1", "H_MIX2") for policy in ("unisched", "hydra")
    ]
    assert all(0.0 <= (ours(made)[name, "R_slo"] or 0.0) <= 1.0 for name in rates)
    assert any("left out: unheard-of" in note for note in made[2])
    assert not any(one.real for one in made[0])


def test_ratios_are_the_least_and_the_most_over_the_workloads() -> None:
    values = ours(figure6(MADE))
    jct = [
        (values[f"C120 {workload}: hydra", "best_effort_jct_s"] or np.nan)
        / (values[f"C120 {workload}: unisched", "best_effort_jct_s"] or np.nan)
        for workload in ("H_MIX1", "H_MIX2")
    ]
    name = "best-effort JCT: hydra, unheard-of over unisched"
    assert [values[name, "least"], values[name, "most"]] == pytest.approx([min(jct), max(jct)])


def test_the_testbed_is_a_mean_over_made_samples_with_its_interval_and_other_loads_beside_it() -> None:
    _, rows, notes = table3(MADE)
    by_name = {(row.row, row.metric): row for row in rows}
    missed = by_name["T[60]: unisched", "R_slo_percent"]
    assert missed.paper == 4.97
    assert 0.0 <= (missed.ours or 0.0) <= 100.0
    assert (by_name["T[60]: unisched", "R_slo_percent_plus_minus"].ours or 0.0) >= 0.0
    assert by_name["T[60]: hydra", "avg_jct_min"].paper is None
    loads = [by_name[f"T[{jobs}]: unisched", "load"].ours or 0.0 for jobs in (30, 60)]
    assert 0.0 < loads[0] < loads[1]
    assert any("2 made samples" in note for note in notes)


@pytest.mark.long
def test_every_part_of_the_other_figures_has_its_rows() -> None:
    for figure, begins in ((figure6_density, ("100%: ", "160%: ")), (figure11, ("80% hostile: joint",))):
        names = {name for name, _ in ours(figure(MADE))}
        assert all(any(name.startswith(begin) for name in names) for begin in begins)


@pytest.mark.long
def test_the_estimators_parts_can_be_switched_off_one_by_one() -> None:
    values = ours(figure9(MADE))
    assert ("a H_MIX2: static profiling", "longest_wait_to_be_profiled_s") in values
    assert ("b H_MIX1: without learning curves", "R_slo_of_goals") in values
    assert ("c H_MIX2, overhead x 1: without expected suspensions", "R_slo") in values
    assert ("d H_MIX2, noise 40%", "R_slo") in values


@pytest.mark.long
def test_the_selectors_decisions_are_timed_and_their_proofs_counted() -> None:
    values = ours(figure10(MADE))
    assert ("a H_MIX1, lease of 10 min", "R_slo") in values
    proved = values["d 256 GPUs", "proved_optimal"]
    assert proved is not None
    assert 0.0 <= proved <= 1.0


@pytest.mark.long
def test_chronus_is_run_with_each_of_unischeds_parts() -> None:
    names = {name for name, _ in ours(figure12(MADE))}
    variants = ("unisched", "chronus", "chronus + estimator", "chronus + selector")
    assert {f"H_MIX1: {variant}" for variant in variants} <= names


def test_chronus_and_its_selector_profile_on_equally_many_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunSpec] = []

    def run(request: Request, cases: Sequence[runs.Case]) -> dict[runs.Case, list[Result]]:
        asked.extend(runs.spec_of(request, case) for case in cases)
        return {}

    monkeypatch.setattr(comparison, "run_draws", run)
    figure12(MADE)
    aside = {
        int(spec.settings.get("policy.profiling_gpus", 0))
        + 8 * int(spec.settings.get("policy.profile_nodes", 0))
        for spec in asked
        if spec.policy == "chronus" or spec.settings.get("policy.profiling") == "static"
    }
    assert aside == {runs.CHRONUS_PROFILES_ON}


def test_what_the_text_says_of_unischeds_parts_beside_chronus_is_compared() -> None:
    missed = {
        ("H_MIX1", "chronus"): [0.10, 0.14],
        ("H_MIX1", "unisched"): [0.06, 0.10],
        ("H_MIX1", "chronus + estimator"): [0.05, 0.10],
        ("H_MIX1", "chronus + selector"): [0.12, 0.15],
        ("P_MIX1", "chronus"): [0.60],
        ("P_MIX1", "unisched"): [0.50],
        ("P_MIX1", "chronus + estimator"): [0.63],
        ("P_MIX1", "chronus + selector"): [0.586],
    }
    jct_s = {
        (workload, name): took_s
        for workload in ("H_MIX1", "P_MIX1")
        for name, took_s in zip(comparison.BELOW_CHRONUS, (100.0, 125.0, 160.0), strict=True)
    }
    jct_s |= {("H_MIX1", "chronus"): 200.0, ("P_MIX1", "chronus"): 400.0}
    rows = [row for row in comparison.beside_chronus(missed, jct_s) if "plus_minus" not in row.metric]
    below, speedup = "R_slo_below_chronus", "best_effort_speedup"
    assert [
        (row.row, row.metric, row.paper, row.bound, str(verdict))
        for row, verdict in zip(rows, verdicts_of(rows), strict=True)
    ] == [
        ("unisched: most over the workloads", below, 0.052, "at most", "contradicted"),  # 0.1
        ("chronus + estimator: most over the workloads", below, 0.042, "at most", "contradicted"),  # 0.045
        ("H_MIX1/chronus + estimator", below, 0.042, "", "reproduced"),  # 0.045
        ("chronus + selector: most over the workloads", below, 0.015, "at most", "reproduced"),  # 0.014
        ("P_MIX1/chronus + selector", below, 0.015, "", "reproduced"),  # 0.014
        ("chronus + estimator: most on Helios", speedup, 1.73, "at most", "reproduced"),  # 1.6
        ("chronus + selector: least over the workloads", speedup, 1.04, "at least", "reproduced"),  # 1.25
        ("chronus + selector: most over the workloads", speedup, 1.66, "at most", "contradicted"),  # 2.5
    ]


def test_chronus_profiles_on_fewer_gpus_of_the_testbed_and_the_notes_say_so() -> None:
    for cluster, gpus in (("C120", 16), (runs.TESTBED, 8)):
        assert any(f"chronus profiles on {gpus} GPUs" in note for note in runs.notes_of(MADE, cluster))


def test_only_a_part_of_the_arrivals_says_that_it_fills_nothing() -> None:
    said = {scale: runs.notes_of(replace(MADE, scale=scale)) for scale in (0.1, 1.0)}
    assert len(said[0.1]) == len(said[1.0]) + 1


def test_made_workloads_are_drawn_several_times_and_real_ones_are_not() -> None:
    whole = replace(MADE, scale=1.0)
    made, real = (runs.Case("one", workload, "hydra", {}) for workload in ("H_MIX2", "P_MIX2"))
    assert [draw.seed for draw in runs.draws_of(whole, made)] == [0, 1, 2]
    assert len({runs.spec_of(whole, draw).trace for draw in runs.draws_of(whole, made)}) == 3
    assert runs.draws_of(whole, real) == [real]
    assert len(runs.draws_of(MADE, made)) == 1


def test_a_figure_of_several_draws_is_their_mean_with_an_interval() -> None:
    def avg_jct_s(result: Result) -> float | None:
        return float(result.jct_s.mean()) if len(result.jct_s) else None

    cases = [runs.Case("one", "H_MIX2", "hydra", {}, seed=seed) for seed in (0, 1)]
    drawn = list(runs.run_cases(MADE, cases).values())
    mean, half = runs.rows_of_draws("one", "avg_jct_s", avg_jct_s, drawn)
    assert mean.ours == pytest.approx(np.mean([avg_jct_s(result) for result in drawn]))
    assert (half.metric, (half.ours or 0.0) > 0.0) == ("avg_jct_s_plus_minus", True)


def test_the_longest_decision_is_shown_of_one_draw_alone() -> None:
    case = runs.Case("one", "H_MIX2", "hydra", {})
    result = runs.run_cases(MADE, [case])[case]
    shown = [{row.metric for row in runs.figures_of("one", [result] * draws)} for draws in (1, 2)]
    assert ["policy_ms_max" in metrics for metrics in shown] == [True, False]


def test_the_miss_rate_is_one_minus_the_mean_share_of_rewards() -> None:
    case = runs.Case("one", "H_MIX2", "hydra", {})
    result = runs.run_cases(MADE, [case])[case]
    nobody_in_time = replace(result, completed_s=result.completed_s + 1e9)
    everybody = replace(result, completed_s=result.requests.submitted_s)
    assert (miss_rate(nobody_in_time), miss_rate(everybody)) == (1.0, 0.0)
    assert 0.0 <= (miss_rate(result) or 0.0) < 1.0


@pytest.mark.long  # a figure of the paper, which its page repeats
def test_equation_2_is_exact_where_it_was_measured_and_ends_are_foreseen_better_later() -> None:
    values = ours(estimator.figure7(MADE))
    assert values["a 2 GPUs", "mean_error"] == pytest.approx(0.0, abs=1e-9)
    early, late = (values[f"c {part} of the training", "mean_error"] for part in ("10%", "80%"))
    assert early is not None
    assert late is not None
    assert 0.0 < late < early


def test_stops_are_counted_with_and_without_deadlines() -> None:
    values = ours(estimator.figure8(MADE))
    assert ("H_MIX1", "restarts_best_effort") in values
    stops = [values[name, "restarts_with_deadline"] for name in runs.HELIOS]
    assert all(count is not None for count in stops)
    assert values["jobs with deadlines, over the workloads", "most"] == max(count or 0.0 for count in stops)


def test_every_policy_is_told_durations_with_the_errors_of_the_papers_estimator() -> None:
    for policy in ("unisched", *runs.OTHERS):
        spec = runs.spec_of(MADE, runs.Case("one", "H_MIX2", policy, {}))
        assert float(spec.settings["sim.duration_error"]) == runs.ESTIMATE_ERROR
    reckon_with_steps = {"themis": ("policy.estimated", "true"), "optimus": ("policy.remaining", "estimate")}
    for policy, (name, value) in reckon_with_steps.items():
        assert runs.spec_of(MADE, runs.Case("one", "H_MIX2", policy, {})).settings[name] == value
    exact = runs.Case("one", "H_MIX2", "unisched", {"sim.duration_error": 0.0})
    assert float(runs.spec_of(MADE, exact).settings["sim.duration_error"]) == 0.0
    assert set(runs.SHOWN) <= set(runs.notes_of(MADE))


def test_trainings_that_stop_at_their_best_take_fewer_epochs_and_at_99_percent_fewer_still() -> None:
    values = ours(estimator.figure1(MADE))
    best, near = (values[f"at {word} of the best", "mean_reduction"] or 0.0 for word in ("100%", "99%"))
    assert 0.0 < best < near < 1.0


@pytest.mark.long  # a figure of the paper, which its page repeats
def test_ends_foreseen_half_way_are_wrong_by_class_of_job() -> None:
    values = ours(estimator.figure7(MADE))
    for workload in runs.HELIOS:
        assert 0.0 < (values[f"d {workload}, jobs with deadlines", "mean_error"] or 0.0) < 0.5


@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.sockets
def test_a_suspension_and_a_resumption_of_a_real_training_are_timed_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(estimator, "TIMED", ("mlp",))
    values = ours(estimator.figure3(MADE))
    suspended, resumed = (values[f"mlp, {kind}", "takes_s"] or 0.0 for kind in ("suspension", "resumption"))
    assert suspended > 0.0
    assert resumed > 0.0
