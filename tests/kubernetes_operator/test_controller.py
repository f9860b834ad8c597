"""Resources of an API server in memory become jobs of a real service, and show what becomes of these."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.backends.kubernetes.in_memory import api_in_memory
from tests.backends.kubernetes.memory_server import MemoryServer
from tests.service.running import Running

from stretto.backends.kubernetes.api import Api
from stretto.client import Client
from stretto.kubernetes_operator.controller import Operator
from stretto.kubernetes_operator.elastic_job import FINALIZER, PLURAL

pytestmark = [pytest.mark.processes, pytest.mark.large]

NAMESPACE, PATIENCE_S = "team-a", 120.0
LONG = {"run": "sleep 900", "elastic": {"min": 1, "max": 2}}


@asynccontextmanager
async def operating(api: Api, service: Running, *namespaces: str) -> AsyncIterator[Operator]:
    operator = Operator(api, service.client(), namespaces)
    task = asyncio.create_task(operator.run())
    try:
        yield operator
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Resources:
    """What `kubectl` does to resources, and what it shows."""

    def __init__(self, server: MemoryServer, namespace: str = NAMESPACE) -> None:
        self.server, self.namespace = server, namespace

    def apply(self, name: str, spec: dict[str, Any]) -> None:
        known = self.server.objects.get(PLURAL, {}).get((self.namespace, name))
        metadata: dict[str, Any] = {"name": name, "namespace": self.namespace}
        metadata |= known["metadata"] if known else {}
        metadata["generation"] = metadata.get("generation", 0) + 1
        item = {"metadata": metadata, "spec": spec} | ({"status": known["status"]} if known else {})
        self.server.put(PLURAL, item)

    def get(self, name: str) -> dict[str, Any] | None:
        return self.server.objects.get(PLURAL, {}).get((self.namespace, name))

    def status(self, name: str) -> dict[str, Any]:
        item = self.get(name)
        return item.get("status", {}) if item else {}

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        """(status, reason)."""
        conditions = self.status(name).get("conditions", ())
        return next(
            ((each["status"], each["reason"]) for each in conditions if each["type"] == kind), ("", "")
        )

    def events(self, name: str) -> list[str]:
        items = self.server.objects.get("events", {}).values()
        return [item["reason"] for item in items if item["involvedObject"]["name"] == name]


async def until(is_so: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.05)


def jobs_called(client: Client, name: str) -> list[dict[str, Any]]:
    return [job for job in client.jobs(everybody=True, ended=True) if job["name"] == name]


async def test_a_resource_becomes_one_job_and_shows_it_from_start_to_end(
    tmp_path: Path, service: Running
) -> None:
    async with api_in_memory(tmp_path) as (server, api), operating(api, service):
        resources = Resources(server)
        resources.apply("short", {"run": "true"})
        await until(lambda: resources.status("short").get("state") == "COMPLETED")
        assert resources.condition("short", "Complete") == ("True", "Completed")
        assert resources.condition("short", "Failed")[0] == "False"
        resources.apply("breaks", {"run": "exit 3", "restart": {"max": 0}})
        await until(lambda: resources.status("breaks").get("state") == "FAILED")
        assert resources.condition("breaks", "Failed") == ("True", "Failed")
        await until(lambda: "Failed" in resources.events("breaks"))
        with service.client() as client:
            assert [job["id"] for job in jobs_called(client, "short")] == [resources.status("short")["job"]]


async def test_resources_of_some_namespaces_are_followed_and_no_others(
    tmp_path: Path, service: Running
) -> None:
    async with api_in_memory(tmp_path) as (server, api):
        theirs, ours, others = (Resources(server, name) for name in ("team-c", "team-a", "team-b"))
        theirs.apply("early", {"run": "true"})
        async with operating(api, service, "team-a", "team-b"):
            for each in (theirs, ours, others):
                each.apply("same-name", {"run": "true"})
            await until(
                lambda: all(e.status("same-name").get("state") == "COMPLETED" for e in (ours, others))
            )
        assert theirs.status("early") == theirs.status("same-name") == {}
        assert ours.status("same-name")["job"] != others.status("same-name")["job"]


async def test_suspend_is_hold_and_bounds_follow_the_spec(tmp_path: Path, service: Running) -> None:
    async with api_in_memory(tmp_path) as (server, api), operating(api, service):
        resources = Resources(server)
        resources.apply("held", {**LONG, "suspend": True})
        await until(lambda: resources.condition("held", "Suspended") == ("True", "Held"))
        assert resources.status("held")["gpus"] == 0
        resources.apply("held", LONG)
        await until(lambda: resources.condition("held", "Running") == ("True", "Running"))
        resources.apply("held", {**LONG, "elastic": {"min": 1, "max": 1}})  # as `kubectl scale` does
        await until(lambda: resources.status("held")["maxGpus"] == 1)
        resources.apply("held", {**LONG, "suspend": True})
        await until(lambda: resources.status("held")["state"] == "SUSPENDED")
        with service.client() as client:
            (job,) = jobs_called(client, "held")
            client.change(
                job["id"], "release"
            )  # by another way than the resource: shown, and not fought over
            await until(lambda: resources.condition("held", "Suspended") == ("False", "Released"))
            await until(lambda: resources.condition("held", "Running") == ("True", "Running"))
            client.change(job["id"], "cancel")
            await until(lambda: resources.status("held")["state"] == "CANCELLED")


async def test_a_deleted_resource_goes_once_its_job_has_ended(tmp_path: Path, service: Running) -> None:
    async with api_in_memory(tmp_path) as (server, api), operating(api, service):
        resources = Resources(server)
        resources.apply("deleted", LONG)
        await until(lambda: resources.status("deleted").get("gpus"))
        item = resources.get("deleted")
        assert item is not None
        assert item["metadata"]["finalizers"] == [FINALIZER]
        await api.delete(f"apis/stretto.dev/v1alpha1/namespaces/{NAMESPACE}/{PLURAL}/deleted")
        await until(lambda: resources.get("deleted") is None)
        with service.client() as client:
            (job,) = jobs_called(client, "deleted")
            assert job["state"] == "CANCELLED"
            assert job["ended_s"] is not None


async def test_what_the_service_refuses_is_a_condition_and_no_job(tmp_path: Path, service: Running) -> None:
    async with api_in_memory(tmp_path) as (server, api), operating(api, service):
        resources = Resources(server)
        resources.apply("wrong", {"run": "true", "grace_period": "soon"})
        await until(lambda: resources.condition("wrong", "Accepted") == ("False", "Invalid"))
        assert "grace_period" in resources.status("wrong")["message"]
        resources.apply("wrong", {"run": "true", "grace_period": "5s"})  # mended before there was a job
        await until(lambda: resources.status("wrong")["state"] == "COMPLETED")
        resources.apply("wrong", {"run": "false", "grace_period": "5s"})
        await until(lambda: resources.condition("wrong", "UpToDate") == ("False", "Immutable"))
        with service.client() as client:
            assert len(jobs_called(client, "wrong")) == 1


async def test_an_operator_that_was_away_goes_on_and_submits_nothing_twice(
    tmp_path: Path, service: Running
) -> None:
    async with api_in_memory(tmp_path) as (server, api):
        resources = Resources(server)
        async with operating(api, service):
            server.lose("PATCH", PLURAL)  # the finalizer is set, and the answer is lost
            resources.apply("again", LONG)
            await until(lambda: resources.status("again").get("gpus"))
        with service.client() as client:
            (job,) = jobs_called(client, "again")
            item = resources.get("again")
            assert item is not None
            del item["status"]  # as if the operator had ended before it could write down which job it is
            async with operating(api, service):
                await until(lambda: resources.status("again").get("job") == job["id"])
                client.change(job["id"], "cancel")
                await until(lambda: resources.status("again")["state"] == "CANCELLED")
            assert len(jobs_called(client, "again")) == 1


async def test_a_service_that_is_away_for_a_while_loses_no_resource(tmp_path: Path, service: Running) -> None:
    async with api_in_memory(tmp_path) as (server, api), operating(api, service):
        resources = Resources(server)
        resources.apply("before", LONG)
        await until(lambda: resources.status("before").get("gpus"))
        service.kill()
        resources.apply("meanwhile", {"run": "true", "resources": {"accelerators": 1}})
        await asyncio.to_thread(service.begin)
        with service.client() as client:
            client.change(resources.status("before")["job"], "cancel")
            await until(lambda: resources.status("before")["state"] == "CANCELLED")
            await until(lambda: resources.status("meanwhile").get("state") == "COMPLETED")
            assert len(jobs_called(client, "meanwhile")) == 1
