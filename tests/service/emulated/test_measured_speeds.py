"""On an emulated cluster a policy sizes jobs by what workers of their models have measured."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.service.running import Running

from stretto.cli.app import status_of
from stretto.client import Client
from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.slow]

# Two GPUs train `ncf` slower than one; `vgg16` gains by each (its figures in the catalogue).
FLAT, LINEAR = "ncf", "vgg16"
SUBLINEAR = "deepspeech2"  # a third GPU brings it half of what the second did
ONE_NODE = "name: node\ngpu_types: {v100: {memory_gb: 32}}\nnodes: [{type: v100, gpus: 4, count: 1}]\n"


def job(model: str, gpus: int, most: int = 4) -> str:
    """A training whose batch is fixed."""
    resources = {"accelerators": str(gpus)}
    elastic = {"min": 1, "max": most}
    return json.dumps({"name": model, "run": "x", "model": model, "resources": resources, "elastic": elastic})


def sources(client: Client, name: str) -> list[str]:
    """Where the speeds that policies are shown of a job come from, by type and GPUs on one node."""
    entries: list[dict[str, Any]] = client.describe(name)["speeds"]["entries"]
    return [entry["source"] for entry in entries if not entry["spread"]]


def measure(client: Client, model: str, most: int = 2) -> None:
    """Have a job of a model run until all counts on which it may run have been measured."""
    first = client.submit(job(model, most - 1, most))["id"]
    until(lambda: set(sources(client, first)) == {"measured"}, what=f"{model} is measured")
    client.change(first, "cancel")
    until(lambda: bool(client.describe(first)["ended_s"]), what="it ends")


def test_under_cornucopia_a_job_that_does_not_scale_keeps_one_gpu_beside_one_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.yaml").write_text(ONE_NODE)
    options = ("--backend", "emulated", "--cluster", str(tmp_path / "cluster.yaml"), "--pace", "300")
    ramp = ("--set", "policy.profile=ramp")
    service = Running(tmp_path, *options, "--policy", "cornucopia", *ramp)
    try:
        service.begin()
        with service.client() as client:
            for model in (FLAT, LINEAR):  # the first job of a model ramps up, which measures every count
                measure(client, model)
            everything = {"resources": {"accelerators": "4"}, "expected_time": "99h"}
            before = client.submit(json.dumps({"name": "before", "run": "x", **everything}))["id"]
            until(lambda: client.describe(before)["gpus"] == 4, what="both come to one decision")
            flat = client.submit(job(FLAT, 2))["id"]
            linear = client.submit(job(LINEAR, 4))["id"]
            client.change(before, "cancel")

            def held() -> tuple[int, int]:
                return client.describe(flat)["gpus"], client.describe(linear)["gpus"]

            until(lambda: sum(held()) == 4, what="all GPUs are held")
            assert held() == (1, 3)
            assert status_of(["describe", flat, "--url", service.url]) == 0
            assert "measured" in capsys.readouterr().out
        assert service.kill(signal.SIGTERM) == 0
        assert service.differences()[1] == 0, "decided again, the same comes out"
    finally:
        service.end()


def test_an_interactive_job_starts_on_a_gpu_of_the_job_that_misses_it_least(
    tmp_path: Path,
) -> None:
    (tmp_path / "cluster.yaml").write_text(ONE_NODE.replace("gpus: 4", "gpus: 6"))
    options = ("--backend", "emulated", "--cluster", str(tmp_path / "cluster.yaml"), "--pace", "300")
    service = Running(
        tmp_path,
        *options,
        "--policy",
        "cornucopia",
        "--set",
        "policy.profile=ramp",
        "--set",
        "sim.resize_s=5",
    )
    try:
        service.begin()
        with service.client() as client:
            for model in (SUBLINEAR, LINEAR):
                measure(client, model, 3)
            # Of equals the later one would give: here that is the linear one.
            sublinear, linear = (client.submit(job(model, 3, 3))["id"] for model in (SUBLINEAR, LINEAR))

            def training() -> tuple[int, int]:
                shown = [client.describe(name) for name in (sublinear, linear)]
                return shown[0]["training_gpus"], shown[1]["training_gpus"]

            until(lambda: training() == (3, 3), what="both train on three GPUs")
            asked_at_s = time.monotonic()
            asked = {"name": "look", "kind": "interactive", "run": "x", "expected_time": "99h"}
            waits = client.submit(json.dumps({**asked, "resources": {"accelerators": "1"}}))["id"]
            until(lambda: client.describe(waits)["state"] == "RUNNING", what="the user is served")
            took_s, waited_s = time.monotonic() - asked_at_s, client.describe(waits)["waited_s"]
            # Shown by pytest -rP
            print(f"GPUs after {waited_s:.2f} s of the cluster, running after {took_s:.2f} s of ours")
            until(lambda: training() == (2, 3), what="the sublinear one trains on two GPUs")
            victim, other = client.describe(sublinear), client.describe(linear)
            assert (victim["restarts"], other["restarts"]) == (0, 0), "it gave a GPU in place"
            assert client.describe(waits)["standing"].startswith("queue 1 of 3")
            client.change(waits, "cancel")
            until(lambda: training() == (3, 3), what="what was taken comes back")
        assert service.kill(signal.SIGTERM) == 0
        assert service.differences()[1] == 0, "decided again, the same comes out"
    finally:
        service.end()


def test_under_gavel_a_job_that_gains_nothing_by_the_fast_type_leaves_it_to_one_that_does(
    tmp_path: Path,
) -> None:
    types = "gpu_types: {t4: {memory_gb: 16}, v100: {memory_gb: 32}}"
    nodes = "nodes: [{type: t4, gpus: 1, count: 1}, {type: v100, gpus: 1, count: 1}]"
    (tmp_path / "cluster.yaml").write_text(f"name: two\n{types}\n{nodes}\n")
    options = ("--backend", "emulated", "--cluster", str(tmp_path / "cluster.yaml"), "--pace", "100")
    service = Running(tmp_path, *options, "--policy", "gavel", "--set", "policy.round_s=60")
    try:
        service.begin()
        with service.client() as client:
            # On v100 they are 0.9 and 1.8 times as fast as on t4. No speed of a type says so.
            same, faster = (
                client.submit(job(model, 1, 1))["id"] for model in ("resnet18-cifar10", "deepspeech2")
            )

            def held() -> tuple[str, str]:
                return client.describe(same)["gpu_type"], client.describe(faster)["gpu_type"]

            until(lambda: held() == ("t4", "v100"), what="each holds the type that suits it")
            until(lambda: "measured" in sources(client, same), what="one is measured")
            until(lambda: "measured" in sources(client, faster), what="the other is measured")
            attempts = [client.describe(name)["attempt"] for name in (same, faster)]
            decided = client.describe(same)["running_s"]
            until(lambda: client.describe(same)["running_s"] > decided + 300, what="five rounds pass")
            assert held() == ("t4", "v100")
            assert [client.describe(name)["attempt"] for name in (same, faster)] == attempts, "nobody moved"
        assert service.kill(signal.SIGTERM) == 0
        assert service.differences()[1] == 0, "decided again, the same comes out"
    finally:
        service.end()


def entries(client: Client, name: str) -> dict[tuple[int, bool], dict[str, Any]]:
    """What is known of a job's speeds, by GPUs and whether they are on several nodes."""
    shown = client.describe(name)["speeds"]["entries"]
    return {(entry["gpus"], entry["spread"]): entry for entry in shown}


def test_the_profiling_run_of_unisched_measures_two_gpus(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(ONE_NODE)
    options = ("--backend", "emulated", "--cluster", str(tmp_path / "cluster.yaml"), "--pace", "300")
    service = Running(tmp_path, *options, "--policy", "unisched")
    try:
        service.begin()
        with service.client() as client:
            name = client.submit(job(FLAT, 4))["id"]
            until(lambda: client.describe(name)["gpus"] == 2, what="it is profiled")
            until(lambda: client.describe(name)["gpus"] == 4, what="it runs on what it asked for")
            assert entries(client, name)[2, False]["source"] == "measured"
            # From two local batches on it can be told how long one GPU takes for the whole batch.
            until(lambda: entries(client, name)[4, False]["source"] == "measured", what="four are measured")
            by_place = entries(client, name)
            assert by_place[2, False]["per_s"] < by_place[1, False]["per_s"], "two communicate for too long"
            assert client.describe(name)["progress"]["step"] > 0, "a profiling run makes progress"
        assert service.kill(signal.SIGTERM) == 0
        assert service.differences()[1] == 0, "decided again, the same comes out"
    finally:
        service.end()
