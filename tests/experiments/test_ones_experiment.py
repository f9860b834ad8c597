from dataclasses import replace
from functools import cache

import pytest

from stretto.experiments.causes import NOTHING
from stretto.experiments.ones import batches, progress, speeds, switches
from stretto.experiments.ones import comparison as ones
from stretto.experiments.ones.comparison import figure15, figure17
from stretto.experiments.ones.progress import figure6
from stretto.experiments.ones.speeds import figure2
from stretto.experiments.published import EXPERIMENTS
from stretto.experiments.reproduction import Made, Request, Tally
from stretto.traces.ones import KINDS, curve_of

pytestmark = pytest.mark.slow

WORKERS_OF_3 = ("1 worker, batch 32", "8 workers, batch 256")
MADE = Request(data=None, scale=0.001, workers=1)


@pytest.fixture(autouse=True)
def few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ones, "LEAST_JOBS", 8)
    monkeypatch.setattr(ones, "BASELINES", ("tiresias", "unheard-of"))
    monkeypatch.setattr(ones, "GPUS", (16, 32))
    monkeypatch.setattr(ones, "SEEDS", range(2))


@cache
def made_figure15() -> Made:
    """Of the few jobs above, the same for every test."""
    return figure15(MADE)


def ours(made: Made) -> dict[tuple[str, str], float | None]:
    return {(row.row, row.metric): row.ours for row in made[1]}


def test_the_figures_can_be_made_by_name() -> None:
    assert {name for name in EXPERIMENTS if name.startswith("ones-")} == {
        "ones-fig15",
        "ones-fig15-grown",
        "ones-fig17",
        "ones-fig17-grown",
        "ones-fig13",
        "ones-fig2",
        "ones-fig3",
        "ones-fig6",
        "ones-fig16",
    }


@pytest.mark.slow
def test_figure_15_says_how_much_less_ones_takes_and_how_sure_that_is() -> None:
    made = made_figure15()
    values = ours(made)
    mean_s = {policy: values[policy, "avg_jct_s"] for policy in ("ones", "tiresias")}
    less = 1 - (mean_s["ones"] or 0.0) / (mean_s["tiresias"] or 1.0)
    assert values["ones less than tiresias", "avg_jct_reduction"] == pytest.approx(less)
    assert (values["ones", "avg_jct_s_plus_minus"] or 0.0) > 0
    assert (values["ones less than tiresias", "avg_jct_reduction_plus_minus"] or 0.0) > 0
    assert 0 <= (values["ones less than tiresias", "wilcoxon_p_one_sided"] or 0.0) <= 1
    (limit,) = (row for row in made[1] if row.row.endswith("tiresias") and "wilcoxon" in row.metric)
    assert (limit.paper, limit.bound) == (0.05, "at most")  # section 4.2
    for policy in mean_s:
        parts = (values[policy, "avg_execution_s"] or 0.0) + (values[policy, "avg_queue_s"] or 0.0)
        assert parts == pytest.approx(mean_s[policy])


@pytest.mark.slow
def test_optimus_predicts_what_is_left_as_the_paper_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ones, "BASELINES", ("optimus",))
    request = replace(MADE, tally=Tally())
    notes = figure15(request)[2]
    ((shown, set_for_it),) = request.tally.shown["optimus"]
    assert "learning" in shown.split(", ")
    assert "remaining_work" not in shown.split(", ")
    assert "policy.remaining=loss" in set_for_it
    assert any("Optimus predicts" in note for note in notes)


def test_the_published_means_of_the_others_follow_from_the_reductions() -> None:
    paper = {(row.row, row.metric): row.paper for row in made_figure15()[1]}
    assert paper["ones", "avg_jct_s"] == pytest.approx(244.97)
    assert paper["tiresias", "avg_jct_s"] == pytest.approx(450.3, abs=0.05)
    assert paper["tiresias", "avg_execution_s"] == pytest.approx(343, abs=1)
    assert paper["tiresias", "avg_queue_s"] == pytest.approx(108, abs=1)
    assert paper["ones", "avg_execution_s"] == pytest.approx(158, abs=1)


def test_absent_baselines_are_named_and_inputs_say_that_they_are_made() -> None:
    inputs, _, notes = made_figure15()
    assert any("unheard-of" in note for note in notes)
    assert not any(one.real for one in inputs if "costs" not in one.what)


def test_figure_2_shows_what_a_batch_that_grows_with_the_gpus_gains() -> None:
    values = ours(figure2(MADE))
    fixed, elastic = (
        [values[f"{gpus} GPUs, {name} batch", "samples_per_s"] or 0.0 for gpus in (1, 2, 4, 8)]
        for name in ("fixed", "elastic")
    )
    assert fixed[0] == elastic[0]
    assert all(grown > same for grown, same in zip(elastic[1:], fixed[1:], strict=True))
    assert elastic == sorted(elastic)


def test_figure_2_says_on_which_assumptions_it_hangs() -> None:
    series = speeds.causes(MADE)
    rows = {row.what: [value.ours or 0.0 for value in row.values] for row in series.switched}
    best, gain = ({what: values[column] for what, values in rows.items()} for column in (0, 1))
    shown = ours(figure2(MADE))
    assert rows[NOTHING] == [shown["fixed batch", figure.metric] for figure in series.figures]
    assert best[NOTHING] == 4
    assert best["gradients take 4 times as long, 256 samples fit"] == 1
    assert gain["gradients take 3 times as long, 256 samples fit"] < gain[NOTHING]


def test_figure_6_has_an_interval_around_the_mean_that_holds_what_it_should(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "HOURS", 3)
    values = ours(figure6(MADE))
    assert 0.5 < (values["trainings ahead", "share_within_90_percent"] or 0.0) <= 1
    assert 0 < (values["trainings ahead", "mean_error"] or 0.0) < 0.5
    means = [values[f"a training at {share:.0%}", "predicted_mean"] or 0.0 for share in progress.SHOWN]
    assert means == sorted(means)
    assert means[0] < means[-1]


def test_nothing_is_learned_from_the_trainings_that_are_predicted() -> None:
    curves = [curve_of(kind, reached) for reached in (2, 9, 30) for kind in KINDS]
    changed = [*curves[:-1], replace(curves[-1], loss_floor=0.5)]
    before, after = progress.predict(curves), progress.predict(changed)
    assert len(before) == len(curves) - round(progress.LEARNED_FROM * len(curves))
    for one, same in zip(before[:-1], after[:-1], strict=True):
        assert one.mean.tolist() == same.mean.tolist()


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.sockets
def test_figure_16_has_what_real_trainings_lose_in_place_and_by_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(switches, "SIZES", ("mlp",))
    values = ours(switches.figure16(MADE))
    lost_s = [values[f"mlp, {kind}", "lost_s"] or 0.0 for kind in ("grow", "move", "shrink", "restart")]
    assert all(value > 0 for value in lost_s)
    ratio = values["mlp, restart / grow", "lost_s"]
    assert ratio == pytest.approx(lost_s[-1] / lost_s[0])


@pytest.mark.torch
def test_figure_3_has_the_accuracy_of_real_trainings_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "WORKERS", (1, 8))
    values = ours(batches.figure3(MADE))
    accuracy = [values[f"{who}, 17,280 samples", "accuracy"] or 0.0 for who in WORKERS_OF_3]
    assert 0.8 < accuracy[1] < accuracy[0] <= 1, "eight times the batch at the same learning rate lags"
    assert (values[" / ".join(reversed(WORKERS_OF_3)), "mean_accuracy_of_epochs"] or 1.0) < 1


@pytest.mark.torch
@pytest.mark.long
def test_figure_13_has_the_loss_of_real_trainings_against_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "THIRD", 8)
    values = ours(batches.figure13(MADE))
    before = {plan: values[f"{plan}, 8,640 samples", "loss"] for plan in batches.FACTORS}
    assert len(set(before.values())) == 1, "until the batch grows they are one training"
    assert (values["at once, highest after it grew / before", "loss"] or 0.0) > 1
    assert (values["gradually / at once, highest after it grew", "loss"] or 1.0) < 1
    jumps = [values[f"{plan}, 12,960 samples", "loss"] or 0.0 for plan in ("gradually", "at once")]
    assert jumps[0] < jumps[1], "the first epoch with four times the batch, and with sixteen"


@pytest.mark.slow
def test_figure_17_has_every_policy_on_every_size() -> None:
    values = ours(figure17(MADE))
    means = {name for name, metric in values if metric == "avg_jct_s"}
    assert means == {f"{gpus} GPUs, {policy}" for gpus in (16, 32) for policy in ("ones", "tiresias")}
    assert {name for name, metric in values if metric == "avg_jct_reduction"} == {
        f"{gpus} GPUs: ones less than tiresias" for gpus in (16, 32)
    }
