"""Rows of nodes are made anew only where something changed, and are always what a first look gives."""

import random
from pathlib import Path

import pytest
from tests.service.http.rig import a_rig, play

from stretto.backends.protocol import GpuUse
from stretto.service.http.auth import Caller, Role
from stretto.service.http.node_rows import NodeRows

pytestmark = pytest.mark.sqlite

OLGA, ADA, BOB = Caller("olga", Role.OPERATOR), Caller("ada", Role.USER, None), Caller("bob", Role.USER, None)


def text(gpus: int) -> str:
    return f"run: x\nname: a-job\nresources: {{accelerators: '{gpus}'}}"


def test_only_the_row_of_a_node_that_changed_is_another_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            rows = NodeRows(rig.service)
            before = rows.seen_by(OLGA)
            assert all(old is new for old, new in zip(before, rows.seen_by(OLGA), strict=True))
            await rig.submit("ada", text=text(1))
            await rig.until(lambda: len(rig.backend.started) == 1)
            after = rows.seen_by(OLGA)
            others = [old is new for old, new in zip(before, after, strict=True)]
            assert sorted(others) == [False, True]
            assert after[others.index(False)]["jobs"] == {"1": 1}
            assert before[others.index(False)]["jobs"] == {}  # what was handed out stays as it was

    play(story)


def test_users_see_their_own_jobs_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            await rig.submit("ada", text=text(1))
            await rig.submit("bob", text=text(1))
            await rig.until(lambda: len(rig.backend.started) == 2)
            rows = NodeRows(rig.service)

            def jobs(caller: Caller) -> set[str]:
                return {job for row in rows.seen_by(caller) for job in row["jobs"]}

            assert (jobs(OLGA), jobs(ADA), jobs(BOB), jobs(OLGA)) == ({"1", "2"}, {"1"}, {"2"}, {"1", "2"})
            for caller in (OLGA, ADA, BOB):
                assert [rows.one(caller, index) for index in (0, 1)] == rows.seen_by(caller)
                user = "olga" if caller is OLGA else caller.user
                async with rig.client(user) as client:
                    assert (await client.get("/api/v1/nodes")).json()["nodes"] == rows.seen_by(caller)

    play(story)


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_were_kept_are_those_of_a_first_look(tmp_path: Path, seed: int) -> None:
    async def story() -> None:
        draw = random.Random(seed)
        async with a_rig(tmp_path) as rig:
            rows = NodeRows(rig.service)
            async with rig.client("olga") as olga:
                for _ in range(25):
                    node = draw.choice(("n0", "n1"))
                    match draw.randrange(5):
                        case 0:
                            await rig.submit("ada", text=text(draw.choice((1, 1, 2))))
                        case 1:
                            await olga.post(f"/api/v1/nodes/{node}/{draw.choice(('cordon', 'uncordon'))}")
                        case 2:
                            rig.service.gpu_watch.nodes = {node: [GpuUse(draw.random(), 1 << 30, 8 << 30)]}
                        case 3 if rig.service.state.open_jobs():
                            job = draw.choice(rig.service.state.open_jobs()).id
                            await olga.post(f"/api/v1/jobs/{job}/cancel")
                        case _:
                            rig.service.state.nodes[draw.randrange(2)].others = draw.randrange(2)
                    assert rows.seen_by(OLGA) == NodeRows(rig.service).seen_by(OLGA)

    play(story)
