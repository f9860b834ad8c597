"""Workers in containers on a real Ray, by a real apptainer."""

import asyncio
import json
import shlex
from pathlib import Path

import pytest
from tests.agent.containers import an_image, real_apptainer
from tests.agent.test_container import COUNT
from tests.backends.ray.cluster import RayCluster
from tests.backends.ray.test_ray import in_phase, opened, until

from stretto.agent import container
from stretto.agent.exec_session import END, INPUT, START
from stretto.backends.protocol import WorkerStart
from stretto.testing.backends.exec_sessions import Reached

pytestmark = [pytest.mark.ray, pytest.mark.large]


@pytest.mark.long  # takes a minute and a half; on Slurm it is tried each time
def test_a_worker_in_an_image_is_reached_and_stopped_and_a_missing_image_ends_the_start_with_its_words(
    cluster: RayCluster, tmp_path: Path
) -> None:
    if real_apptainer() is None:
        pytest.skip("this machine has no apptainer in PATH")
    image = str(an_image(tmp_path / "image"))
    env = {"APPTAINER_BIND": "/usr", "STRETTO_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}

    async def story() -> None:
        async with opened(cluster, tmp_path) as backend:

            async def has_gpus() -> bool:
                return any(each.gpus and each.up for each in await backend.nodes())

            await until(backend, has_gpus)
            node = next(each.name for each in await backend.nodes() if each.gpus and each.up)
            command = f"echo $APPTAINER_CONTAINER; exec /usr/bin/python3 -c {shlex.quote(COUNT)}"
            start = WorkerStart("81.1.0", "81", node, (0,), command, env, image=image)
            await backend.start(start)

            async def is_ready() -> bool:
                ended = any(each.phase == "ended" for each in await backend.workers())
                return ended or (await backend.log("81.1.0")).data.endswith(b"ready\n")

            await until(backend, is_ready)
            async with Reached(await backend.reach("81.1.0")) as session:
                line = 'echo "$APPTAINER_CONTAINER $STRETTO_WORKER_ID"; cat /etc/of-the-image -; exit 5'
                (Path(image) / "etc" / "of-the-image").write_text("only here\n")
                await session.say(START, json.dumps({"argv": ["sh", "-c", line]}).encode())
                await session.say(INPUT, b"\0typed\xff")
                await session.say(END)
                assert await session.status() == 5
            assert session.output == f"{image} 81.1.0\nonly here\n".encode() + b"\0typed\xff"
            assert session.errors == b""
            await backend.stop("81.1.0", 30.0)
            ended = await in_phase(backend, "81.1.0", "ended")
            assert (ended.status, ended.stopped, ended.why) == (7, True, "")
            assert (await backend.log("81.1.0")).data.decode() == f"{image}\nready\ngot 1\n"
            start = WorkerStart("82.1.0", "82", node, (0,), "true", env, image="/images/missing.sif")
            await backend.start(start)
            failed = await in_phase(backend, "82.1.0", "ended")
            assert failed.status == container.NOT_BEGUN
            assert failed.why.startswith("cannot start: FATAL: ")

    asyncio.run(story())
