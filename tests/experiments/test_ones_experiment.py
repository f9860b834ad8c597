import pytest

from stretto.experiments import ones
from stretto.experiments.ones import figure2, figure15, figure17
from stretto.experiments.published import EXPERIMENTS
from stretto.experiments.reproduction import Made, Request

pytestmark = pytest.mark.slow

MADE = Request(data=None, scale=0.001, workers=1)


@pytest.fixture(autouse=True)
def few_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ones, "LEAST_JOBS", 8)
    monkeypatch.setattr(ones, "BASELINES", ("tiresias", "unheard-of"))
    monkeypatch.setattr(ones, "GPUS", (16, 32))
    monkeypatch.setattr(ones, "SEEDS", range(2))


def ours(made: Made) -> dict[tuple[str, str], float | None]:
    return {(row.row, row.metric): row.ours for row in made[1]}


def test_the_figures_can_be_made_by_name() -> None:
    assert {name for name in EXPERIMENTS if name.startswith("ones-")} == {
        "ones-fig15",
        "ones-fig15-grown",
        "ones-fig17",
        "ones-fig17-grown",
        "ones-fig2",
    }


def test_figure_15_says_how_much_less_ones_takes_and_how_sure_that_is() -> None:
    made = figure15(MADE)
    values = ours(made)
    mean_s = {policy: values[policy, "avg_jct_s"] for policy in ("ones", "tiresias")}
    less = 1 - (mean_s["ones"] or 0.0) / (mean_s["tiresias"] or 1.0)
    assert values["ones less than tiresias", "avg_jct_reduction"] == pytest.approx(less)
    assert (values["ones", "avg_jct_s_plus_minus"] or 0.0) > 0
    assert (values["ones less than tiresias", "avg_jct_reduction_plus_minus"] or 0.0) > 0
    assert 0 <= (values["ones less than tiresias", "wilcoxon_p_one_sided"] or 0.0) <= 1
    for policy in mean_s:
        parts = (values[policy, "avg_execution_s"] or 0.0) + (values[policy, "avg_queue_s"] or 0.0)
        assert parts == pytest.approx(mean_s[policy])


def test_the_published_means_of_the_others_follow_from_the_reductions() -> None:
    paper = {(row.row, row.metric): row.paper for row in figure15(MADE)[1]}
    assert paper["ones", "avg_jct_s"] == pytest.approx(244.97)
    assert paper["tiresias", "avg_jct_s"] == pytest.approx(450.3, abs=0.05)
    assert paper["tiresias", "avg_execution_s"] == pytest.approx(343, abs=1)
    assert paper["tiresias", "avg_queue_s"] == pytest.approx(108, abs=1)
    assert paper["ones", "avg_execution_s"] == pytest.approx(158, abs=1)


def test_absent_baselines_are_named_and_inputs_say_that_they_are_made() -> None:
    inputs, _, notes = figure15(MADE)
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


def test_figure_17_has_every_policy_on_every_size() -> None:
    values = ours(figure17(MADE))
    means = {name for name, metric in values if metric == "avg_jct_s"}
    assert means == {f"{gpus} GPUs, {policy}" for gpus in (16, 32) for policy in ("ones", "tiresias")}
    assert {name for name, metric in values if metric == "avg_jct_reduction"} == {
        f"{gpus} GPUs: ones less than tiresias" for gpus in (16, 32)
    }
