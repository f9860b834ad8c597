import math
from pathlib import Path

import numpy as np
import pytest

from stretto.sim.truth.profile_facts import PUBLISHED_FACTS
from stretto.sim.truth.profiles import ProfileLibrary, read_profiles

# Expected values: those that Sia's published simulator gives, recorded to four decimals (three digits for
# throughput). Local batch: twice the smallest.

CHECKED_PLACEMENTS = (
    ("t4", (1,)),
    ("t4", (4,)),
    ("t4", (4, 4)),
    ("t4", (4,) * 5),
    ("t4", (4,) * 6),
    ("rtx2080ti", (1,)),
    ("rtx2080ti", (8,)),
    ("rtx2080ti", (8,) * 3),
    ("a100", (1,)),
    ("a100", (8,)),
    ("a100", (8, 8)),
)
CHECKED_STEPS_S = {
    "cifar10": ".0598/.0005 .0684/.0074 .1706/.1109 .1949/.1347 .1970/.1378 .0595/.0003 .0979/.0482 "
    ".1226/.0701 .0351/.0003 .0334/.0023 .0351/.0035",
    "imagenet": ".2535/.0012 .2610/.0039 .5779/.3233 .4866/.2336 .5045/.2507 .2296/.0007 .2894/.1050 "
    ".3382/.1494 .1566/.0007 .1404/.0132 .1403/.0131",
    "deepspeech2": ".6812/.0015 .8299/.0906 1.5195/.5974 1.3263/.5398 1.3819/.5823 .3939/.0007 .7530/.1031 "
    ".8245/.1363 .5713/.0005 .7093/.0200 .7911/.0246",
    "yolov3": ".3261/.0025 .5009/.1190 1.6368/1.2665 1.2339/.8642 1.2799/.9043 .5907/.0016 .7256/.3396 "
    ".8629/.4268 .3016/.0012 .4955/.0473 .4961/.0276",
    "bert": ".7033/.0137 .7408/.0924 2.5333/1.8925 1.7813/1.1340 1.8052/1.1635 .3678/.0064 .8097/.4574 "
    ".9905/.6209 .1564/.0031 .1561/.0227 .1673/.0298",
}
CHECKED_LIMITS = {  # smallest local batch, then per type the largest and the samples/s of one GPU at it
    "cifar10": (32, {"t4": (1024, "1458"), "a100": (4096, "10063"), "rtx2080ti": (1024, "3306")}),
    "bert": (4, {"t4": (12, "13.0"), "a100": (48, "140.4"), "rtx2080ti": (12, "26.9")}),
    "deepspeech2": (10, {"t4": (80, "31.5"), "a100": (320, "77.5"), "rtx2080ti": (57, "52.5")}),
    "yolov3": (4, {"t4": (16, "27.9"), "a100": (32, "56.7"), "rtx2080ti": (8, "11.7")}),
    "imagenet": (20, {"t4": (200, "216.6"), "a100": (800, "1034"), "rtx2080ti": (200, "395.2")}),
}
CHECKED_RUNS = {  # epochs, initial batch, largest batch, progress, restart, assumed restart, slow-down
    "cifar10": (100, 128, 4096, 39_063, 50, 30, 1.8),
    "bert": (2, 12, 384, 14_774, 120, 120, 1.2),
    "deepspeech2": (80, 20, 640, 28_536, 25, 25, 1.2),
    "yolov3": (50, 8, 512, 103_444, 80, 45, 1.2),
    "imagenet": (90, 200, 12_800, 576_526, 250, 250, 1.2),
    "ncf": (10, 256, 32_768, 194_174, 15, 30, 1.5),
    "gpt_pmp": (2, 12, 384, 14_774, 30, 30, 1.0),
}


@pytest.fixture(scope="session")
def published(data_dir: Path) -> ProfileLibrary:
    directory = data_dir / "sia" / "profiles"
    if not directory.is_dir():
        pytest.skip(f"no profiles at {directory}")
    return read_profiles(directory)


@pytest.mark.data
@pytest.mark.parametrize("name", CHECKED_STEPS_S)
def test_steps_agree_with_the_published_simulator(published: ProfileLibrary, name: str) -> None:
    model = published.model(name)
    for (gpu_type, placement), text in zip(CHECKED_PLACEMENTS, CHECKED_STEPS_S[name].split(), strict=True):
        expected = tuple(float(part) for part in text.split("/"))
        step = model.step(gpu_type, placement, 2 * model.min_local(gpu_type))
        assert step == pytest.approx(expected, abs=5.1e-5, rel=0), (gpu_type, placement)


@pytest.mark.data
@pytest.mark.parametrize("name", CHECKED_LIMITS)
def test_limits_agree_with_the_published_simulator(published: ProfileLibrary, name: str) -> None:
    model, (smallest, by_type) = published.model(name), CHECKED_LIMITS[name]
    for gpu_type, (largest, samples_per_s) in by_type.items():
        assert (model.min_local(gpu_type), model.max_local(gpu_type)) == (smallest, largest)
        decimals = len(samples_per_s.partition(".")[2])
        half_unit = 0.51 * 10**-decimals
        throughput = model.single_gpu_samples_per_s(gpu_type)
        assert throughput == pytest.approx(float(samples_per_s), abs=half_unit, rel=0)


@pytest.mark.data
@pytest.mark.parametrize("name", CHECKED_RUNS)
def test_runs_agree_with_the_published_simulator(published: ProfileLibrary, name: str) -> None:
    model, facts = published.model(name), PUBLISHED_FACTS[name]
    sizes = (model.epochs, model.init_batch, model.max_batch, round(model.total_progress))
    assert (*sizes, facts.restart_s, facts.assumed_restart_s, facts.slowdown) == CHECKED_RUNS[name]
    assert np.all(np.diff(model.epoch_end_progress) > 0)


@pytest.mark.data
def test_placements_of_all_shapes_take_a_positive_time_on_every_type(published: ProfileLibrary) -> None:
    shapes = [(1,), (3, 4, 1), (4, 1, 3), (4,) * 5, (1, 2, 3, 4, 4, 2), (8,) * 4, (8, 7, 6), (4,) * 40]
    for model in (published.model(name) for name in published.names):
        for gpu_type in model.gpu_types:
            for shape in shapes:
                for local in (1, model.min_local(gpu_type), model.max_local(gpu_type), 10**5):
                    step_s, sync_s = model.step(gpu_type, shape, local)
                    assert 0.0 <= sync_s < step_s < math.inf, (model.name, gpu_type, shape, local)


@pytest.mark.data
def test_a_published_pipeline_takes_as_long_as_its_formula(published: ProfileLibrary) -> None:
    model = published.model("gpt_pmp")
    assert model.iteration_s("rtx2080ti", (8, 8), 48) == pytest.approx(3 * (7 + 48) * 0.099 + 0.435)
    assert model.iteration_s("a100", (8, 8), 48) == pytest.approx(3 * (1 + 48) * 0.144 + 0.28003)
