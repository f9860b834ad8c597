import numpy as np
import pytest

from stretto.clusters import read_cluster
from stretto.experiments.cornucopia import comparison as cornucopia
from stretto.experiments.cornucopia import parts
from stretto.experiments.cornucopia.comparison import CLUSTERS, SHARES, figure4, figure6, figure9, figure10
from stretto.experiments.published import EXPERIMENTS
from stretto.experiments.reproduction import Made, Request
from stretto.experiments.spec import RunSpec, run_spec
from stretto.sim.settings import Scaling, SimSettings
from stretto.sim.truth.scaling import Curves
from stretto.testing.builders import a_job

pytestmark = pytest.mark.slow

MADE = Request(data=None, scale=0.001, workers=1)
OF_TWO_DRAWS = Request(data=None, scale=0.5, workers=1)


@pytest.fixture(autouse=True)
def two_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others take part in the same way, and their time."""
    monkeypatch.setattr(cornucopia, "OTHERS", ("tiresias", "unheard-of", "srtf"))
    monkeypatch.setattr(cornucopia, "PUBLISHED", ("tiresias", "unheard-of"))
    monkeypatch.setattr(cornucopia, "MADE_HOURS", 12)
    monkeypatch.setattr(cornucopia, "LEAST_JOBS", 3_000)  # a tenth of these hours
    monkeypatch.setattr(parts, "OTHERS", ("tiresias", "srtf"))


def ours(made: Made) -> dict[tuple[str, str], float | None]:
    return {(row.row, row.metric): row.ours for row in made[1]}


def test_the_figures_can_be_made_by_name() -> None:
    assert {name for name in EXPERIMENTS if name.startswith("cornucopia-")} == {
        *(f"cornucopia-fig{number}" for number in (1, 4, 6, 7, 8, 9, 10)),
        *(f"cornucopia-{name}" for name in ("table1", "table3", "venus", "saturn", "profile")),
    }


def test_every_policy_that_there_is_has_a_queuing_time_on_every_cluster_and_absent_ones_are_named() -> None:
    made = figure4(MADE)
    queued = [name for name, metric in ours(made) if metric == "interactive_avg_queue_s"]
    assert queued == [
        f"{gpus} GPUs: {one}"
        for gpus in CLUSTERS
        for one in ("cornucopia", "tiresias", "srtf", "tiresias, one bound")
    ]
    assert any("left out: unheard-of" in note for note in made[2])
    assert not any(one.real for one in made[0])


def test_a_share_of_interactive_jobs_queues_for_longer_than_each_point_of_the_curve() -> None:
    values = ours(figure4(MADE))
    shares = [values["320 GPUs: srtf", f"interactive_share_over_{point:g}s"] for point in cornucopia.QUEUED_S]
    assert shares == sorted(shares, key=lambda share: -(share or 0.0))
    assert all(share is not None and 0 <= share <= 1 for share in shares)


def test_what_the_text_says_of_queuing_are_limits() -> None:
    rows, notes = figure4(MADE)[1:]
    stated = [row for row in rows if row.paper is not None]
    assert {row.bound for row in stated if row.metric == "interactive_avg_queue_s"} == {"at most"}
    assert {row.bound for row in stated if row.metric == "interactive_queue_reduction"} == {"at least"}
    assert not any(row.bound for row in rows if row.paper is None)
    (demand,) = (note for note in notes if "the whole workload asks for" in note)
    jobs = cornucopia.whole_workload(cornucopia.trace_of(MADE))
    gpu_s = sum(job.gpus * truth.duration_s for job, truth in zip(jobs.jobs, jobs.truths, strict=True))
    span_s = jobs.jobs[-1].submitted_s - jobs.jobs[0].submitted_s
    assert f"{gpu_s / span_s / 640:.1f} times 640 GPUs" in demand


def test_gpus_at_once_are_those_of_jobs_that_overlap() -> None:
    jobs = cornucopia.whole_workload(cornucopia.trace_of(MADE))
    nobody = np.zeros(len(jobs.jobs), dtype=np.bool_)
    assert cornucopia.most_gpus_at_once(jobs, nobody) == 0
    everybody = ~nobody
    starts_s = np.array([job.submitted_s for job in jobs.jobs])
    ends_s = starts_s + cornucopia.true_durations_s(jobs)
    gpus = np.array([job.gpus for job in jobs.jobs])
    most = max(int(gpus[(starts_s <= at) & (ends_s > at)].sum()) for at in starts_s)
    assert cornucopia.most_gpus_at_once(jobs, everybody) == most


def test_inflation_is_completion_time_over_the_duration_on_what_was_asked_for() -> None:
    values = ours(figure6(MADE))
    for gpus in CLUSTERS:
        assert (values[f"{gpus} GPUs: srtf", "avg_jct_inflation"] or 0.0) >= 1.0 - 1e-9
        assert f"{gpus} GPUs: cornucopia, once the time to failure" in {name for name, _ in values}
    for metric, of in (("avg_jct_reduction", "avg_jct_h"), ("inflation_reduction", "avg_jct_inflation")):
        less = [
            1.0
            - (values[f"{gpus} GPUs: cornucopia", of] or 0.0) / (values[f"{gpus} GPUs: tiresias", of] or 1.0)
            for gpus in CLUSTERS
        ]
        assert values["cornucopia, largest reduction", metric] == pytest.approx(max(less))
        assert values["cornucopia, smallest reduction", metric] == pytest.approx(min(less))


def test_labels_and_elasticity_vary_over_the_papers_shares() -> None:
    for made, word in ((figure9(MADE), "mislabelled"), (figure10(MADE), "nonelastic")):
        values = ours(made)
        for gpus in CLUSTERS:
            queued = [
                values[f"{gpus} GPUs: cornucopia, {word} 0%", f"{of}_avg_queue_s"]
                for of in ("interactive", "truly_interactive")
            ]
            assert queued[0] == queued[1]
        varied = {name for name, _ in values if word in name}
        assert varied == {
            f"{gpus} GPUs: cornucopia, {word} {share:.0%}" for gpus in CLUSTERS for share in SHARES
        }


def test_cornucopia_learns_its_thresholds_and_only_a_variant_knows_them_beforehand() -> None:
    trace = cornucopia.trace_of(MADE)
    assert not [key for key in cornucopia.spec_of(MADE, 320, trace, "cornucopia").settings if "policy" in key]
    spec = cornucopia.spec_of(MADE, 320, trace, "cornucopia, thresholds known beforehand")
    first = cornucopia.whole_workload(spec.trace)
    duration_s = [truth.duration_s for truth in first.truths[: cornucopia.FIRST_SUBMISSIONS]]
    assert float(spec.settings["policy.rttf_s"]) == pytest.approx(np.mean(duration_s), abs=0.5)
    assert float(spec.settings["policy.interactive_mean_s"]) <= 1_800
    assert float(spec.settings["policy.batch_mean_s"]) > 1_800


def test_tiresias_stands_there_with_its_best_bounds_and_with_those_of_the_published_simulator() -> None:
    trace = cornucopia.trace_of(MADE)
    best, usual = (cornucopia.spec_of(MADE, 320, trace, name) for name in ("tiresias", "tiresias, one bound"))
    assert best.settings["policy.queue_bounds_gpu_s"] == cornucopia.TIRESIAS_BOUNDS
    assert usual.settings["policy.queue_bounds_gpu_s"] == "18000"
    notes = " ".join(figure4(MADE)[2])
    assert cornucopia.TIRESIAS_BOUNDS in notes
    assert "18000" in notes


@pytest.mark.slow
def test_on_helios_the_jobs_are_made_and_their_source_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cornucopia, "LEAST_JOBS", 900)
    monkeypatch.setattr(cornucopia, "SATURN_SHARE", 0.1)
    # Each simulation draws all jobs of its trace and keeps a part of them.
    for name in ("VENUS", "SATURN"):
        monkeypatch.setattr(cornucopia, name, f"{getattr(cornucopia, name)}:jobs=300")
    for made, clusters in (
        (cornucopia.venus(OF_TWO_DRAWS), cornucopia.VENUS_CLUSTERS),
        (cornucopia.saturn(OF_TWO_DRAWS), CLUSTERS),
    ):
        inputs, rows, notes = made
        assert not any(one.real for one in inputs)
        assert notes[0].startswith("2 made traces, of seeds 0, 1;")
        assert any(row.metric == "avg_jct_h_plus_minus" for row in rows)
        assert "calibrated" in inputs[0].note
        shown = {row.row for row in rows if row.metric == "avg_jct_h"}
        assert shown == {
            f"{gpus} GPUs: {one}" for gpus in clusters for one in ("cornucopia", "tiresias", "srtf")
        }


def test_jobs_of_venus_and_saturn_are_counted_in_several_draws_and_those_of_philly_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("VENUS", "SATURN"):
        monkeypatch.setattr(parts, name, f"{getattr(parts, name)}:jobs=2000")
    inputs, rows, _ = parts.table1(Request(data=None))
    values = {(row.row, row.metric): row for row in rows}
    assert values["venus", "sublinear_gpus"].paper == 3_752
    spread = {name for name, metric in values if metric == "sublinear_gpus_plus_minus"}
    assert spread == {"venus", "saturn"}
    assert "3 draws of each" in inputs[-1].note


def test_priority_for_interactive_jobs_is_compared_with_the_same_order_without_it() -> None:
    values = ours(parts.figure1(MADE))
    for gpus in CLUSTERS:
        first, plain = (
            values[f"{gpus} GPUs: {name}", "avg_jct_h"] for name in ("srtf, interactive first", "srtf")
        )
        ratio = values[f"{gpus} GPUs: interactive first", "avg_jct_over_srtf"]
        assert ratio == pytest.approx((first or 0.0) / (plain or 1.0))


def test_gpus_beyond_those_that_bring_as_much_as_the_second_are_counted() -> None:
    curves = Curves(read_cluster("gpu8-960"), SimSettings(scaling=Scaling.CATALOGUE))
    jobs = [a_job("one", 1, model="vgg16"), a_job("few", 2, model="ncf"), a_job("many", 64, model="vgg16")]
    beyond = parts.gpus_beyond_linear(jobs, curves).tolist()
    assert beyond[:2] == [0, 0]
    assert 0 < beyond[2] < 64


def test_made_jobs_are_counted_by_label_too() -> None:
    values = ours(parts.table3(MADE))
    jobs = len(cornucopia.whole_workload(cornucopia.trace_of(MADE)).jobs)
    for share in ("0%", "5%", "10%"):
        counts = [values[f"{share} relabelled", name] for name in ("interactive_jobs", "batch_jobs")]
        assert sum(count or 0.0 for count in counts) == jobs


def test_gpu_time_while_jobs_arrive_is_a_share_of_the_cluster() -> None:
    result = run_spec(cornucopia.spec_of(MADE, 320, cornucopia.trace_of(MADE), "srtf"))
    assert 0 < parts.used_share(result) <= 1
    short = ours(parts.figure7(MADE))
    assert {name.partition(":")[0] for name, _ in short} == {"srtf", "synergy", "cornucopia"}


def test_the_profile_of_64_counts_needs_less_than_the_papers_time_without_changes_of_size() -> None:
    profile = ours(parts.profile(MADE))
    alone = next(value for (name, _), value in profile.items() if name.endswith("batches alone"))
    assert 0 < (alone or 0.0) < parts.PROFILE_S


def test_changes_are_free_of_charge_and_speeds_follow_the_catalogue() -> None:
    spec: RunSpec = cornucopia.spec_of(MADE, 640, cornucopia.trace_of(MADE), "srtf")
    assert spec.settings == {"sim.restart_s": "0", "sim.scaling": "catalogue"}
    assert spec.cluster == "gpu8-640"


def test_chronus_pays_for_its_profiles_and_nobody_else_is_told_of_any() -> None:
    trace = cornucopia.trace_of(MADE)
    told = {policy: cornucopia.spec_of(MADE, 960, trace, policy).settings for policy in ("chronus", "srtf")}
    assert told["chronus"]["policy.profiling_gpus"] == "16"
    assert "policy.profiling_gpus" not in told["srtf"]
