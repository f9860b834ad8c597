"""Seconds and memory of the backend over Kubernetes on a large cluster: list, look, and changes by watch.

    PYTHONPATH=. python benchmarks/kubernetes_scale.py [--nodes 5000] [--pods 5000] [--changes 500]

The API server is the tests' own, in memory, in a process of its own. *list* is from opening the backend until
all nodes and pods are known, the server's work included. *decode* is the part of it that turns the answers
into objects. *look* is what a round of the service asks: all nodes with their GPUs and others' use, all
workers. *change* is from the call that changes a pod until the watch has told of it.
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

from stretto.backends.kubernetes.api import PODS, Api
from stretto.backends.kubernetes.backend import open_kubernetes
from stretto.backends.kubernetes.informer import Key
from stretto.backends.kubernetes.objects import Pod
from stretto.backends.kubernetes.options import KubernetesOptions

ROOT = Path(__file__).parents[1]


def memory_mb() -> float:
    """Of this process, in use now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


async def measure(url: str, changes: int, folder: Path) -> None:
    options = KubernetesOptions(kubeconfig=kubeconfig(folder, url), image="i")
    before_mb, began_s = memory_mb(), time.perf_counter()
    backend = await open_kubernetes(options, "bench", folder / "state")
    listed_s, after_mb = time.perf_counter() - began_s, memory_mb()
    try:
        content = await backend.api.call("GET", PODS.path())
        began_s = time.perf_counter()
        items = msgspec.json.decode(content, type=dict[str, msgspec.Raw])["items"]
        pods = msgspec.json.decode(items, type=list[Pod])
        decode_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        nodes, workers = await backend.nodes(), await backend.workers()
        look_s = time.perf_counter() - began_s
        others = sum(node.others for node in nodes)
        print(f"{len(nodes)} nodes, {len(pods)} pods of {len(content) / 1e6:.1f} MB, {others} GPUs of others")
        print(f"list    {listed_s:8.3f} s")
        print(f"decode  {decode_s:8.3f} s  (pods alone)")
        print(f"look    {look_s:8.3f} s  ({len(nodes)} nodes, {len(workers)} workers)")
        print(f"memory  {after_mb - before_mb:8.1f} MB more than before, {after_mb:.0f} MB in all")
        await measure_changes(backend.api, backend.pod_informer.items, pods[:changes])
    finally:
        await backend.close()


async def measure_changes(api: Api, known: dict[Key, Pod], pods: list[Pod]) -> None:
    """Change pods one after another, while the watch tells of them."""
    began_s = time.perf_counter()
    for pod in pods:
        change = {"metadata": {"annotations": {"changed": "yes"}}}
        await api.patch(PODS, pod.metadata.namespace, pod.metadata.name, change)
    keys = [(pod.metadata.namespace, pod.metadata.name) for pod in pods]
    await until(lambda: all("changed" in known[key].metadata.annotations for key in keys))
    took_s = time.perf_counter() - began_s
    print(f"change  {took_s / len(pods) * 1000:8.3f} ms  (mean of {len(pods)}, call and watch)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--changes", type=int, default=500)
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, msgspec {msgspec.__version__}")
    command = [sys.executable, "-m", "tests.backends.kubernetes.memory_server"]
    command += [str(options.nodes), str(options.pods)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            with tempfile.TemporaryDirectory() as folder:
                asyncio.run(measure(url, options.changes, Path(folder)))
        finally:
            server.kill()


if __name__ == "__main__":
    main()
