"""Seconds and memory of the backend over Kubernetes on a large cluster, and of a service over it.

    PYTHONPATH=. python benchmarks/kubernetes_scale.py [--nodes 5000] [--pods 5000] [--jobs 100]

The API server is the tests' own, in memory, in a process of its own. Its pods run as soon as they are made.
*cpu* is what this process used of a processor, *wall* what a clock shows, the server's work included.

*list* is from opening the backend until all nodes and pods are known. *decode* is the part of it that turns
the answers into objects. *first look* and *look* are what a service asks at each change: all nodes with their
GPUs and others' use, all workers; the first time, and when nothing has changed. *change* is from the call
that changes a pod until the watch has told of it.

A service over the same cluster then gets jobs of eight GPUs each, all at once. *nodes* is until its log has
all nodes. *round* is from the submissions until the pods of all jobs run: decisions, their record, pods and
secrets created, and what the watch tells of them. *decision* is one of the policy. *nothing new* is one
observation where nothing has changed.
"""

import argparse
import asyncio
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from tests.backends.kubernetes.in_memory import kubeconfig, until
from tests.service.http.rig import a_rig

from stretto.backends.kubernetes.api import PODS, Api
from stretto.backends.kubernetes.backend import KubernetesBackend, open_kubernetes
from stretto.backends.kubernetes.informer import Key
from stretto.backends.kubernetes.machines import Machines
from stretto.backends.kubernetes.objects import Pod
from stretto.backends.kubernetes.options import KubernetesOptions

ROOT = Path(__file__).parents[1]
GPUS = 8  # of each job, each with a pod of its own
JOB = f"run: 'true'\nresources: {{accelerators: {GPUS}}}\n"
LOOKS = 20
ROUND_S = 3_600.0  # on a machine that is busy with other things


def memory_mb() -> float:
    """Of this process, in use now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


class Stopwatch:
    """Processor time and wall time of a part."""

    def __init__(self) -> None:
        self.began = time.process_time(), time.perf_counter()

    def show(self, what: str, times: int = 1, remark: str = "") -> None:
        """Print what has passed since, each time."""
        cpu_ms, wall_ms = (
            (now - began) / times * 1000
            for now, began in zip((time.process_time(), time.perf_counter()), self.began, strict=True)
        )
        print(f"{what:<12}{cpu_ms:10.1f} ms cpu {wall_ms:10.1f} ms wall  {remark}".rstrip())


async def measure(url: str, changes: int, jobs: int, folder: Path) -> None:
    options = KubernetesOptions(kubeconfig=kubeconfig(folder, url), image="i")
    before_mb, watch = memory_mb(), Stopwatch()
    backend = await open_kubernetes(options, "bench", folder / "state")
    after_mb = memory_mb()
    try:
        watch.show("list")
        content = await backend.api.call("GET", PODS.path())
        watch = Stopwatch()
        items = msgspec.json.decode(content, type=dict[str, msgspec.Raw])["items"]
        pods = msgspec.json.decode(items, type=list[Pod])
        watch.show("decode", remark="pods alone")
        for what in ("first look", "look"):
            backend.machines = Machines(options) if what == "first look" else backend.machines
            watch = Stopwatch()
            nodes, _ = await backend.nodes(), await backend.workers()
            watch.show(what)
        others = sum(node.others for node in nodes)
        print(f"{len(nodes)} nodes, {len(pods)} pods of {len(content) / 1e6:.1f} MB, {others} GPUs of others")
        print(f"memory      {after_mb - before_mb:10.1f} MB more than before, {after_mb:.0f} MB in all")
        await measure_changes(backend.api, backend.pod_informer.items, pods[:changes])
        if jobs:
            await measure_service(backend, jobs, folder / "service")
            print(f"memory      {memory_mb():10.1f} MB in all, with the service")
    finally:
        await backend.close()


async def measure_service(backend: KubernetesBackend, jobs: int, folder: Path) -> None:
    """A round of a whole service with the policy that it has unless another is named."""
    watch = Stopwatch()
    async with a_rig(folder, backend=backend, policy="sia") as rig:
        watch.show("nodes", remark="into the log, once")
        reconciler, scheduling = rig.service.reconciler, rig.service.scheduling
        await rig.until(lambda: scheduling.took_ms)
        watch, before = Stopwatch(), len(scheduling.took_ms)
        for _ in range(jobs):
            await rig.submit(text=JOB)
        watch.show("submit", jobs, "each, of one client")
        async with asyncio.timeout(ROUND_S):
            while sum(state.phase == "running" for state in await backend.workers()) < jobs * GPUS:
                await asyncio.sleep(0.5)
        watch.show("round", remark=f"{jobs} jobs, {jobs * GPUS} pods, from the first submission on")
        took_ms = sorted(scheduling.took_ms[before:])
        middle = took_ms[len(took_ms) // 2]
        print(f"decision    {middle:10.1f} ms wall median of {len(took_ms)}, {took_ms[-1]:.1f} at most")
        await asyncio.sleep(2.0)
        watch = Stopwatch()
        for _ in range(LOOKS):
            await reconciler.observe()
        watch.show("nothing new", LOOKS)


async def measure_changes(api: Api, known: dict[Key, Pod], pods: list[Pod]) -> None:
    """Change pods one after another, while the watch tells of them."""
    watch = Stopwatch()
    for pod in pods:
        change = {"metadata": {"annotations": {"changed": "yes"}}}
        await api.patch(PODS, pod.metadata.namespace, pod.metadata.name, change)
    keys = [(pod.metadata.namespace, pod.metadata.name) for pod in pods]
    await until(lambda: all("changed" in known[key].metadata.annotations for key in keys))
    watch.show("change", len(pods), f"mean of {len(pods)}, call and watch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--changes", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=100)
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, msgspec {msgspec.__version__}")
    command = [sys.executable, "-m", "tests.backends.kubernetes.large_cluster"]
    command += [str(options.nodes), str(options.pods)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            with tempfile.TemporaryDirectory() as folder:
                asyncio.run(measure(url, options.changes, options.jobs, Path(folder)))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
