"""Which files does a job pass from its submission to its end?

    python benchmarks/job_way.py [--root CHECKOUT]

A service with four slots of this machine and the policy `sia` runs an elastic training, which is submitted
from the command line, grows, makes room for a rigid command of three, and ends; so does the command. A file
is passed if a function or method of it, or one that a dataclass was given, is called between the first
submission and the end of both, in the process of a client, the service, the agent, or a worker. What runs
while a module is imported does not count, and neither do nouns that are only named in annotations. Needs
PyTorch and what a service needs.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PATIENCE_S = 1_200.0  # a busy machine takes minutes to start four trainings

# Every Python process reads this as it starts. A module is written down at once, because processes of jobs
# are killed. Nothing counts while the byte of the file `begun` is 0.
TRACER = """
import mmap, os, sys, threading

folder = os.environ.get("PYTHON_JOB_WAY")
if folder:
    with open(os.path.join(folder, "begun"), "rb") as file:
        begun = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
    found, passed = set(), set()
    path = os.path.join(folder, f"passed-{os.getpid()}")
    out = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o666)

    def is_importing(frame):
        while frame is not None:
            if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
                return True
            frame = frame.f_back
        return False

    def note(frame, event, argument):
        if event != "call" or frame.f_code in found or not begun[0]:
            return
        module = frame.f_globals.get("__name__", "")
        if module == "__main__":
            module = getattr(frame.f_globals.get("__spec__"), "name", "")
        if not module.startswith("stretto"):
            found.add(frame.f_code)
        elif frame.f_code.co_flags & 1 and not is_importing(frame):  # a function, not the body of a class
            found.add(frame.f_code)
            if module not in passed:
                passed.add(module)
                os.write(out, (module + "\\n").encode())

    threading.setprofile(note)
    sys.setprofile(note)
"""

TRAINING = """
import os, sys, time
import torch
from torch.utils.data import TensorDataset
import stretto.sdk

folder = sys.argv[1]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(512, 4), torch.randn(512, 1))
job = stretto.sdk.elastic(model, optimizer, data=data, batch_size=32)
for _ in job.epochs(1_000_000):
    for x, y in job.batches():
        time.sleep(0.005 * len(x))  # so that it pays to divide a batch
        job.backward((job.model(x) - y).square().mean())
        job.step()
    if job.rank == 0:
        with open(f"{folder}/workers.new", "w") as file:
            file.write(str(job.world_size))
        os.replace(f"{folder}/workers.new", f"{folder}/workers")
    if job.sum(told=float(os.path.exists(f"{folder}/enough")))["told"]:
        break
"""
JOB_FILE = """
run: {python} {folder}/training.py {folder}
elastic: {{min: 1, max: 4}}
batch: {{init: 32}}
envs: {{OMP_NUM_THREADS: "1"}}
"""


def files_of_a_job(root: Path) -> list[str]:
    """The modules that a job of this checkout passes, sorted. Raises TimeoutError where it does not end."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(TRACER)
        (folder / "training.py").write_text(TRAINING)
        (folder / "job.yaml").write_text(JOB_FILE.format(python=sys.executable, folder=folder))
        (folder / "begun").write_bytes(b"\0")
        _walk(root, folder)
        passed = {module for file in folder.glob("passed-*") for module in file.read_text().split()}
    return sorted(passed)


def _walk(root: Path, folder: Path) -> None:
    """The way itself: a service, two jobs, and their ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {
        "PYTHONPATH": f"{folder}{os.pathsep}{root / 'src'}",
        "PYTHON_JOB_WAY": str(folder),
        "STRETTO_URL": url,
    }
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["stretto"].partition(":")
    stretto = [sys.executable, "-c", f"from {module} import {function}; {function}()"]
    options = ["--slots", "4", "--policy", "sia", "--insecure-loopback", "--state", str(folder / "state")]
    with (folder / "service.log").open("w") as log:
        service = subprocess.Popen(
            [*stretto, "serve", "--listen", url.removeprefix("http://"), *options],
            env=environment, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        _until(lambda: bool(_answer(url, "nodes")), folder, service)
        _count(folder, 1)
        subprocess.run([*stretto, "submit", "job.yaml"], env=environment, cwd=folder, check=True)
        _until(lambda: _workers(folder) > 1, folder, service)
        command = [*stretto, "submit", "--gpus", "3", "--", "sleep", "2"]
        subprocess.run(command, env=environment, cwd=folder, check=True)
        _until(lambda: _workers(folder) == 1, folder, service)
        (folder / "enough").touch()
        _until(lambda: _state(url, 1) == _state(url, 2) == "COMPLETED", folder, service)
        _count(folder, 0)
    finally:
        for job in (1, 2):
            subprocess.run([*stretto, "cancel", str(job)], env=environment, capture_output=True, check=False)
        service.send_signal(signal.SIGINT)
        service.wait(60.0)


def _until(is_so: Callable[[], bool], folder: Path, service: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not is_so():
        if service.poll() is not None or time.monotonic() > until_s:
            raise TimeoutError((folder / "service.log").read_text()[-4_000:])
        time.sleep(0.5)


def _count(folder: Path, whether: int) -> None:
    """Let calls count from now on, or not any more."""
    with (folder / "begun").open("r+b") as file:  # in place: processes look at its memory
        file.write(bytes([whether]))


def _workers(folder: Path) -> int:
    path = folder / "workers"
    return int(path.read_text()) if path.exists() else 0


def _state(url: str, job: int) -> str:
    return str((_answer(url, f"jobs/{job}") or {}).get("state"))


def _answer(url: str, what: str) -> Any:
    try:
        with urllib.request.urlopen(f"{url}/api/v1/{what}", timeout=30.0) as answer:
            return json.load(answer)
    except OSError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="a checkout")
    modules = files_of_a_job(parser.parse_args().root.resolve())
    print("\n".join([*modules, f"{len(modules)} files"]))


if __name__ == "__main__":
    main()
