import csv
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import LinearNDInterpolator

from stretto.errors import InputError
from stretto.sim.truth.profiled import ProfiledModel
from stretto.sim.truth.profiles import ProfileLibrary, read_profiles
from stretto.sim.truth.step_times import StepSurface, canonical, consolidated

COMPUTE_FIXED_S, COMPUTE_S_PER_SAMPLE = 0.1, 0.01
SYNC_S_PER_GPU, SYNC_S_PER_NODE = 0.02, 0.05

ONE_OR_TWO_NODES = ("1", "2", "3", "4", "11", "12", "22", "13", "34", "44")


def linear_step(
    nodes: int, gpus: int, local: float, per_node: float = SYNC_S_PER_NODE
) -> tuple[float, float]:
    """A step that is linear in everything, so that any linear interpolation of it is exact."""
    sync_s = SYNC_S_PER_GPU * (gpus - 1) + per_node * (nodes - 1)
    return COMPUTE_FIXED_S + COMPUTE_S_PER_SAMPLE * local + sync_s, sync_s


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_placements(
    folder: Path,
    suffix: str,
    placements: Sequence[str],
    locals_: Sequence[int] = (4, 8, 16),
    per_node: float = SYNC_S_PER_NODE,
) -> None:
    rows = [
        (placement, local, *linear_step(len(placement), sum(map(int, placement)), local, per_node=per_node))
        for placement in placements
        for local in locals_
    ]
    write_csv(folder / f"placements-{suffix}.csv", ("placement", "local_bsz", "step_time", "sync_time"), rows)


def write_scalability(
    folder: Path,
    suffix: str,
    nodes_gpus: Sequence[tuple[int, int]],
    locals_: Sequence[int] = (4, 8, 16),
    per_node: float = SYNC_S_PER_NODE,
) -> None:
    rows = [
        (nodes, gpus, local, *linear_step(nodes, gpus, local, per_node=per_node))
        for nodes, gpus in nodes_gpus
        for local in locals_
    ]
    header = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
    write_csv(folder / f"scalability-{suffix}.csv", header, rows)


def write_validation(folder: Path, batch: int, epochs: Sequence[tuple[float, float, float]]) -> None:
    rows = [(progress, 1, 0.5, sqr, var) for progress, sqr, var in epochs]
    write_csv(
        folder / f"validation-{batch}.csv", ("progress", "iteration", "metric", "grad_sqr", "grad_var"), rows
    )


def write_model(
    root: Path, name: str = "made", suffix: str = "aws", per_node: float = SYNC_S_PER_NODE
) -> Path:
    folder = root / name
    write_placements(folder, suffix, ONE_OR_TWO_NODES, per_node=per_node)
    write_scalability(folder, suffix, [(4, 4), (4, 8), (4, 16)], per_node=per_node)
    write_validation(folder, 32, [(100.0, 2.0, 6.0), (210.0, 1.0, 9.0)])
    write_validation(folder, 64, [(104.0, 4.0, 10.0), (205.0, 3.0, 5.0)])
    return folder


@pytest.fixture
def made(tmp_path: Path) -> ProfiledModel:
    write_model(tmp_path)
    return read_profiles(tmp_path).model("made")


def test_a_measured_step_is_returned_as_measured(made: ProfiledModel) -> None:
    assert made.step("t4", (1, 3), 8) == pytest.approx(linear_step(2, 4, 8))


def test_between_measured_local_batches_a_step_is_linear(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    header = ("local_bsz", "step_time", "placement", "sync_time")
    write_csv(folder / "placements-aws.csv", header, [(4, 1.0, 2, 0.2), (8, 2.0, 2, 0.6), (16, 8.0, 2, 0.6)])
    model = read_profiles(tmp_path).model("made")
    assert model.step("t4", (2,), 5) == pytest.approx((1.25, 0.3))
    assert model.step("t4", (2,), 12) == pytest.approx((5.0, 0.6))


def test_rows_that_repeat_a_point_count_with_their_mean(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    header = ("placement", "local_bsz", "step_time", "sync_time")
    write_csv(
        folder / "placements-aws.csv", header, [("12", 4, 1.0, 0.2), ("21", 4, 3.0, 0.4), ("12", 8, 5, 0.6)]
    )
    assert read_profiles(tmp_path).model("made").step("t4", (1, 2), 4) == pytest.approx((2.0, 0.3))


@pytest.mark.parametrize(
    ("placement", "smallest"),
    [
        pytest.param((4,), (4,), id="one node is itself"),
        pytest.param((2, 1), (1, 2), id="two nodes are ordered"),
        pytest.param((3, 1, 2), (1, 2, 3), id="three nodes are rotated"),
        pytest.param((3, 2, 1), (1, 3, 2), id="and not sorted"),
        pytest.param((2, 1, 2, 1), (1, 2, 1, 2), id="a repeating pattern"),
        pytest.param((0, 2, 0, 1), (1, 2), id="unused nodes are left out"),
    ],
)
def test_the_canonical_placement_is_the_smallest_rotation(
    placement: tuple[int, ...], smallest: tuple[int, ...]
) -> None:
    assert canonical(placement) == smallest


def test_a_placement_and_its_rotations_take_equally_long(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    header = ("placement", "local_bsz", "step_time", "sync_time")
    write_csv(folder / "placements-aws.csv", header, [("123", 4, 7.0, 1.0), ("132", 4, 9.0, 2.0)])
    model = read_profiles(tmp_path).model("made")
    assert {model.step("t4", placement, 4) for placement in [(1, 2, 3), (2, 3, 1), (3, 1, 2)]} == {(7.0, 1.0)}
    assert {model.step("t4", placement, 4) for placement in [(1, 3, 2), (3, 2, 1), (2, 1, 3)]} == {(9.0, 2.0)}


@pytest.mark.parametrize(
    ("placement", "local"),
    [
        pytest.param((2, 2, 2), 8, id="between two and four nodes"),
        pytest.param((4, 4, 4), 12, id="on the edge where every node is full"),
        pytest.param((1, 1, 1), 5, id="on the edge of one GPU a node"),
        pytest.param((1, 4), 7, id="two nodes, a mix that was not measured"),
        pytest.param((1, 2, 3, 4), 16, id="at the largest local batch"),
    ],
)
def test_a_placement_nobody_measured_is_interpolated_over_nodes_gpus_and_local_batch(
    made: ProfiledModel, placement: tuple[int, ...], local: int
) -> None:
    assert made.step("t4", placement, local) == pytest.approx(
        linear_step(len(placement), sum(placement), local)
    )


def test_inside_the_measured_region_the_surface_is_scipys_linear_interpolation() -> None:
    chance = np.random.default_rng(7)
    points, times_s = chance.uniform(1.0, 16.0, (60, 3)), chance.uniform(0.1, 1.0, (60, 2))
    surface, oracle = StepSurface(points, times_s), LinearNDInterpolator(points, times_s)
    queries = [(nodes, gpus, local) for nodes in (6, 8, 10) for gpus in (7, 9) for local in (6.5, 9.5)]
    assert [surface.at(*query) for query in queries] == pytest.approx(oracle(queries))


def test_halfway_between_two_measured_points_of_an_edge_a_step_is_their_mean(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    write_csv(
        folder / "scalability-aws.csv",
        ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time"),
        [(4, 16, 4, 5.0, 3.0), (4, 16, 16, 9.0, 3.5), (4, 4, 4, 1.0, 0.5), (4, 4, 16, 2.0, 0.5)],
    )
    two_full_s, four_full_s = linear_step(2, 8, 4), (5.0, 3.0)
    model = read_profiles(tmp_path).model("made")
    assert model.step("t4", (4, 4, 4), 4) == pytest.approx(np.mean([two_full_s, four_full_s], axis=0))


@pytest.mark.parametrize("placement", [(2,), (1, 2, 2)])
def test_above_the_largest_local_batch_compute_grows_in_proportion(
    made: ProfiledModel, placement: tuple[int, ...]
) -> None:
    at_largest_s, sync_s = made.step("t4", placement, 16)
    assert made.step("t4", placement, 48) == pytest.approx((3 * (at_largest_s - sync_s) + sync_s, sync_s))


@pytest.mark.parametrize("placement", [(2,), (1, 2, 2)])
def test_below_the_smallest_local_batch_a_step_is_no_faster(
    made: ProfiledModel, placement: tuple[int, ...]
) -> None:
    assert made.step("t4", placement, 1) == pytest.approx(made.step("t4", placement, 4))


def test_each_gpu_beyond_the_largest_measured_adds_synchronisation(tmp_path: Path) -> None:
    write_model(tmp_path, per_node=0.0)
    model = read_profiles(tmp_path).model("made")
    assert model.step("t4", (8, 8, 8, 8), 8) == pytest.approx(linear_step(4, 32, 8, per_node=0.0))


def test_more_than_sixteen_nodes_count_as_sixteen(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    write_scalability(folder, "aws", [(20, 20), (20, 80)])
    assert read_profiles(tmp_path).model("made").step("t4", (1,) * 18, 8) == pytest.approx(
        linear_step(16, 18, 8)
    )


def test_a_type_measured_on_one_node_only_still_answers_for_two(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    write_placements(folder, "quad", ("1", "2", "4"))
    write_validation(folder, 32, [(100.0, 2.0, 6.0)])
    model = read_profiles(tmp_path).model("made")
    assert model.step("quad", (4, 2), 8) == pytest.approx(linear_step(1, 6, 8))


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> ProfiledModel:
    root = tmp_path_factory.mktemp("profiles")
    write_model(root)
    return read_profiles(root).model("made")


@given(placement=st.lists(st.integers(1, 8), min_size=1, max_size=20), local=st.integers(1, 100))
@settings(deadline=None)
def test_every_placement_and_local_batch_has_a_positive_step_time(
    made_once: ProfiledModel, placement: list[int], local: int
) -> None:
    step_s, sync_s = made_once.step("t4", tuple(placement), local)
    slowest_compute_s = max(local, 16) / 16 * (linear_step(1, 1, 16)[0])
    assert 0.0 <= sync_s < step_s <= sync_s + slowest_compute_s + 1e-9
    assert step_s - sync_s >= linear_step(1, 1, 4)[0] - 1e-9


def test_limits_are_those_of_the_files(made: ProfiledModel) -> None:
    assert made.gpu_types == ("t4",)
    assert (made.min_local("t4"), made.max_local("t4")) == (4, 16)
    assert (made.init_batch, made.max_batch, made.epochs) == (32, 64, 2)
    assert made.single_gpu_samples_per_s("t4") == pytest.approx(16 / linear_step(1, 1, 16)[0])


def test_the_largest_local_batch_depends_on_the_number_of_replicas(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    write_placements(folder, "aws", ("1", "2"))
    write_scalability(folder, "aws", [(2, 4)], locals_=(4, 8))
    write_validation(folder, 32, [(100.0, 2.0, 6.0)])
    model = read_profiles(tmp_path).model("made")
    assert [model.largest_local("t4", replicas) for replicas in (1, 2, 3, 4, 9)] == [16, 16, 8, 8, 8]


def test_what_fits_may_be_less_than_what_was_profiled(tmp_path: Path) -> None:
    folder = tmp_path / "deepspeech2"
    write_placements(folder, "rtx", ("1", "2"), locals_=(10, 40, 80))
    write_validation(folder, 20, [(100.0, 2.0, 6.0)])
    model = read_profiles(tmp_path).model("deepspeech2")
    assert (model.max_local("rtx2080ti"), model.largest_local("rtx2080ti", 2)) == (57, 57)
    assert model.single_gpu_samples_per_s("rtx2080ti") == pytest.approx(80 / linear_step(1, 1, 80)[0])


def test_an_epoch_ends_at_the_least_progress_over_batch_sizes(made: ProfiledModel) -> None:
    assert made.epoch_end_progress.tolist() == [100.0, 205.0]
    assert made.total_progress == 205.0


@pytest.mark.parametrize(
    ("batch", "epoch", "stats"),
    [
        pytest.param(32, 0, (2.0, 6.0), id="a validated batch size"),
        pytest.param(48, 0, (3.0, 8.0), id="halfway between two"),
        pytest.param(40, 1, (1.5, 8.0), id="a quarter of the way, second epoch"),
        pytest.param(16, 0, (2.0, 6.0), id="below the smallest"),
        pytest.param(999, 1, (3.0, 5.0), id="above the largest"),
        pytest.param(64, 7, (3.0, 5.0), id="after the last epoch"),
    ],
)
def test_gradient_statistics_are_linear_in_the_batch(
    made: ProfiledModel, batch: int, epoch: int, stats: tuple[float, float]
) -> None:
    assert made.grad_stats(batch, epoch) == pytest.approx(stats)


def test_an_iteration_at_the_initial_batch_gains_one(made: ProfiledModel) -> None:
    assert made.gain(32, 0) == made.gain(32, 1) == pytest.approx(1.0)


def test_gain_grows_with_the_noise_that_a_larger_batch_averages_out(made: ProfiledModel) -> None:
    assert made.gain(64, 0) == pytest.approx((10 + 4) / (10 / 2 + 4))
    assert made.gain(64, 1) == pytest.approx((5 + 3) / (5 / 2 + 3))


def test_accumulation_passes_do_not_synchronise(made: ProfiledModel) -> None:
    step_s, sync_s = linear_step(1, 4, 8)
    assert made.iteration_s("t4", (4,), 8) == pytest.approx(step_s)
    assert made.iteration_s("t4", (4,), 8, accumulation=3) == pytest.approx(4 * (step_s - sync_s) + sync_s)


def test_progress_is_gain_over_time_slowed_down(tmp_path: Path) -> None:
    write_model(tmp_path, name="cifar10")
    model = read_profiles(tmp_path).model("cifar10")
    iteration_s = model.iteration_s("t4", (2, 2), 8, accumulation=1)
    expected = model.gain(4 * 8 * 2, epoch=0) / iteration_s / 1.8
    assert model.progress_per_s("t4", (2, 2), 8, accumulation=1, epoch=0) == pytest.approx(expected)


def test_asking_twice_gives_the_remembered_value(made: ProfiledModel) -> None:
    assert made.step("t4", (1, 2, 2), 9) is made.step("t4", (1, 2, 2), 9)
    assert made.grad_stats(40, 1) is made.grad_stats(40, 1)


def test_a_fixed_batch_is_split_over_as_few_passes_as_fit(made: ProfiledModel) -> None:
    assert made.split_batch("t4", 4, 64) == (16, 0)
    assert made.split_batch("t4", 1, 64) == (16, 3)
    assert made.split_batch("t4", 3, 64) == (11, 1)


def test_throughput_is_of_full_nodes_and_a_remainder(made: ProfiledModel) -> None:
    table = made.throughput_table("t4", [1, 7, 16], gpus_per_node=4, batch=64)
    times_s = [
        made.iteration_s("t4", (1,), 16, accumulation=3),
        made.iteration_s("t4", (4, 3), 10),
        made.iteration_s("t4", (4, 4, 4, 4), 4),
    ]
    assert table.tolist() == pytest.approx([1 / time_s for time_s in times_s])
    assert consolidated(7, 4) == (4, 3)


def test_throughput_is_unknown_where_the_job_cannot_run(made: ProfiledModel) -> None:
    most_profiled, fewest_samples = 16, 3
    assert math.isnan(made.throughput_table("t4", [most_profiled + 1], 4, batch=64)[0])
    assert math.isnan(made.throughput_table("t4", [0], 4, batch=64)[0])
    runs = np.isfinite(made.throughput_table("t4", [fewest_samples, fewest_samples + 1], 4, fewest_samples))
    assert runs.tolist() == [True, False]


@pytest.fixture
def pipeline(tmp_path: Path) -> ProfiledModel:
    folder = tmp_path / "gpt_pmp"
    header = ("placement", "local_bsz", "step_time", "sync_time")
    write_csv(
        folder / "placements-rtx.csv", header, [("8", 1, 0.1, 0.3), ("8", 2, 0.2, 0.3), ("88", 1, 0.1, 0.5)]
    )
    write_csv(folder / "placements-dgx-ext.csv", header, [("2", 1, 0.1, 0.01), ("4", 1, 0.1, 0.02)])
    write_validation(folder, 12, [(100.0, 2.0, 6.0)])
    write_validation(folder, 384, [(100.0, 2.0, 6.0)])
    return read_profiles(tmp_path).model("gpt_pmp")


def test_a_pipeline_s_replica_has_as_many_gpus_as_stages(pipeline: ProfiledModel) -> None:
    assert (pipeline.replica_gpus("rtx2080ti"), pipeline.replica_gpus("a100")) == (8, 2)


def test_a_pipeline_s_step_fills_and_drains_its_stages(pipeline: ProfiledModel) -> None:
    assert pipeline.step("rtx2080ti", (8,), 48) == pytest.approx((3 * (7 + 48) * 0.1 + 0.3, 0.3))
    assert pipeline.step("rtx2080ti", (8,), 96) == pytest.approx((3 * (7 + 48) * 0.2 + 0.3, 0.3))
    assert pipeline.iteration_s("a100", (4,), 48) == pytest.approx(3 * (1 + 48) * 0.1 + 0.02)


def test_a_pipeline_s_local_batch_is_that_of_a_replica(pipeline: ProfiledModel) -> None:
    assert (pipeline.min_local("rtx2080ti"), pipeline.max_local("rtx2080ti")) == (48, 96)
    batch = 2 * 48
    expected = pipeline.gain(batch, 0) / pipeline.iteration_s("rtx2080ti", (8, 8), 48)
    assert pipeline.progress_per_s("rtx2080ti", (8, 8), 48, 0, epoch=0) == pytest.approx(expected)


def test_a_part_of_a_pipeline_does_not_run(pipeline: ProfiledModel) -> None:
    table = pipeline.throughput_table("rtx2080ti", [4, 8, 12, 16], gpus_per_node=8, batch=96)
    assert np.isfinite(table).tolist() == [False, True, False, True]


def test_a_pipeline_needs_known_stages(tmp_path: Path) -> None:
    folder = tmp_path / "gpt_pmp"
    write_placements(folder, "aws", ("4",))
    write_validation(folder, 12, [(100.0, 2.0, 6.0)])
    with pytest.raises(
        InputError, match="gpu type 't4': the pipeline's stages are known only on a100, rtx2080ti"
    ):
        read_profiles(tmp_path).model("gpt_pmp").on("t4")


STEP_HEADER = "placement,local_bsz,step_time,sync_time\n"
EPOCH_HEADER = "progress,grad_sqr,grad_var\n"


def test_a_model_without_scalability_files_can_be_read(tmp_path: Path) -> None:
    (write_model(tmp_path) / "scalability-aws.csv").unlink()
    assert read_profiles(tmp_path).model("made").on("t4").most_gpus == 8


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("placements-aws.csv", "", "expected columns placement, local_bsz, step_time, sync_time, missing"),
        ("placements-aws.csv", "placement,local_bsz,step_time\n1,4,1\n", "missing sync_time"),
        ("placements-aws.csv", STEP_HEADER, "expected at least one row below the header, found none"),
        ("placements-aws.csv", STEP_HEADER + "1,4,1\n", "line 2: expected 4 cells, found 3"),
        (
            "placements-aws.csv",
            STEP_HEADER + "1,4,1,0\n1,8,-1,0\n",
            "line 3: step_time must be a finite number > 0",
        ),
        ("placements-aws.csv", STEP_HEADER + "1,4,nan,0\n", "line 2: step_time must be .* got 'nan'"),
        ("placements-aws.csv", STEP_HEADER + "1,4,1,inf\n", "line 2: sync_time must be .* got 'inf'"),
        ("placements-aws.csv", STEP_HEADER + "1,4,soon,0\n", "line 2: step_time must be .* got 'soon'"),
        (
            "placements-aws.csv",
            STEP_HEADER + "1,0,1,0\n",
            "line 2: local_bsz must be a finite number > 0, got '0'",
        ),
        ("placements-aws.csv", STEP_HEADER + "1,4,1,2\n", "line 2: sync_time must be <= step_time=1, got 2"),
        ("placements-aws.csv", STEP_HEADER + "1,4,1,0\n4x,4,1,0\n", "line 3: placement must be .* got '4x'"),
        ("placements-aws.csv", STEP_HEADER + "40,4,1,0\n", "line 2: placement must be .* got '40'"),
        ("placements-aws.csv", STEP_HEADER + ",4,1,0\n", "line 2: placement must be .* got ''"),
        ("scalability-aws.csv", STEP_HEADER + "1,4,1,0\n", "missing num_nodes, num_replicas"),
        ("validation-32.csv", EPOCH_HEADER + "5,1,1\n", "expected 1 epochs as in validation-32.csv, found 2"),
        ("validation-32.csv", EPOCH_HEADER + "5,1,1\n5,1,1\n", "line 3: progress must grow"),
        (
            "validation-64.csv",
            EPOCH_HEADER + "5,1,1\n6,-1,1\n",
            "line 3: grad_sqr must be a finite number >= 0",
        ),
        ("validation-0.csv", EPOCH_HEADER + "5,1,1\n6,1,1\n", "batch size must be >= 1, got 0"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_it(
    tmp_path: Path, file: str, text: str, message: str
) -> None:
    (write_model(tmp_path) / file).write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        read_profiles(tmp_path).read(["made"], ["t4"])
    assert "\n" not in str(refused.value)
    assert str(tmp_path / "made") in str(refused.value)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        pytest.param(lambda library: library.model("vgg"), "no profile of model 'vgg', expected one of made"),
        pytest.param(
            lambda library: library.model("made").step("h100", (1,), 4),
            "model made: no profile on gpu type 'h100', expected one of t4",
        ),
    ],
)
def test_an_unknown_name_is_refused_with_those_known(
    tmp_path: Path, ask: Callable[[ProfileLibrary], object], message: str
) -> None:
    write_model(tmp_path)
    with pytest.raises(InputError, match=message):
        ask(read_profiles(tmp_path))


def test_a_folder_without_profiles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a directory, got"):
        read_profiles(tmp_path / "absent")
    with pytest.raises(InputError, match=r"expected folders with placements-<gpu>.csv, found none"):
        read_profiles(tmp_path)


def test_a_model_without_validation_is_refused(tmp_path: Path) -> None:
    write_placements(tmp_path / "made", "aws", ("1",))
    with pytest.raises(InputError, match=r"expected at least one validation-<batch>.csv"):
        read_profiles(tmp_path).model("made")


def test_files_of_types_that_nobody_asks_for_are_not_read(tmp_path: Path) -> None:
    (write_model(tmp_path) / "placements-rtx.csv").write_text("spoilt")
    library = read_profiles(tmp_path)
    library.read(["made"], ["t4", "h100"])
    assert library.model("made").step("t4", (1,), 4) == pytest.approx(linear_step(1, 1, 4))
    with pytest.raises(InputError, match=r"placements-rtx\.csv"):
        library.read(["made"], ["rtx2080ti"])
