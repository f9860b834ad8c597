"""Jobs with an image, or that must be within a rack: what a backup of their service keeps of them."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.service.fake_backend import FakeBackend
from tests.service.http.rig import a_rig, play

from stretto.cli.app import status_of
from stretto.service.backup import DATABASE, restore_backup, write_backup
from stretto.service.eventlog import open_store
from stretto.service.scheduling.replay import Replay
from stretto.service.state.records import WorkerPhase
from stretto.service.state.state import State
from stretto.service.state.status import status_of as shown

pytestmark = pytest.mark.sqlite

IMAGE = "registry.example/team/train:1.2"
WITHIN = f"name: within\nrun: 'true'\nimage: {IMAGE}\nresources: {{accelerators: 8, within: rack}}"
PLAIN = "name: plain\nrun: 'true'\nresources: {accelerators: 3}"
WAITS = f"name: waits\nrun: 'true'\nimage: {IMAGE}-dev\nresources: {{accelerators: 8, within: rack}}"


def test_images_and_racks_survive_a_backup_and_every_decision_comes_out_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there, archive = tmp_path / "here", tmp_path / "there", tmp_path / "backup.tar"
    backend = FakeBackend(nodes_count=4)
    for at, name in enumerate(sorted(backend.known)):
        backend.known[name] = replace(backend.known[name], rack=f"r{at % 2}")
    jobs: dict[str, str] = {}

    def started(job: str) -> bool:
        return any(each.job == job for each in backend.started)

    async def story() -> None:
        async with a_rig(here, backend=backend, topology="near") as rig:
            for text in (PLAIN, WITHIN, WAITS):
                job = await rig.submit("ada", text=text)
                jobs[text] = job
                if text is not WAITS:
                    await rig.until(partial(started, job))
            nodes = {each.node for each in backend.started if each.job == jobs[WITHIN]}
            assert nodes in ({"n0", "n2"}, {"n1", "n3"})
            assert {each.image for each in backend.started if each.job == jobs[WITHIN]} == {IMAGE}
            state = rig.service.log_writer.state
            await rig.until(lambda: state.jobs[jobs[WITHIN]].alive[0].life is not WorkerPhase.WANTED)
            assert state.wanted(jobs[WAITS]) is None
            (here / "key").write_bytes(b"k" * 32)
            write_backup(here, str(here / "log.db"), archive)

    play(story)
    restore_backup(archive, there, "")
    replay = Replay(State())
    with open_store(there / DATABASE) as store:
        for recorded in store.read():
            replay.next(recorded)
    replay.finish()
    assert (replay.decisions > 1, replay.differences) == (True, [])
    images = {text: shown(replay.state, replay.state.jobs[job], 0.0).image for text, job in jobs.items()}
    assert images == {PLAIN: "", WITHIN: IMAGE, WAITS: f"{IMAGE}-dev"}
    assert replay.state.jobs[jobs[WAITS]].job.within == "rack"
    assert status_of(["simulate", "--from-log", str(there), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["decisions"], told["differences"], told["jobs"]) == (replay.decisions, 0, 3)
