"""Real jobs that share four workers: resized while they train, and trained as if nobody had."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.interrupts import heed_interrupts, heeding

from stretto.agent import supervisor
from stretto.demo.outcome import Outcome
from stretto.demo.own_service import environment_of, until
from stretto.demo.play import Play, play
from stretto.demo.scene import QUICK, SCENE, Entry

from ..running import PROGRAM

pytestmark = [pytest.mark.processes, pytest.mark.large]

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"
SLOTS = 4
SHORT = (
    Entry("digits_cnn.yaml", 0.0, 16, True),
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


def play_unhurried(
    folder: Path, entries: Sequence[Entry], policy: str, program: Sequence[str] = PROGRAM, **more: Any
) -> list[Outcome]:
    """Play a scene in which digits trains slowly until it has been resized and the session has begun."""
    examples, enough = folder / "examples", folder / "enough"
    shutil.copytree(EXAMPLES, examples)
    file = examples / "digits_cnn.yaml"
    slowly = f"python {HERE / 'unhurried.py'} {enough} digits_cnn.py --target 0.95 "
    file.write_text(file.read_text().replace("python digits_cnn.py ", slowly))
    assert slowly in file.read_text()

    def watch(_: float, jobs: Sequence[dict[str, Any]]) -> None:
        by_name = {one["name"]: one for one in jobs}
        has_begun = "session" in by_name and by_name["session"]["state"] in ("RUNNING", "COMPLETED")
        if has_begun and by_name["digits"]["switches"]:
            enough.touch()

    return play(Play(entries, examples, program, policy, SLOTS, watch=watch, **more))


def check(outcomes: Sequence[Outcome]) -> None:
    by_name = {one.name: one for one in outcomes}
    assert {one.name: one.state for one in outcomes} == dict.fromkeys(by_name, "COMPLETED")
    for name in NOISE.keys() & by_name.keys():
        one = by_name[name]
        assert one.is_exact, one.samples
        assert one.reached is not None
        assert one.reached == pytest.approx(one.undisturbed, abs=NOISE[name])
    assert by_name["digits"].resizes, "nobody was resized"
    session, training = by_name["session"], by_name["digits"]
    assert session.waited_s is not None
    assert training.jct_s is not None
    begins_s, ends_s = session.came_s + session.waited_s, training.came_s + training.jct_s
    assert begins_s < ends_s, "room was made for it, it did not have to wait until there was some"
    assert most_at_once(outcomes) <= SLOTS


def test_real_jobs_are_resized_and_train_as_if_they_were_not(tmp_path: Path) -> None:
    check(play_unhurried(tmp_path, SHORT, "sia"))


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
def test_four_kinds_of_real_jobs_share_the_workers(
    tmp_path: Path, policy: str, entries: Sequence[Entry]
) -> None:
    if policy in ("sia", "cornucopia"):
        outcomes = play_unhurried(tmp_path, entries, policy)
        check(outcomes)
    else:
        outcomes = play(Play(entries, EXAMPLES, PROGRAM, policy, SLOTS))
    assert [one.name for one in outcomes if not one.is_good] == []


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGTERM, signal.SIGHUP))],
)
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
    until(lambda: not [one for one in supervisor.processes() if mine in environment_of(one.pid)])
    assert list(folder.iterdir()) == []
