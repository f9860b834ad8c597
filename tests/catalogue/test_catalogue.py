from math import isnan

import numpy as np
import pytest

from stretto.catalogue import find_model, read_catalogue, read_gpus, runtimes_s
from stretto.clusters import built_in_clusters, read_cluster
from stretto.estimate.throughput import step_s
from stretto.model import InputError
from stretto.model.arrays import ints

ASKED_FOR = (
    *("resnet18-cifar10", "resnet50-imagenet", "bert-squad", "deepspeech2", "yolov3", "vgg16"),
    *("inception3", "gpt2", "resnet50-cifar10", "transformer"),
)
TYPES = ("t4", "v100", "a100", "rtx2080ti", "quad", "p100", "k80")
CELLS = [(name, gpu_type) for name in read_catalogue() for gpu_type in TYPES]


def test_it_has_common_models_on_common_gpus() -> None:
    assert set(ASKED_FOR) <= set(read_catalogue())
    assert tuple(read_gpus()) == TYPES
    assert all(tuple(model.gpu_types) == TYPES for model in read_catalogue().values())


def test_every_type_of_a_built_in_cluster_is_known() -> None:
    names = {gpu_type.name for name in built_in_clusters() for gpu_type in read_cluster(name).types}
    assert names <= set(read_gpus())


@pytest.mark.parametrize(("name", "gpu_type"), CELLS)
def test_parameters_are_possible_and_say_where_they_come_from(name: str, gpu_type: str) -> None:
    on = read_catalogue()[name].on(gpu_type)
    params = np.asarray(on.params)
    assert params.shape == (7,)
    assert np.all(params[:6] >= 0)
    assert 1 <= on.params.gamma <= 10
    assert 1 <= on.min_local <= on.max_local
    assert on.source
    assert on.derived == isnan(on.mean_error)
    assert on.derived == (on.points == 0)


@pytest.mark.parametrize(("name", "gpu_type"), CELLS)
def test_more_gpus_at_the_same_local_batch_are_never_faster_per_step(name: str, gpu_type: str) -> None:
    on = read_catalogue()[name].on(gpu_type)
    counts = np.array([1, 2, 4, 8])
    within = step_s(on.params, 1, counts, on.max_local)
    assert np.all(np.diff(within) >= 0)
    assert np.all(np.isfinite(within))


@pytest.mark.parametrize("name", read_catalogue())
def test_limits_and_noise_are_possible(name: str) -> None:
    model = read_catalogue()[name]
    assert model.name == name
    assert 1 <= model.init_batch <= model.max_batch
    assert model.steps >= 1
    assert model.restart_s > 0
    assert model.size_class in ("S", "M", "L", "XL")
    assert 0 < model.noise_start < model.noise_end
    assert model.noise_scale(0.0) == pytest.approx(model.noise_start)
    assert model.noise_scale(1.0) == pytest.approx(model.noise_end)
    assert model.noise_scale([0.5])[0] == pytest.approx((model.noise_start * model.noise_end) ** 0.5)
    assert model.noise_scale(2.0) == pytest.approx(model.noise_end)


def test_most_measured_figures_are_met_within_a_tenth() -> None:
    errors = [
        on.mean_error for model in read_catalogue().values() for on in model.gpu_types.values() if on.points
    ]
    assert np.median(errors) < 0.08
    assert sum(error > 0.1 for error in errors) <= 2  # ResNet-18 on K80 and V100, whose figures jump


def test_derived_entries_are_as_much_faster_as_their_gpu_type() -> None:
    model, gpus = read_catalogue()["yolov3"], read_gpus()  # measured on T4 only
    for gpu_type in TYPES:
        ratio = model.on("t4").params.beta_c / model.on(gpu_type).params.beta_c
        assert ratio == pytest.approx(gpus[gpu_type].speed / gpus["t4"].speed, rel=1e-3)
        assert model.on(gpu_type).derived == (gpu_type != "t4")


def test_a_model_is_found_by_the_names_that_traces_use() -> None:
    assert find_model("cifar10").name == "resnet18-cifar10"
    assert find_model("imagenet") is find_model("ResNet-50") is find_model("resnet50-imagenet")


def test_no_name_means_two_models() -> None:
    words = [word for model in read_catalogue().values() for word in (model.name, *model.aliases)]
    assert len(words) == len(set(words))


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(
        InputError, match="unknown model 'resnet50-imagnet', did you mean 'resnet50-imagenet'"
    ):
        find_model("resnet50-imagnet")
    with pytest.raises(InputError, match=r"unknown model 'xyz', expected one of .*vgg16"):
        find_model("xyz")
    with pytest.raises(
        InputError, match="model vgg16: the catalogue has no gpu type 'a10', did you mean 'a100'"
    ):
        find_model("vgg16").on("a10")


def test_a_training_takes_its_steps_times_their_length() -> None:
    model = find_model("resnet50-imagenet")
    found = runtimes_s(model, "t4", 4, ints([1]), ints([model.init_batch]))
    step = float(step_s(model.on("t4").params, 1, 1, model.init_batch))
    assert found[0, 0] == pytest.approx(model.steps * step)


def test_a_batch_that_does_not_fit_takes_more_passes_and_one_too_small_does_not_run() -> None:
    model = find_model("bert-squad")  # 4 to 12 samples on a T4
    once, twice = runtimes_s(model, "t4", 4, ints([1]), ints([12, 24]))[0]
    assert 1.5 < twice / once * 2 < 2.5  # half the steps, each of two passes
    assert runtimes_s(model, "t4", 4, ints([8]), ints([12]))[0, 0] == np.inf
