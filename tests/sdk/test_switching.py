"""A training that grows, moves and shrinks while it runs, in real processes over gloo."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.sdk import digits
from tests.sdk.conftest import PATIENCE_S, Scene

pytestmark = [pytest.mark.sockets, pytest.mark.torch]

SAMPLES = 1797
EPOCHS = 8


def undisturbed_accuracy(scene: Scene) -> float:
    scene.start_with("undisturbed", {}, epochs=EPOCHS)
    assert scene.status("undisturbed") == 0, scene.printed("alone")
    accuracy = [line["accuracy"] for line in scene.lines("rank0") if "ended" in line][-1]
    for file in scene.folder.glob("rank0.*"):
        file.unlink()
    return float(accuracy)


def test_a_training_that_grows_moves_and_shrinks_sees_each_sample_once_and_learns_as_well(
    scene: Scene,
) -> None:
    calm = undisturbed_accuracy(scene)
    go_on = scene.folder / "go-on"
    scene.start("a", "b", "c", "d", epochs=EPOCHS, until=go_on, report_s=0.1)
    scene.publish("a")
    scene.wait_ready("b", "c", "d")
    scene.publish("a", "b", source="a")
    scene.publish("b", "a", "c", source="a")
    scene.publish("b", "d", source="b")  # a move: two go, one comes
    scene.publish("d", source="d")
    go_on.touch()

    assert {name: scene.status(name) for name in "abcd"} == dict.fromkeys("abcd", 0)
    assert {"hook": True} in scene.lines("d")  # torch's, of five groups, are gone with them
    for epoch in range(EPOCHS):
        assert scene.taken(epoch) == list(range(SAMPLES)), f"epoch {epoch}"
    begun = [line for line in scene.lines() if "generation" in line]
    for number, world in {1: 1, 2: 2, 3: 3, 4: 2, 5: 1}.items():
        of_generation = [line for line in begun if line["generation"] == number]
        assert len(of_generation) == world
        assert len({(line["checksum"], line["step"], line["world"]) for line in of_generation}) == 1
    lost = {each["generation"]: each["lost_s"] for each in scene.conductor.joined if "lost_s" in each}
    assert lost.keys() == {2, 3, 4, 5}
    assert all(seconds > 0 for seconds in lost.values())
    assert min(lost.values()) < 2  # less than a restart takes on any machine; a busy one may stall some
    ended = [line for line in scene.lines("d") if "ended" in line]
    assert ended[-1]["accuracy"] == pytest.approx(calm, abs=0.01)
    report = scene.conductor.reports[-1]
    assert report["samples"] == EPOCHS * SAMPLES
    assert len(report["epoch_metrics"]) == EPOCHS  # told to newcomers, too
    assert report["metrics"] == {"accuracy": report["metric"]}
    assert report["grad_sqr"] > 0
    assert report["grad_var"] > 0


def test_a_batch_that_grows_with_the_workers_is_made_in_passes_that_fit(scene: Scene) -> None:
    scene.start(
        "a", "b", epochs=3, max_batch_size=256, max_local_batch=24, lr_scaling="adascale", report_s=0.05
    )
    scene.publish("a", "b")
    assert (scene.status("a"), scene.status("b")) == (0, 0)
    for epoch in range(3):
        assert scene.taken(epoch) == list(range(SAMPLES))
    sizes = {len(line["indices"]) for line in scene.lines() if "indices" in line and line["step"] == 0}
    assert sizes == {21, 22}  # 128 samples on two workers in three passes each
    assert {report["batch"] for report in scene.conductor.reports} == {128}
    checksums = [line["checksum"] for line in scene.lines() if "done" in line]
    assert checksums[0] == checksums[1]


RATE = 0.1  # of the script at its initial batch of 64 samples


@pytest.mark.parametrize(
    ("rule", "rate_of"),
    [
        ("linear", lambda scale, gain: RATE * scale),
        ("sqrt", lambda scale, gain: RATE * scale**0.5),
        ("adascale", lambda scale, gain: RATE * gain),
        ("adamscale", lambda scale, gain: RATE * gain**0.5),
    ],
)
def test_the_learning_rate_follows_a_batch_that_grows_by_the_rule_of_the_job_file(
    scene: Scene, rule: str, rate_of: Callable[[float, float], float]
) -> None:
    go_on = scene.folder / "go-on"
    env = {"STRETTO_LR_SCALING": rule}
    scene.start("a", "b", env=env, epochs=2, max_batch_size=256, until=go_on, tells_rates=True)
    scene.publish("a")
    scene.wait_ready("b")
    scene.publish("a", "b", source="a")
    go_on.touch()
    assert (scene.status("a"), scene.status("b")) == (0, 0)
    steps = [line for line in scene.lines() if "rate" in line]
    assert {line["batch"] for line in steps} == {64, 128}
    for line in steps:
        assert line["rate"] == pytest.approx(rate_of(line["batch"] / 64, line["gain"]))
    grown = [line["rate"] for line in steps if line["batch"] == 128]
    assert max(grown) > RATE


def test_a_rule_of_the_script_comes_before_that_of_the_job_file_and_its_log_says_so_once(
    scene: Scene,
) -> None:
    env = {"STRETTO_LR_SCALING": "linear"}
    options: dict[str, Any] = {"epochs": 1, "max_batch_size": 256, "lr_scaling": "sqrt", "tells_rates": True}
    scene.start("a", "b", env=env, **options)
    scene.publish("a", "b")
    assert (scene.status("a"), scene.status("b")) == (0, 0)
    assert {line["rate"] for line in scene.lines() if "rate" in line} == {RATE * 2**0.5}
    said = "the learning rate follows lr_scaling='sqrt' of the script, not 'linear' of the job file"
    assert scene.printed("a").count(said) == 1


def test_a_batch_is_changed_without_touching_the_group(scene: Scene) -> None:
    go_on = scene.folder / "go-on"
    scene.start("a", "b", epochs=4, max_batch_size=256, until=go_on)
    scene.publish("a", "b")
    scene.publish("a", "b", source="a", batch={"total": 200, "local": 50, "accumulation": 2})
    go_on.touch()
    assert (scene.status("a"), scene.status("b")) == (0, 0)
    for epoch in range(3):
        assert scene.taken(epoch) == list(range(SAMPLES))
    assert 50 in {len(line.get("indices", [])) for line in scene.lines()}


@pytest.mark.parametrize(
    ("by_worker", "options"),
    [
        ([60, 30, 10], {}),
        ([60, 30, 10], {"max_local_batch": 25}),  # three passes of each, of the smallest part in smaller ones
        ([30, 8, 2], {}),  # less than the script's initial batch: what fits at first
    ],
    ids=["at once", "in passes", "below the initial batch"],
)
def test_gradients_of_unequal_local_batches_are_those_of_one_worker_with_the_whole_batch(
    scene: Scene, by_worker: list[int], options: dict[str, Any]
) -> None:
    plain: dict[str, Any] = {"epochs": 2, "dropout": 0.0, "tells_gradients": True}
    total = sum(by_worker)
    scene.start_with("alone", {}, batch_size=total, **plain)
    assert scene.status("alone") == 0, scene.printed("alone")
    alone = {line["after"]: line["gradients"] for line in scene.lines("rank0") if "gradients" in line}
    for file in scene.folder.glob("rank0.*"):
        file.unlink()

    scene.start("a", "b", "c", max_batch_size=256, **options, **plain)
    scene.publish("a", "b", "c", batch={"total": total, "accumulation": 1, "by_worker": by_worker})
    assert {name: scene.status(name) for name in "abc"} == dict.fromkeys("abc", 0)
    for epoch in range(2):
        assert scene.taken(epoch) == list(range(SAMPLES))
    for name, samples in zip("abc", by_worker, strict=True):
        first = [line["indices"] for line in scene.lines(name) if line.get("step") == 0 and "indices" in line]
        assert sum(map(len, first)) == samples
        together = {line["after"]: line["gradients"] for line in scene.lines(name) if "gradients" in line}
        assert together.keys() == alone.keys()
        for step, gradients in together.items():
            assert gradients == pytest.approx(alone[step], rel=1e-3, abs=1e-4), f"step {step}"


def test_unequal_local_batches_change_while_the_training_goes_on(scene: Scene) -> None:
    go_on = scene.folder / "go-on"
    scene.start("a", "b", epochs=3, max_batch_size=256, until=go_on, report_s=0.05)
    scene.publish("a", batch={"total": 64, "accumulation": 1, "by_worker": [64]})
    scene.wait_ready("b")
    scene.publish("a", "b", source="a", batch={"total": 128, "accumulation": 1, "by_worker": [96, 32]})
    scene.publish("a", "b", source="a", batch={"total": 128, "accumulation": 1, "by_worker": [24, 104]})
    go_on.touch()
    assert (scene.status("a"), scene.status("b")) == (0, 0)
    for epoch in range(3):
        assert scene.taken(epoch) == list(range(SAMPLES))
    sizes = {name: {len(line.get("indices", [])) for line in scene.lines(name)} for name in "ab"}
    assert 24 in sizes["a"]
    assert 104 in sizes["b"]
    assert scene.conductor.reports[-1]["batch"] == 128
    assert scene.conductor.reports[-1]["grad_sqr"] >= 0


def test_a_newcomer_that_dies_before_the_switch_costs_no_step(scene: Scene) -> None:
    go_on = scene.folder / "go-on"
    scene.start("a", "b", "c", epochs=8, until=go_on)
    scene.publish("a", "c")
    scene.wait_ready("b")
    scene.workers["b"].kill()
    scene.workers["b"].join()
    scene.conductor.publish(["a", "b", "c"], source="a")  # the service has not noticed yet
    scene.conductor.wait_until(lambda: 2 in scene.conductor.stores, 60, "store of generation 2")
    scene.publish("c", source="c")
    go_on.touch()
    assert {name: scene.status(name) for name in "abc"} == {"a": 0, "b": -9, "c": 0}
    for epoch in range(8):
        assert scene.taken(epoch) == list(range(SAMPLES))


def test_training_goes_on_while_the_service_is_away_and_switches_once_it_is_back(scene: Scene) -> None:
    go_on = scene.folder / "go-on"
    scene.start("a", "b", epochs=8, until=go_on, report_s=0.05)
    scene.publish("a")
    scene.wait_ready("b")
    scene.conductor.is_away = True
    before = len(scene.lines("a"))
    scene.conductor.wait_until(lambda: len(scene.lines("a")) > before + 10, PATIENCE_S, "ten more steps")
    scene.conductor.is_away = False
    scene.publish("a", "b", source="a")
    go_on.touch()
    assert (scene.status("a"), scene.status("b")) == (0, 0)
    for epoch in range(8):
        assert scene.taken(epoch) == list(range(SAMPLES))


def test_a_newcomer_that_dies_while_the_group_forms_costs_no_step_that_ended(scene: Scene) -> None:
    soon = {"stretto.sdk.process_group.FORM_TIMEOUT": timedelta(seconds=2)}
    scene.start("a", epochs=8, until=scene.folder / "never", patched=soon)
    scene.start("b", epochs=8, patched={"stretto.sdk.process_group.form": digits.die})
    scene.publish("a")
    scene.wait_ready("b")
    scene.conductor.publish(["a", "b"], source="a")
    assert (scene.status("a"), scene.status("b")) == (1, 9)
    last = [line["step"] for line in scene.lines("a") if "indices" in line][-1]
    assert [each["step"] for each in scene.conductor.checkpoints] == [last + 1]


@pytest.mark.slow
def test_a_rank_0_that_goes_completes_the_checkpoint_that_it_writes(scene: Scene) -> None:
    slow = {"stretto.sdk.checkpoints.write_checkpoint": digits.write_slowly}
    scene.start("a", "b", epochs=8, until=scene.folder / "never", checkpoint_s=0.0, patched=slow)
    scene.publish("a", "b")
    scene.conductor.wait_until((scene.folder / "writing").exists, PATIENCE_S, "a checkpoint")
    scene.conductor.publish(["b"], source="b")
    assert scene.status("a") == 0
    assert "a" in {each["worker"] for each in scene.conductor.checkpoints}
    scene.workers["b"].kill()


def test_parameters_that_only_some_steps_use_are_measured_and_trained(scene: Scene) -> None:
    options: dict[str, Any] = {
        "is_sometimes": True,
        "ddp": {"find_unused_parameters": True},
        "report_s": 0.05,
    }
    scene.start("a", "b", epochs=2, **options)
    scene.publish("a", "b")
    assert (scene.status("a"), scene.status("b")) == (0, 0)
    assert scene.conductor.reports[-1]["grad_sqr"] > 0
    checksums = {line["checksum"] for line in scene.lines() if "done" in line}
    assert len(checksums) == 1


def test_what_workers_find_in_an_evaluation_is_summed(scene: Scene) -> None:
    scene.start("a", "b", "c", epochs=3, sums=True)
    scene.publish("a", "b")
    assert (scene.status("a"), scene.status("b")) == (0, 0)
    found = [line["together"] for line in scene.lines() if "together" in line]
    assert found == [{"rank": 1.0, "workers": 2.0}] * 6


def test_a_worker_that_goes_waits_for_nobody_once_the_switch_is_through(scene: Scene) -> None:
    go_on = scene.folder / "go-on"
    scene.start("a", "b", epochs=4, until=go_on, patched={"stretto.sdk.process_group.LINGER_S": 600.0})
    scene.publish("a", "b")
    scene.publish("a", source="a")
    assert scene.status("b") == 0
    go_on.touch()
    assert scene.status("a") == 0
    assert "together with its peers" not in scene.printed("a") + scene.printed("b")


def test_layers_that_thaw_on_the_way_are_averaged_and_newcomers_know_of_it(scene: Scene) -> None:
    go_on = scene.folder / "go-on"
    scene.start("a", "b", "c", epochs=5, thaw_at=1, until=go_on)
    scene.publish("a", "b")
    scene.wait_ready("c")
    scene.wait_seen("a", "evaluating")
    scene.conductor.wait_until(
        lambda: any(line.get("epoch") == 1 for line in scene.lines("a")), PATIENCE_S, "epoch"
    )
    scene.publish("a", "b", "c", source="a")
    go_on.touch()
    assert {name: scene.status(name) for name in "abc"} == dict.fromkeys("abc", 0)
    assert len({line["checksum"] for line in scene.lines() if "done" in line}) == 1
