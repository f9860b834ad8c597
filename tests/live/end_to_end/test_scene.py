"""Real jobs that share four workers: resized while they train, and trained as if nobody had."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.interrupts import heed_interrupts, heeding

from stretto.demo.outcome import Outcome
from stretto.demo.own_service import environment_of, until
from stretto.demo.play import Play, play
from stretto.demo.scene import QUICK, SCENE, Entry
from stretto.live.agent import keeper

from ..running import PROGRAM

EXAMPLES = Path(__file__).parents[3] / "examples"
SLOTS = 4
SHORT = (
    Entry("digits_cnn.yaml", 0.0, 24, True),
    Entry("rigid_ddp.yaml", 5.0, 5, waits=True),
    Entry("interactive.yaml", 6.0),
)
NOISE = {"digits": 0.02, "transformer": 0.1}  # of seven digits in 360; of a twentieth of a bit up or down


def most_at_once(outcomes: Sequence[Outcome]) -> int:
    """The largest sum of sizes at any time."""
    changes = [
        (at_s, after - before)
        for one in outcomes
        for (_, before), (at_s, after) in zip([(0.0, 0), *one.sizes], one.sizes, strict=False)
    ]
    total, most = 0, 0
    for _, change in sorted(changes):  # who gives GPUs up comes before who takes them at the same time
        total += change
        most = max(most, total)
    return most


def check(outcomes: Sequence[Outcome]) -> None:
    by_name = {one.name: one for one in outcomes}
    assert {one.name: one.state for one in outcomes} == dict.fromkeys(by_name, "COMPLETED")
    for name in NOISE.keys() & by_name.keys():
        one = by_name[name]
        assert one.is_exact, one.samples
        assert one.reached is not None
        assert one.reached == pytest.approx(one.undisturbed, abs=NOISE[name])
    assert len({gpus for _, gpus in by_name["digits"].sizes if gpus}) > 1, "nobody was resized"
    session, training = by_name["session"], by_name["digits"]
    assert session.waited_s is not None
    assert training.jct_s is not None
    begins_s, ends_s = session.came_s + session.waited_s, training.came_s + training.jct_s
    assert begins_s < ends_s, "room was made for it, it did not have to wait until there was some"
    assert most_at_once(outcomes) <= SLOTS


def test_real_jobs_are_resized_and_train_as_if_they_were_not() -> None:
    check(play(Play(SHORT, EXAMPLES, PROGRAM, "sia", SLOTS)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "entries"),
    [
        pytest.param("sia", SCENE, id="sia"),
        pytest.param("cornucopia", SCENE, id="cornucopia"),
        pytest.param("tiresias", QUICK, id="tiresias, which stops and restarts"),
        pytest.param("fifo", QUICK, id="fifo, which resizes nobody"),
    ],
)
def test_four_kinds_of_real_jobs_share_the_workers(policy: str, entries: Sequence[Entry]) -> None:
    outcomes = play(Play(entries, EXAMPLES, PROGRAM, policy, SLOTS))
    if policy in ("sia", "cornucopia"):
        check(outcomes)
    assert [one.name for one in outcomes if not one.is_good] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    output = tmp_path / "output"
    folder = tmp_path / "temporary"
    folder.mkdir()
    with (
        output.open("wb") as out,
        heeding(signal.SIGHUP),
        subprocess.Popen(
            [sys.executable, *PROGRAM, "demo", "--quick", "--examples", str(EXAMPLES)],
            stdout=out,
            stderr=out,
            env={**os.environ, "TMPDIR": str(folder)},
            preexec_fn=heed_interrupts,
        ) as process,
    ):
        try:
            until(lambda: b"RUNNING" in output.read_bytes(), 120, "a job runs")
            process.send_signal(number)
            assert process.wait(timeout=120) == 130
        finally:
            process.kill()
    mine = f"TMPDIR={folder}".encode()
    until(lambda: not [one for one in keeper.processes() if mine in environment_of(one.pid)])
    assert list(folder.iterdir()) == []
