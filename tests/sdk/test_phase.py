"""The state machine of a training script's loops: what may follow what, and what a script gets wrong."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import stretto.sdk
from stretto.sdk.phase import HAS_PEERS, IS_OUT, MEETS_NEXT, SUCCESSORS, IllegalTransition, LoopState, Phase

pytestmark = pytest.mark.torch

EPOCH = "MEETING BETWEEN_STEPS FORWARD BACKWARD_DONE BETWEEN_STEPS EVALUATING BETWEEN_EPOCHS"


def entered(names: Iterable[str]) -> LoopState:
    state = LoopState()
    for name in names:
        state.enter(Phase[name])
    return state


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(f"BETWEEN_EPOCHS {EPOCH} {EPOCH} FINISHED", id="two epochs"),
        pytest.param("MID_EPOCH BETWEEN_STEPS FORWARD", id="a newcomer meets nobody before its first step"),
        pytest.param(
            "BETWEEN_EPOCHS MEETING BETWEEN_STEPS FORWARD BACKWARD_DONE FORWARD BACKWARD_DONE BETWEEN_STEPS",
            id="a step of two micro-batches",
        ),
        pytest.param("BETWEEN_EPOCHS MEETING OVER", id="another rank has ended"),
        pytest.param("BETWEEN_EPOCHS BETWEEN_EPOCHS FINISHED", id="epochs without batches"),
        pytest.param(
            "MID_EPOCH BETWEEN_STEPS FORWARD EVALUATING MEETING BETWEEN_STEPS", id="a break, and on"
        ),
        pytest.param(
            "MID_EPOCH BETWEEN_STEPS FORWARD BETWEEN_EPOCHS", id="a break out of a loop that is kept"
        ),
        pytest.param("BETWEEN_EPOCHS MEETING BETWEEN_STEPS FORWARD FINISHED", id="an exit inside a step"),
        pytest.param(f"BETWEEN_EPOCHS FINISHED {EPOCH[8:]} FINISHED", id="more epochs for one that is alone"),
    ],
)
def test_a_script_may_take_this_way(path: str) -> None:
    assert entered(path.split()).phase.name == path.split()[-1]


@pytest.mark.parametrize(
    ("path", "refused", "allowed"),
    [
        pytest.param("", "FORWARD", "BETWEEN_EPOCHS, MID_EPOCH", id="a step before the group is joined"),
        pytest.param(
            "MID_EPOCH", "MEETING", "BETWEEN_EPOCHS, .*", id="a newcomer at a meeting without peers"
        ),
        pytest.param("BETWEEN_EPOCHS", "FORWARD", "BETWEEN_EPOCHS, .*", id="a step before the meeting"),
        pytest.param("MID_EPOCH BETWEEN_STEPS", "BACKWARD_DONE", ".*", id="a backward pass of nothing"),
        pytest.param("MID_EPOCH BETWEEN_STEPS FORWARD", "MEETING", ".*", id="a meeting inside a step"),
        pytest.param("BETWEEN_EPOCHS MEETING OVER", "BETWEEN_STEPS", "none", id="steps after the end"),
    ],
)
def test_a_phase_that_cannot_follow_is_refused_and_nothing_changes(
    path: str, refused: str, allowed: str
) -> None:
    state = entered(path.split())
    before = state.phase
    message = f"phase after {before.name} must be one of {allowed}, got {refused}: a bug of the SDK"
    with pytest.raises(IllegalTransition, match=message):
        state.enter(Phase[refused])
    assert state.phase is before


def test_the_table_has_a_row_for_each_phase_and_each_can_be_reached() -> None:
    assert SUCCESSORS.keys() == set(Phase)
    reached = {Phase.JOINING}
    while more := {after for phase in reached for after in SUCCESSORS[phase]} - reached:
        reached |= more
    assert reached == set(Phase)
    assert Phase.JOINING not in set().union(*SUCCESSORS.values())


def test_phases_with_a_meeting_ahead_lead_into_it_and_no_others_do() -> None:
    assert {phase for phase in Phase if Phase.MEETING in SUCCESSORS[phase]} == MEETS_NEXT
    assert {phase for phase in Phase if Phase.BACKWARD_DONE in SUCCESSORS[phase]} < IS_OUT
    assert {Phase.EVALUATING} < HAS_PEERS


def a_job(**arguments: Any) -> stretto.sdk.ElasticJob:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.ones(48, 2))
    return stretto.sdk.elastic(model, optimizer, data=data, batch_size=8, **arguments)


def test_calls_out_of_turn_are_refused_in_words_of_the_script() -> None:
    job = a_job(max_local_batch=4)
    loss = torch.ones(1, requires_grad=True).sum()
    for epoch in job.epochs(2):
        with pytest.raises(RuntimeError, match=r"backward\(\) must be called once for each batch"):
            job.backward(loss)
        with pytest.raises(RuntimeError, match=r"step\(\) must follow backward"):
            job.step()
        batches = job.batches()
        loss = job.model(next(batches)[0]).mean()
        if epoch == 0:
            job.backward(loss)
            with pytest.raises(RuntimeError, match=r"backward\(\) must be called once for each batch"):
                job.backward(loss)
            assert job.step() is False  # another micro-batch belongs to it
            job.backward(job.model(next(batches)[0]).mean())
            assert job.step() is True
            with pytest.raises(RuntimeError, match=r"step\(\) must follow backward"):
                job.step()
        else:
            with pytest.raises(RuntimeError, match=r"each batch must go through backward\(\)"):
                next(batches)


def test_a_loop_over_batches_that_is_kept_beyond_its_epoch_neither_goes_on_nor_spoils_the_next() -> None:
    job = a_job(max_local_batch=4)
    kept = []
    for epoch in job.epochs(3):
        batches = job.batches()
        for (x,) in batches:
            job.backward(job.model(x).mean())
            if epoch == 0:
                break  # in the middle of a step, whose gradients must not go into the next one
            job.step()
        kept.append(batches)
        if epoch == 1:
            with pytest.raises(RuntimeError, match="must not go on once its epoch has ended"):
                next(kept[0])
            assert job.sum(of=1.0) == {"of": 1.0}
            kept.clear()
    assert job.steps == 2 * 6
