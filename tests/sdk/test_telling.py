"""What goes over the channel, what is agreed, and which batch follows."""

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import torch

from stretto.errors import InputError
from stretto.sdk.channel import Channel, NoLongerWanted, Reporter, finite, fixed, read_generation
from stretto.sdk.settings import Batch, Bounds, RequestedBatch, choose_batch, read_environment
from stretto.sdk.step_consensus import LEAST_PERIOD, MOST_PERIOD, ControlFlags, StepConsensus, propose
from stretto.sdk.step_profiler import LEAST_STEPS, OperatingPoint, StepTimes
from stretto.sdk.training import MOST_FOUND, Progress
from stretto.testing.conductor import Conductor

pytestmark = pytest.mark.torch


def test_nothing_that_is_not_finite_leaves_the_worker() -> None:
    told = finite(
        {
            "loss": math.nan,
            "grad_sqr": math.inf,
            "step": 3,
            "metric": None,
            "points": [[1, 1, 8, 1, 0.1, math.nan], [1, 2, 8, 1, 0.1, 0.2]],
            "epoch_metrics": [0.5, math.nan],
        }
    )
    assert told == {"step": 3, "points": [[1, 2, 8, 1, 0.1, 0.2]]}
    json.dumps(told, allow_nan=False)


class Told:
    """In the place of a channel: what was posted."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {}

    def post(self, what: str, **content: Any) -> None:
        self.content = finite(content)


def test_what_evaluations_found_is_reported_by_its_name() -> None:
    told, progress = Told(), Progress(dataset_samples=8, seed=0)
    reporter = Reporter(told, 0.0)  # type: ignore[arg-type]

    def reported() -> tuple[Any, Any]:
        reporter.send(progress, StepTimes(), Batch(8, 1), Bounds(8, 8), None)
        return told.content.get("metric"), told.content.get("metrics")

    assert reported() == (None, None)
    progress.note_found({"val_loss": 0.25, "accuracy": float(torch.tensor(0.5)), "f1": 0.75})
    assert reported() == (0.5, {"val_loss": 0.25, "accuracy": 0.5, "f1": 0.75})
    progress.end_epoch()
    progress.note_found({"accuracy": 0.93})
    assert reported() == (0.93, {"val_loss": 0.25, "f1": 0.75, "accuracy": 0.93})
    progress.note_found({f"other {number}": 0.0 for number in range(MOST_FOUND)})
    assert "accuracy" not in progress.found
    progress.note_found({"accuracy": math.nan})
    assert "accuracy" not in reported()[1]


@pytest.mark.sockets
def test_messages_come_in_order_once_the_service_is_back() -> None:
    with Conductor() as conductor:
        conductor.is_away = True
        channel = Channel(conductor.url, conductor.token, "w")
        channel.post("ready")
        for step in range(3):
            channel.post("joined", generation=1, step=step)
        conductor.is_away = False
        conductor.wait_until(lambda: len(conductor.joined) == 3, 20, "three messages")
        assert conductor.ready == ["w"]
        assert [each["step"] for each in conductor.joined] == [0, 1, 2]
        channel.close(1.0)


@pytest.mark.sockets
def test_a_generation_is_waited_for_and_a_dismissal_is_told() -> None:
    with Conductor() as conductor:
        channel = Channel(conductor.url, conductor.token, "w")
        assert channel.generation(0, 0.0, with_store=False) is None
        number = conductor.publish(["v", "w"], batch={"total": 64, "local": 32, "accumulation": 1})
        told = channel.generation(0, 5.0, with_store=False)
        assert told is not None
        assert (told.number, told.rank_of("w"), told.batch) == (number, 1, RequestedBatch(64, 1))
        assert channel.generation(0, 0.0, with_store=True) is None
        conductor.dismiss("w")
        with pytest.raises(NoLongerWanted):
            channel.generation(number, 5.0, with_store=False)
        channel.close(1.0)


@pytest.mark.sockets
def test_a_token_that_is_wrong_is_an_error_not_an_answer() -> None:
    with Conductor() as conductor:
        channel = Channel(conductor.url, "guessed", "w")
        with pytest.raises(OSError, match="401"):
            channel.generation(0, 0.0, with_store=False)
        channel.close(0.0)


class Nonsense(BaseHTTPRequestHandler):
    """Answers every question, and nothing sensible."""

    def do_GET(self) -> None:
        answer = b'{"generation": "four"}'
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *given: Any, **named: Any) -> None:
        """Nobody reads it."""


@pytest.mark.sockets
def test_a_service_that_sends_nonsense_is_one_that_does_not_answer() -> None:
    with HTTPServer(("127.0.0.1", 0), Nonsense) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        channel = Channel(f"http://127.0.0.1:{server.server_port}", "", "w")
        with pytest.raises(OSError, match="no generation"):
            channel.generation(0, 0.0, with_store=False)
        channel.close(0.0)
        server.shutdown()


@pytest.mark.parametrize(
    ("bounds", "world", "requested", "batch"),
    [
        pytest.param(Bounds(64, 64), 4, None, Batch(64, 1), id="a fixed batch is divided"),
        pytest.param(Bounds(64, 512), 4, None, Batch(256, 1), id="it grows with the workers"),
        pytest.param(Bounds(64, 200), 4, None, Batch(200, 1), id="up to its bound"),
        pytest.param(Bounds(64, 512), 2, RequestedBatch(400, 2), Batch(400, 2), id="as requested"),
        pytest.param(Bounds(64, 256), 2, RequestedBatch(400, 1), Batch(256, 1), id="requests are bounded"),
        pytest.param(Bounds(64, 256), 2, RequestedBatch(16, 1), Batch(64, 1), id="from below, too"),
        pytest.param(
            Bounds(64, 64),
            2,
            RequestedBatch(32, 2),
            Batch(64, 2),
            id="a fixed batch stays, its passes may not",
        ),
        pytest.param(
            Bounds(64, 512, 50), 2, RequestedBatch(400, 1), Batch(400, 4), id="passes fit the memory"
        ),
        pytest.param(Bounds(2, 2), 4, RequestedBatch(2, 8), Batch(2, 1), id="no more passes than samples"),
    ],
)
def test_the_batch(bounds: Bounds, world: int, requested: RequestedBatch | None, batch: Batch) -> None:
    assert choose_batch(bounds, world, requested) == batch


def test_bounds_that_contradict_each_other_are_named() -> None:
    with pytest.raises(InputError, match="max_batch_size must be >= batch_size=64, got 32"):
        Bounds(64, 32)


def test_what_is_told_in_one_exchange_is_agreed_in_the_next_and_exchanges_spread_with_short_steps() -> None:
    consensus = StepConsensus(world=1)
    assert consensus.is_due(1)
    assert consensus.after(1, ControlFlags(step_s=0.001)) == ControlFlags()
    assert consensus.after(2, ControlFlags(leave=1.0, step_s=0.001)).leave == 0.0
    assert not consensus.is_due(200)
    assert consensus.is_due(202)
    assert consensus.after(202, ControlFlags()).leave == 1.0
    assert consensus.now(ControlFlags(proposal=propose(7, 3))).generation == 7
    assert ControlFlags(proposal=propose(7, 3)).proposer == 3


@pytest.mark.parametrize(
    ("step_s", "measuring_s", "period"),
    [
        pytest.param(0.0, 0.0, LEAST_PERIOD, id="nothing is known yet"),
        pytest.param(0.1, 1e-6, LEAST_PERIOD, id="what costs nothing is still not done all the time"),
        pytest.param(0.1, 0.05, 100, id="half a step in a hundred is half a per cent"),
        pytest.param(0.001, 0.1, MOST_PERIOD, id="what costs much is still done"),
    ],
)
def test_measuring_takes_half_a_per_cent(step_s: float, measuring_s: float, period: int) -> None:
    assert ControlFlags(step_s=step_s, measuring_s=measuring_s).measuring_period == period


def test_a_point_is_told_once_it_is_measured_well() -> None:
    times, point = StepTimes(), OperatingPoint(1, 2, 32, 2)
    times.add_steps(point, LEAST_STEPS - 1, 0.9)
    times.add_micro_batches(point, 2, 0.02)
    assert times.points() == []
    times.add_steps(point, 1, 0.1)
    assert times.points() == [[1, 2, 32, 2, pytest.approx(0.01), pytest.approx(0.1)]]


def test_a_script_in_a_shell_that_speaks_with_the_service_trains_alone() -> None:
    found = read_environment({"STRETTO_URL": "http://s:1", "STRETTO_TOKEN": "t", "WORLD_SIZE": "2"})
    assert (found.is_elastic, found.token, found.world) == (False, "", 2)


def test_the_environment_says_whom_to_listen_to() -> None:
    env = {
        "STRETTO_URL": "http://s:1/",
        "STRETTO_WORKER_ID": "j.1.0",
        "STRETTO_TOKEN": "t",
        "WORLD_SIZE": "4",
    }
    found = read_environment(env)
    assert (found.url, found.worker, found.world) == ("http://s:1", "j.1.0", 1)
    assert read_environment({"RANK": "1", "WORLD_SIZE": "4"}).world == 4
    assert read_environment({"STRETTO_GRACE_S": "7.5"}).grace_s == 7.5
    with pytest.raises(InputError, match="STRETTO_GRACE_S must be a number of seconds, got 'soon'"):
        read_environment({"STRETTO_GRACE_S": "soon"})
    with pytest.raises(InputError, match="WORLD_SIZE must be a whole number, got 'two'"):
        read_environment({"WORLD_SIZE": "two"})


def test_a_generation_counts_nodes_and_gpus() -> None:
    workers = [{"id": "a", "node": "n1", "gpus": 2}, {"id": "b", "node": "n2", "gpus": [0, 3]}]
    read = read_generation({"generation": 1, "workers": workers})
    assert (read.nodes, read.gpus, read.world) == (2, 4, 2)
    assert (fixed(6, 4).nodes, fixed(6, 4).gpus) == (2, 6)
