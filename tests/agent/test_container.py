"""Commands of workers in containers: what of the node they see, how they are stopped, and how they fail."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.agent.containers import an_image, real_apptainer, stand_in

from stretto.agent import batch_supervisor, container, exec_session, run_directory, supervisor
from stretto.agent import node as node_of_agent
from stretto.agent.agent import state_folder
from stretto.agent.requests import Refused, start_of
from stretto.agent.worker_table import WorkerTable

PATIENCE_S = 60.0
COUNT = """
import os, signal, sys, time
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
print("ready", flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.5)
print("got", len(got), flush=True)
sys.exit(7)
"""


def until(is_so: Callable[[], object], what: str) -> None:
    """Wait for something."""
    until_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until_s, what
        time.sleep(0.02)


class Node:
    """Run directories on one machine with a tool for containers, and an image."""

    def __init__(self, folder: Path, program: Path | str, image: str) -> None:
        self.folder, self.program, self.image = folder, str(program), image
        self.begun: list[subprocess.Popen[bytes]] = []
        (folder / "runs").mkdir()

    def begin(self, command: str | list[str], image: str = "", **more: Any) -> Path:
        """Begin a worker under its supervisor; its run directory."""
        secrets: Mapping[str, str] = more.pop("secrets", {})
        around: Mapping[str, str] = more.pop("around", {})
        described = {"image": image or self.image, "by": container.APPTAINER, "binds": ["/usr"]}
        described |= {"program": self.program, **more.pop("container", {})}
        start = {"job": "1", "gpus": [], "command": command, "env": {}, "cwd": "", "grace_s": 5.0}
        start |= {"container": described, **more}
        name = f"1.{len(self.begun)}.0"
        run = run_directory.prepare(
            self.folder / "runs", name, start, dict(around), fifo=False, secrets=secrets
        )
        words = [sys.executable, "-I", "-S", str(batch_supervisor.__file__), str(run)]
        self.begun.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True))
        return run

    def ending(self, run: Path) -> dict[str, Any]:
        """How a worker has ended."""
        until((run / "ended.json").exists, f"{run} has not ended: {self.log(run)}")
        return dict(json.loads((run / "ended.json").read_bytes()))

    def log(self, run: Path) -> str:
        """What it has written."""
        return (run / "log").read_text() if (run / "log").exists() else ""

    def close(self) -> None:
        """Leave no supervisor."""
        for each in self.begun:
            if each.poll() is None:
                each.send_signal(signal.SIGTERM)
            each.wait(timeout=PATIENCE_S)

    def order(self, run: Path, order: dict[str, Any]) -> None:
        """Give its supervisor an order."""
        until((run / "running.json").exists, "it has begun")
        with (run / supervisor.ORDERS).open("a") as orders:
            orders.write(json.dumps(order) + "\n")
        os.kill(json.loads((run / "running.json").read_bytes())["keeper_pid"], signal.SIGUSR1)


@pytest.fixture(params=["stand-in", "apptainer"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    """A node with a stand-in for apptainer, and one with a real apptainer where this machine has it."""
    if request.param == "stand-in":
        made = Node(tmp_path, stand_in(tmp_path / "bin"), "/images/plain.sif")
    else:
        real = real_apptainer()
        if real is None:
            pytest.skip("this machine has no apptainer in PATH")
        made = Node(tmp_path, real, str(an_image(tmp_path / "image")))
    yield made
    made.close()


@pytest.fixture
def stand_in_node(tmp_path: Path) -> Iterator[Node]:
    """A node with a stand-in for apptainer."""
    made = Node(tmp_path, stand_in(tmp_path / "bin"), "x:1")
    yield made
    made.close()


@pytest.mark.processes
def test_a_command_runs_in_its_image_with_its_environment_and_none_of_it_on_a_command_line(
    node: Node, tmp_path: Path
) -> None:
    shown = "for each in PATH TRICK HUB_KEY VIRTUAL_ENV LANG; do printenv $each; done; pwd; ls /etc"
    seen = f"tr '\\0' ' ' </proc/$$/cmdline; cat /proc/[0-9]*/cmdline | grep -ac {'hidden' * 2}"
    run = node.begin(
        f"{shown}; {seen}; exit 3",
        env={"PATH": "/usr/bin:/opt/own", "TRICK": '$(id) "a\nb"'},
        around={"VIRTUAL_ENV": "/of/the/node", "LANG": "C.UTF-8", "LD_LIBRARY_PATH": "/of/the/node"},
        secrets={"HUB_KEY": "hidden" * 2 + "-in-no-line"},
        cwd=str(tmp_path),
    )
    ending, log = node.ending(run), node.log(run)
    assert (ending["status"], ending["why"]) == (3, ""), log
    lines = log.splitlines()
    assert lines[:5] == ["/usr/bin:/opt/own", '$(id) "a', 'b"', "hiddenhidden-in-no-line", "C.UTF-8"]
    assert lines[5] == str(tmp_path)
    if (tmp_path / "image").exists():
        assert "of-the-image" in lines
    # The only process that names it is the one that looks for it.
    assert lines[-1].split()[-1] in ("0", "1", "2"), log


@pytest.mark.processes
def test_a_stop_reaches_what_is_inside_once_and_its_status_is_the_worker_s(node: Node) -> None:
    run = node.begin(["/usr/bin/python3", "-c", COUNT])
    until(lambda: "ready" in node.log(run), f"it runs: {node.log(run)}")
    node.order(run, {"stop": 20.0})
    ending = node.ending(run)
    assert (ending["status"], ending["stopped"]) == (7, True)
    assert node.log(run).splitlines()[-1] == "got 1"


@pytest.mark.processes
def test_what_outlives_its_command_or_does_not_obey_is_killed_in_a_container_too(node: Node) -> None:
    run = node.begin("trap '' TERM; setsid sleep 600 & echo $! >pids; echo $$ >>pids; sleep 600; sleep 600")
    until((run / "pids").exists, f"it runs: {node.log(run)}")
    node.order(run, {"stop": 0.5})
    ending = node.ending(run)
    assert ending["stopped"]
    assert ending["status"] in (137, 143)
    assert not any(supervisor.process_at(int(pid)) for pid in (run / "pids").read_text().split())


@pytest.mark.processes
def test_an_image_that_cannot_be_had_ends_the_start_with_the_words_of_the_tool(node: Node) -> None:
    ending = node.ending(node.begin("echo never", image="/images/missing.sif"))
    assert ending["status"] == container.NOT_BEGUN
    assert ending["why"].startswith("cannot start: FATAL: ")
    assert "/images/missing.sif" in ending["why"]


@pytest.mark.processes
def test_another_command_lands_in_the_same_image_and_sees_the_same_folders(
    node: Node, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "set").write_text("more")
    env = {"MODE": "train", "APPTAINER_BIND": f"{tmp_path / 'data'}:/mnt"}
    run = node.begin(
        'cd /usr; echo "$APPTAINER_BIND"; echo up; exec sleep 600', env=env, secrets={"HUB_KEY": "x1"}
    )
    until(lambda: "up" in node.log(run), f"it runs: {node.log(run)}")
    worker = exec_session.Worker(run)
    script = Path(exec_session.__file__)
    show = 'echo $PWD $MODE $HUB_KEY $APPTAINER_CONTAINER$IMAGE; echo "$APPTAINER_BIND"; cat /mnt/set; exit 5'
    asked = {"argv": ["/bin/sh", "-c", show]}
    line = exec_session.frame(exec_session.START, json.dumps(asked).encode())
    words = [sys.executable, "-I", "-S", str(script), str(run)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        session.stdin.write(line)
        session.stdin.flush()
        answer = session.stdout.read()  # until it has ended, with its line open
    assert worker.enter
    seen = node.log(run).splitlines()[0]
    assert "/mnt" in seen.split(",")
    assert f"/usr train x1 {node.image}\n".encode() in answer
    assert f"{seen}\n".encode() in answer
    assert (b"more" in answer) is Path(node.image).exists()
    assert b"WARNING" not in answer
    assert b'"status": 5' in answer
    node.order(run, {"stop": 0.0})
    node.ending(run)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("described", "says"),
    [
        ({"program": "/nowhere/apptainer"}, "its node has no /nowhere/apptainer to run its image"),
        ({"binds": ["/nowhere"]}, "/nowhere: its container is to see this folder, which its node has not"),
        ({"binds": ["/a,b"]}, "/a,b: its container can see no folder with a comma or colon in its name"),
    ],
)
def test_a_node_that_can_run_no_such_container_says_why(
    stand_in_node: Node, described: dict[str, Any], says: str
) -> None:
    ending = stand_in_node.ending(stand_in_node.begin("true", container=described))
    assert (ending["status"], ending["why"]) == (container.NO_CONTAINER, f"cannot start: {says}")


@pytest.mark.processes
def test_a_node_agent_of_ray_runs_the_image_that_a_start_names_and_one_of_local_takes_none(
    tmp_path: Path,
) -> None:
    program = stand_in(tmp_path / "bin")
    environ = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    this_node = node_of_agent.Node("n1", "t", 1)
    table = WorkerTable(state_folder(tmp_path / "state"), this_node, "life", apart=True, environ=environ)
    asked = {"job": "1", "gpus": [0], "command": "echo in $IMAGE; exit 4", "image": "team/train:1"}
    try:
        start = start_of(asked, 1, images=True)
        assert table.start("1.1.0", start, {})["worker"]["phase"] != "ended"
        until(lambda: table.listed("", 0.0)["workers"][0]["phase"] == "ended", "it ends")
        (shown,) = table.listed("", 0.0)["workers"]
        assert shown["status"] == 4
        assert (tmp_path / "state" / "runs" / "1.1.0" / "log").read_text() == "in docker://team/train:1\n"
        assert table.start("1.1.0", start, {})["worker"]["status"] == 4  # the same start again
        with pytest.raises(Refused, match="another request"):
            table.start("1.1.0", {**start, "image": "other:2"}, {})
    finally:
        table.close()
    with pytest.raises(Refused, match="unknown fields \\['image'\\]"):
        start_of(asked, 1)


@pytest.mark.parametrize(
    ("image", "address", "of_pyxis"),
    [
        ("ubuntu:24.04", "docker://ubuntu:24.04", "ubuntu:24.04"),
        ("team/train", "docker://team/train", "team/train"),
        ("nvcr.io/nvidia/torch:25", "docker://nvcr.io/nvidia/torch:25", "nvcr.io#nvidia/torch:25"),
        ("localhost:5000/a:1", "docker://localhost:5000/a:1", "localhost:5000#a:1"),
        ("oras://host/a:1", "oras://host/a:1", "oras://host/a:1"),
        ("/shared/train.sif", "/shared/train.sif", "/shared/train.sif"),
        ("train.sif", "train.sif", "train.sif"),
    ],
)  # fmt: skip
def test_an_image_is_called_as_each_tool_calls_it(image: str, address: str, of_pyxis: str) -> None:
    assert container.address_of(image) == address
    assert f"--container-image={of_pyxis}" in container.srun_of(image, ["/a", "/b"], "/a")
    assert "--container-mounts=/a:/a,/b:/b" in container.srun_of(image, ["/a", "/b"], "/a")


def test_what_a_tool_said_last_of_its_failure_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert container.words_in(log) == ""
    log.write_text("INFO: pulling\n")
    assert container.words_in(log) == "INFO: pulling"
    log.write_text(
        "slurmstepd: error: pyxis: printing enroot log file:\n"
        "slurmstepd: error: pyxis:     [ERROR] No such file or directory: /x.sqsh\n"
        "slurmstepd: error: spank: task_init() failed\nsrun: error: a1: task 0: Exited with exit code 1\n"
    )
    assert container.words_in(log).endswith("[ERROR] No such file or directory: /x.sqsh")
