"""Being told to leave, crashing, and going on from a checkpoint."""

import os
import signal
from functools import partial

import pytest
from tests.sdk.conftest import PATIENCE_S, Scene
from tests.service.ports import free_ports

pytestmark = pytest.mark.sockets

SAMPLES = 1797
HOUR_S = 3600.0  # longer than any test waits


def has_said(scene: Scene, worker: str, **what: int) -> bool:
    """Whether this process has written a line with that in it."""
    return any(what.items() <= line.items() for line in scene.lines_of(worker))


def test_alone_it_leaves_on_sigterm_and_goes_on_exactly_where_it_was(scene: Scene) -> None:
    scene.start_with("undisturbed", {}, epochs=4)
    assert scene.status("undisturbed") == 0
    [calm] = [line for line in scene.lines("rank0") if "done" in line]
    env = {"STRETTO_CHECKPOINT_DIR": str(scene.checkpoint_dir), "RANK": "0"}
    scene.start_with("stopped", env, epochs=4, until=scene.folder / "never")
    scene.conductor.wait_until(lambda: has_said(scene, "stopped", step=40), PATIENCE_S, "some steps")
    os.kill(scene.workers["stopped"].pid or 0, signal.SIGTERM)
    assert scene.status("stopped") == 143
    scene.start_with("again", env, epochs=4)
    assert scene.status("again") == 0
    assert [line for line in scene.lines("rank0") if "done" in line] == [calm, calm]


def test_all_leave_at_one_step_and_another_number_of_workers_goes_on(scene: Scene) -> None:
    scene.start("a", "b", epochs=4, until=scene.folder / "never")
    scene.publish("a", "b")
    scene.wait_seen("a", "indices")
    scene.conductor.leave()
    assert (scene.status("a"), scene.status("b")) == (143, 143)
    [saved] = scene.conductor.checkpoints
    steps = {max(line["step"] for line in scene.lines(name) if "indices" in line) for name in "ab"}
    assert steps == {saved["step"] - 1}
    assert os.path.exists(saved["path"])  # noqa: PTH110 - a path as it came over the channel
    scene.start("c", "d", "e", epochs=4)
    scene.publish("c", "d", "e")
    assert {name: scene.status(name) for name in "cde"} == dict.fromkeys("cde", 0)
    for epoch in range(4):
        assert scene.taken(epoch) == list(range(SAMPLES))


@pytest.mark.parametrize("told", ["a", "b"])
def test_whoever_gets_sigterm_while_rank_0_evaluates_and_the_others_wait_takes_all_with_it(
    scene: Scene, told: str
) -> None:
    scene.start("a", "b", epochs=2, evaluate_s=HOUR_S)
    scene.publish("a", "b")
    scene.wait_seen("a", "evaluating")
    scene.wait_seen("b", "ended")  # waits for a in a collective call, where no handler of Python's runs
    os.kill(scene.workers[told].pid or 0, signal.SIGTERM)
    assert (scene.status("a"), scene.status("b")) == (143, 143)
    assert [each["step"] for each in scene.conductor.checkpoints] == [29]


@pytest.mark.parametrize("by", ["signal", "channel"])
def test_an_evaluation_that_never_checks_is_left_before_the_grace_ends(scene: Scene, by: str) -> None:
    scene.start(
        "a", "b", epochs=2, evaluate_s=HOUR_S, is_deaf=True, grace_s=1.0 if by == "signal" else HOUR_S
    )
    scene.publish("a", "b")
    scene.wait_seen("a", "evaluating")
    scene.wait_seen("b", "ended")
    if by == "channel":
        scene.conductor.leave(until_s=1.0)
    else:
        for name in "ab":
            os.kill(scene.workers[name].pid or 0, signal.SIGTERM)
    assert (scene.status("a"), scene.status("b")) == (143, 143)
    assert [path.name for path in scene.checkpoint_dir.glob("*.pt")] == ["step-000000000029.pt"]


def test_leaving_in_an_evaluation_steps_no_schedule_twice(scene: Scene) -> None:
    scene.start_with("undisturbed", {}, epochs=4)
    assert scene.status("undisturbed") == 0
    [calm] = [line for line in scene.lines("rank0") if "done" in line]
    env = {"STRETTO_CHECKPOINT_DIR": str(scene.checkpoint_dir), "RANK": "0"}
    scene.start_with("stopped", env, epochs=4, evaluate_s=HOUR_S)
    evaluates = partial(has_said, scene, "stopped", evaluating=0)
    scene.conductor.wait_until(evaluates, PATIENCE_S, "evaluation")
    os.kill(scene.workers["stopped"].pid or 0, signal.SIGTERM)
    assert scene.status("stopped") == 143
    scene.start_with("again", env, epochs=4)
    assert scene.status("again") == 0
    assert [line for line in scene.lines("rank0") if "done" in line] == [calm, calm]


def test_a_newcomer_that_is_stopped_before_it_takes_part_disturbs_nobody(scene: Scene) -> None:
    scene.start("a", "b", epochs=2, until=scene.folder / "never")
    scene.publish("a")
    scene.wait_ready("b")
    os.kill(scene.workers["b"].pid or 0, signal.SIGTERM)
    assert scene.status("b") == 143
    (scene.folder / "never").touch()
    assert scene.status("a") == 0


def test_a_worker_nobody_wants_ends_well(scene: Scene) -> None:
    scene.start("a")
    scene.wait_ready("a")
    scene.conductor.dismiss("a")
    assert scene.status("a") == 0


def test_when_a_peer_dies_the_survivor_saves_its_last_step_and_nothing_is_seen_twice(scene: Scene) -> None:
    scene.start("a", epochs=3)
    scene.start("b", epochs=3, break_at_step=40)
    scene.publish("a", "b")
    assert scene.status("b") == 7
    assert scene.status("a") == 1
    [saved] = scene.conductor.checkpoints
    assert saved["step"] >= 40
    before = {epoch: scene.taken(epoch, up_to_step=saved["step"]) for epoch in range(3)}
    for file in scene.folder.glob("*.jsonl"):
        file.unlink()
    scene.start("c", epochs=3)
    scene.publish("c")
    assert scene.status("c") == 0
    for epoch in range(3):
        assert sorted(before[epoch] + scene.taken(epoch)) == list(range(SAMPLES))


@pytest.mark.parametrize("step", [0, 5])  # the first may compile for long
def test_a_worker_stuck_in_a_step_leaves_before_its_grace_ends(scene: Scene, step: int) -> None:
    scene.start("a", "b", epochs=2, stuck_at_step=step, grace_s=1.0)
    scene.publish("a", "b")
    scene.wait_seen("a", "stuck")
    for name in "ab":
        os.kill(scene.workers[name].pid or 0, signal.SIGTERM)
    assert (scene.status("a"), scene.status("b")) == (143, 143)
    assert [each["step"] for each in scene.conductor.checkpoints] in ([step], [])  # told, if there was time
    saved = ["step-000000000005.pt"] if step else []  # before the first step there is nothing to save
    assert [path.name for path in scene.checkpoint_dir.glob("*.pt")] == saved


def test_under_torchrun_the_same_script_trains_at_a_fixed_size(scene: Scene) -> None:
    (port,) = free_ports("127.0.0.1", 1)
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    for rank in ("0", "1"):
        scene.start_with(rank, env | {"RANK": rank, "GLOO_SOCKET_IFNAME": "lo"}, epochs=2)
    assert (scene.status("0"), scene.status("1")) == (0, 0)
    for epoch in range(2):
        assert scene.taken(epoch) == list(range(SAMPLES))
    checksums = {line["checksum"] for line in scene.lines() if "done" in line}
    assert len(checksums) == 1


def test_checkpoints_are_written_while_training_and_two_are_kept(scene: Scene) -> None:
    scene.start("a", "b", epochs=6, checkpoint_s=0.05)
    scene.publish("a", "b")
    assert (scene.status("a"), scene.status("b")) == (0, 0)
    assert len(scene.conductor.checkpoints) >= 3
    assert len(list(scene.checkpoint_dir.iterdir())) == 2


@pytest.mark.parametrize("argument", [{"batch_size": 0}, {"lr_scaling": "cubic"}, {"max_batch": 5}])
def test_an_argument_that_is_wrong_is_one_clear_line(scene: Scene, argument: dict[str, object]) -> None:
    scene.start_with("alone", {}, **argument)
    assert scene.status("alone") == 1
    assert "InputError" in scene.printed("alone").splitlines()[-1]


def test_sigterm_to_all_processes_of_a_worker_spares_those_of_its_loader(scene: Scene) -> None:
    env = {"STRETTO_CHECKPOINT_DIR": str(scene.checkpoint_dir), "RANK": "0"}
    loader = {"num_workers": 2, "multiprocessing_context": "fork"}
    scene.start_with("loading", env, epochs=4, until=scene.folder / "never", loader=loader)
    scene.wait_seen("rank0", "evaluating")
    scene.conductor.wait_until(lambda: has_said(scene, "loading", step=32), PATIENCE_S, "further steps")
    os.killpg(scene.workers["loading"].pid or 0, signal.SIGTERM)
    assert scene.status("loading") == 143, scene.printed("0")
    last = [line["step"] for line in scene.lines("rank0") if "indices" in line][-1]
    assert [path.name for path in scene.checkpoint_dir.glob("*.pt")] == [f"step-{last + 1:012d}.pt"]


def test_an_evaluation_that_others_wait_for_to_sum_up_is_left_by_all(scene: Scene) -> None:
    scene.start("a", "b", epochs=2, evaluate_s=HOUR_S, sums=True)
    scene.publish("a", "b")
    scene.wait_seen("a", "evaluating")
    scene.wait_seen("b", "evaluating")
    os.kill(scene.workers["b"].pid or 0, signal.SIGTERM)
    assert (scene.status("a"), scene.status("b")) == (143, 143)
    assert [each["step"] for each in scene.conductor.checkpoints] == [29]


def test_one_rank_that_leaves_the_loop_over_epochs_ends_the_training_for_all(scene: Scene) -> None:
    scene.start("a", "b", epochs=50, stop_after={"epochs": 2})
    scene.publish("a", "b")
    assert (scene.status("a"), scene.status("b")) == (0, 0)
    assert {line["steps"] for line in scene.lines() if "done" in line} == {2 * 29}
    assert scene.conductor.reports[-1]["step"] == 2 * 29


def test_all_ranks_may_leave_an_epoch_after_the_same_step(scene: Scene) -> None:
    scene.start("a", "b", epochs=50, stop_after={"steps": 40}, checkpoint_s=0.0)
    scene.publish("a", "b")
    assert (scene.status("a"), scene.status("b")) == (0, 0)
    assert {line["steps"] for line in scene.lines() if "done" in line} == {40}
    assert scene.conductor.reports[-1]["step"] == 40
    assert not list(scene.checkpoint_dir.glob("*.unfinished"))


def test_an_error_of_the_script_on_rank_0_costs_no_step_that_ended(scene: Scene) -> None:
    scene.start("a", "b", epochs=4, error_at_step=40)
    scene.publish("a", "b")
    assert (scene.status("a"), scene.status("b")) == (1, 1)
    assert "a mistake of the script's own" in scene.printed("a").splitlines()[-1]
    assert [path.name for path in scene.checkpoint_dir.glob("*.pt")] == ["step-000000000040.pt"]
