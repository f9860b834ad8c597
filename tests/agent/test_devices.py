"""A real GPU is never given twice on one machine: not by two services, nor where others compute."""

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stretto.agent.node import LOCK_FOLDERS, Devices, Locks, NvidiaDriver, close_all, is_usable

from .agents import Agent, kill, until

DRIVER = """
import os, pathlib
folder = pathlib.Path(os.environ["PRETENDED_GPUS"])
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetHandleByUUID(uuid): return int(uuid.rpartition("-")[2])
def nvmlDeviceGetUUID(index): return f"GPU-{folder.name}-{index}"
def nvmlDeviceGetName(index): return "NVIDIA H100"
def nvmlDeviceGetComputeRunningProcesses(index): return [1] if (folder / f"used-{index}").exists() else []
class Memory: used = 1 << 28
def nvmlDeviceGetMemoryInfo(index): return Memory
"""


class PretendedDriver(NvidiaDriver):
    """Says of these that somebody computes on them."""

    def __init__(self, *used: str) -> None:
        self.used = used

    def is_used(self, key: str) -> bool:
        return key in self.used


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Where a machine of our own has its locks."""
    return [tmp_path / "first", tmp_path / "second"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can go through."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def devices(folders: list[Path], *used: str) -> Devices:
    """What one service sees of a machine with four GPUs."""
    found = Devices(("a", "b", "c", "d"), Locks(folders), PretendedDriver(*used))
    found.look(set())
    return found


@pytest.mark.parametrize(
    ("places", "ours", "theirs", "used", "given"),
    [
        pytest.param([1, 2], set(), [], [], [1, 2], id="those of its places"),
        pytest.param([0, 1], set(), [0], [], [2, 1], id="another one for that which a service has"),
        pytest.param([0, 1], set(), [], ["b"], [0, 2], id="another one for that on which somebody computes"),
        pytest.param([1], {1}, [0], [], [2], id="none that a worker of ours has in another's place"),
        pytest.param([0, 1], {2}, [3], ["a"], None, id="none at all where too few are free"),
        pytest.param([], set(), [0, 1, 2, 3], [], [], id="none where none is asked for"),
    ],
)
def test_a_worker_gets(
    folders: list[Path],
    places: list[int],
    ours: set[int],
    theirs: list[int],
    used: list[str],
    given: list[int] | None,
) -> None:
    other = devices(folders).take(theirs, set())
    assert other is not None
    own = devices(folders, *used)
    taken = own.take(places, ours)
    assert (None if taken is None else taken[0]) == given
    close_all(other[1])
    if taken is None:  # it has kept none of those that were free
        again = devices(folders).take([0, 1, 2, 3], set())
        assert again is not None
        close_all(again[1])
    else:
        close_all(taken[1])


@pytest.mark.processes
def test_a_gpu_is_locked_as_long_as_anything_of_its_worker_holds_the_lock(folders: list[Path]) -> None:
    taken = devices(folders).take([2], set())
    assert taken is not None
    pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {}, setsid=True)
    close_all(taken[1])
    try:
        assert devices(folders).look(set()) == {2}
        assert devices(folders).look({2}) == set()
    finally:
        kill(pid)
        os.waitpid(pid, 0)
    assert devices(folders).look(set()) == set()


def test_one_directory_that_both_see_is_enough(folders: list[Path]) -> None:
    first, second = folders
    taken = devices([first, second]).take([0], set())
    assert taken is not None
    assert devices([second]).look(set()) == {0}
    assert devices([first]).take([0, 1, 2, 3], set()) is None
    close_all(taken[1])


def test_who_looks_keeps_nobody_from_a_gpu(folders: list[Path]) -> None:
    one, other = devices(folders), devices(folders)
    for _ in range(50):
        assert one.look(set()) == other.look(set()) == set()
        taken = one.take([0], set())
        assert taken is not None
        close_all(taken[1])


@pytest.mark.parametrize("kind", ["link", "file", "closed"])
def test_a_directory_in_which_a_lock_would_prove_nothing_is_not_used(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "locks"
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o1777)
        folder.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        folder.touch()
    else:
        folder = tmp_path / "missing" / "locks"
    assert not is_usable(folder)
    assert Locks([folder]).take("a") == []


def test_a_lock_is_a_file_of_its_directory_and_follows_no_link(tmp_path: Path) -> None:
    locks = Locks([tmp_path / "locks"])
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "locks" / "gpu-b.lock").symlink_to(victim)
    for name in ("../../victim", "a/b", "", "b"):
        files = locks.take(name)
        assert files is not None
        close_all(files)
    assert victim.read_text() == "precious"
    assert {path.parent for path in tmp_path.rglob("*.lock")} == {tmp_path / "locks"}


@pytest.mark.processes
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_a_lock_of_another_user_is_respected(open_folder: Path) -> None:
    locks = Locks([open_folder / "locks"])
    files = locks.take("a")
    assert files
    pid = os.fork()
    if pid == 0:  # this copy of us must not come back into pytest
        status = 1
        with suppress(BaseException):
            for file in files:
                os.close(file)
            os.setgid(65534)
            os.setuid(65534)
            theirs = Locks([open_folder / "locks"])
            free = theirs.take("b")
            status = 0 if theirs.is_taken("a") and theirs.take("a") is None and free else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    close_all(files)


# ── two agents on one machine with two GPUs ───────────────────────────────────────────────────────────


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Path]:
    """A folder that plays the driver of a machine; locks of its GPUs are removed at the end."""
    folder = tmp_path / secrets.token_hex(8)
    folder.mkdir()
    (folder / "pynvml.py").write_text(DRIVER)
    yield folder
    for locks in LOCK_FOLDERS:
        for path in locks.glob(f"gpu-GPU-{folder.name}-*.lock"):
            path.unlink()


@pytest.fixture
def two(machine: Path, tmp_path: Path) -> Iterator[tuple[Agent, Agent]]:
    env = {"PYTHONPATH": str(machine), "PRETENDED_GPUS": str(machine)}
    agents = [Agent(tmp_path / name, gpus=None, env=env).begin() for name in ("one", "other")]
    try:
        yield agents[0], agents[1]
    finally:
        for each in agents:
            each.end()


def others(agent: Agent) -> int:
    return int(agent.ask("GET", "/v1/workers").json()["others"])


def gpu_of(agent: Agent, name: str, place: int) -> str:
    """What a worker sees that goes on."""
    agent.run(name, 'echo "$CUDA_VISIBLE_DEVICES"; exec sleep 600', gpus=[place])
    return agent.log_line(name)


@pytest.mark.processes
def test_two_agents_share_a_machine_and_each_says_what_the_other_has(two: tuple[Agent, Agent]) -> None:
    one, other = two
    assert gpu_of(one, "j.1.0", 0) == "0"
    until(lambda: others(other) == 1)
    assert others(one) == 0
    assert gpu_of(other, "j.1.0", 0) == "1"
    refusal = other.start("k.1.0", "exit 0", gpus=[1])
    assert (refusal.status_code, "others use too many GPUs" in refusal.json()["why"]) == (423, True)
    until(lambda: others(one) == 1)
    one.stop("j.1.0", 0)
    one.ended("j.1.0")
    until(lambda: others(other) == 0)
    assert gpu_of(other, "k.1.0", 1) == "0"


@pytest.mark.processes
def test_a_gpu_is_free_for_others_once_agent_supervisor_and_worker_were_killed(
    two: tuple[Agent, Agent],
) -> None:
    one, other = two
    gpu_of(one, "j.1.0", 0)
    supervisor_pid = one.supervisor_of("j.1.0")
    one.kill()
    until(lambda: others(other) == 1)
    kill(supervisor_pid)  # and the kernel ends the worker with it
    until(lambda: others(other) == 0)
    assert gpu_of(other, "j.1.0", 0) == "0"
    one.begin()
    assert one.ended("j.1.0")["status"] == 137


@pytest.mark.processes
def test_the_next_agent_still_knows_which_gpus_its_workers_have(two: tuple[Agent, Agent]) -> None:
    one, other = two
    gpu_of(other, "j.1.0", 0)
    assert gpu_of(one, "j.1.0", 0) == "1"
    one.kill()
    one.begin()
    assert others(one) == 1
    assert one.start("k.1.0", "exit 0", gpus=[1]).status_code == 423


@pytest.mark.processes
def test_a_gpu_on_which_somebody_computes_is_left_alone(two: tuple[Agent, Agent], machine: Path) -> None:
    one, _ = two
    (machine / "used-0").touch()
    until(lambda: others(one) == 1)
    assert gpu_of(one, "j.1.0", 0) == "1"
    assert one.start("k.1.0", "exit 0", gpus=[1]).status_code == 423
    (machine / "used-0").unlink()
    until(lambda: others(one) == 0)
    assert gpu_of(one, "l.1.0", 1) == "0"
