"""What an operator makes of answers that were lost or refused: it leaves no job behind."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from stretto.backends.protocol import BackendUnreachable
from stretto.client import Refused, ServiceError
from stretto.errors import InputError, KeyTaken
from stretto.kubernetes_operator.controller import Operator
from stretto.kubernetes_operator.elastic_job import FINALIZER, ElasticJob

KEY = ("team-a", "train")


class OneService:
    """Answers as a service does, for the jobs of one resource."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = {}
        self.text = ""
        self.gpus_per_worker = 1
        self.does_refuse_token = False
        self.does_know_nothing = False

    def submit(self, text: str, key: str) -> dict[str, Any]:
        if self.does_refuse_token:
            raise Refused("unknown token")
        if self.job and text != self.text:
            raise KeyTaken(f"idempotency key {key!r} was used before, for another job: 7", "7")
        if not self.job:
            elastic, each = json.loads(text).get("elastic", {}), self.gpus_per_worker
            self.text = text
            self.job = {
                "id": "7",
                "state": "RUNNING",
                "reason": "",
                "evidence": "",
                "ended_s": None,
                "gpus": each,
                "gpu_type": "a100",
                "nodes": {"n1": each},
                "gpus_per_worker": {"a100": each},
                "gpus_min": -(-elastic.get("min", 1) // each) * each,
                "gpus_max": elastic.get("max", 8),
                "attempt": 1,
                "restarts": 0,
                "resizes": 0,
                "priority": 0,
            }
        return self.job

    def describe(self, job: str) -> dict[str, Any]:
        if self.does_refuse_token:
            raise Refused("unknown token")
        if self.does_know_nothing:
            raise InputError(f"no job {job!r}")
        return self.job

    def change(self, job: str, verb: str, **values: Any) -> None:
        if verb == "cancel":
            self.job |= {"state": "CANCELLED", "ended_s": 1.0, "gpus": 0}
        elif verb == "scale":
            if values["min_gpus"] % self.gpus_per_worker:
                raise InputError("sizes must be whole workers")
            self.job |= {"gpus_min": values["min_gpus"], "gpus_max": values["max_gpus"]}
        elif verb == "priority":
            self.job |= values
        else:
            raise AssertionError(verb)


class OneResource:
    """An API server that has one resource, and an operator that looks at it when it is told to."""

    def __init__(self, service: OneService, spec: dict[str, Any]) -> None:
        metadata = {"name": KEY[1], "namespace": KEY[0], "uid": "u-1", "generation": 1}
        self.item: dict[str, Any] = {"metadata": {**metadata, "finalizers": [FINALIZER]}, "spec": spec}
        self.does_lose_status = False
        self.operator = Operator(self, service)  # type: ignore[arg-type]

    async def patch(self, kind: Any, namespace: str, name: str, patch: dict[str, Any]) -> ElasticJob:
        self.item["metadata"]["finalizers"] = patch["metadata"]["finalizers"]
        return msgspec.convert(self.item, ElasticJob)

    async def call(self, method: str, path: str, body: dict[str, Any], **_: Any) -> bytes:
        if path.endswith("/status"):
            if self.does_lose_status:
                raise BackendUnreachable("the API server did not answer")
            status = {**self.item.get("status", {}), **body["status"]}
            self.item["status"] = {key: value for key, value in status.items() if value is not None}
        return json.dumps(self.item).encode()

    def decode(self, content: bytes, kind: type[ElasticJob]) -> ElasticJob:
        return msgspec.json.decode(content, type=kind)

    def look(self) -> None:
        self.operator.informer_of(KEY[0]).items[KEY] = msgspec.convert(self.item, ElasticJob)
        asyncio.run(self.operator.reconcile(KEY))

    def change(self, spec: dict[str, Any]) -> None:
        self.item["spec"] = spec
        self.item["metadata"]["generation"] += 1

    def delete(self) -> None:
        self.item["metadata"]["deletionTimestamp"] = "2026-11-23T10:00:00Z"

    @property
    def finalizers(self) -> list[str]:
        return list(self.item["metadata"]["finalizers"])

    def condition(self, kind: str) -> str:
        conditions: list[dict[str, str]] = self.item["status"]["conditions"]
        return next(each["status"] for each in conditions if each["type"] == kind)


def submitted_and_not_written_down(service: OneService) -> OneResource:
    resource = OneResource(service, {"run": "x", "elastic": {"min": 1, "max": 2}})
    resource.does_lose_status = True
    with pytest.raises(BackendUnreachable):
        resource.look()
    resource.does_lose_status = False
    resource.change({"run": "x", "elastic": {"min": 1, "max": 4}})
    return resource


def test_a_spec_that_changed_before_its_job_was_written_down_finds_that_job() -> None:
    service = OneService()
    resource = submitted_and_not_written_down(service)
    resource.look()
    assert resource.item["status"]["job"] == "7"
    assert resource.condition("Accepted") == "True"
    assert service.job["gpus_max"] == 4
    assert resource.condition("UpToDate") == "False", "what else has changed is not known any more"


def test_a_resource_deleted_before_its_job_was_written_down_cancels_that_job() -> None:
    service = OneService()
    resource = submitted_and_not_written_down(service)
    resource.delete()
    resource.look()
    assert service.job["state"] == "CANCELLED"
    assert resource.finalizers == []


def test_a_token_that_is_refused_says_nothing_of_a_job() -> None:
    service = OneService()
    resource = OneResource(service, {"run": "x"})
    resource.look()
    service.does_refuse_token = True
    with pytest.raises(ServiceError, match="unknown token"):
        resource.look()
    assert resource.item["status"]["state"] == "RUNNING"
    resource.delete()
    with pytest.raises(ServiceError, match="unknown token"):
        resource.look()
    assert resource.finalizers == [FINALIZER]
    service.does_refuse_token = False
    resource.look()
    assert service.job["state"] == "CANCELLED"
    assert resource.finalizers == []


def test_a_job_that_the_service_does_not_know_is_lost_and_not_said_to_be_cancelled() -> None:
    service = OneService()
    resource = OneResource(service, {"run": "x"})
    resource.look()
    service.does_know_nothing = True
    resource.look()
    assert (resource.item["status"]["state"], resource.condition("Failed")) == ("LOST", "False")
    assert "knows no job 7" in resource.item["status"]["message"]
    service.does_know_nothing = False
    resource.look()
    assert resource.item["status"]["state"] == "RUNNING"


def test_a_token_that_is_refused_does_not_make_a_spec_invalid() -> None:
    service = OneService()
    service.does_refuse_token = True
    resource = OneResource(service, {"run": "x"})
    with pytest.raises(ServiceError, match="unknown token"):
        resource.look()
    assert "status" not in resource.item


@pytest.mark.parametrize(
    ("before", "after", "bounds"),
    [
        ({"max": 8}, {"max": 2}, (1, 2)),
        ({"min": 1, "max": 8}, {"min": 2, "max": 8}, (2, 8)),
        ({"min": 1, "max": 8}, {"min": 1}, (1, 1_000_000)),
    ],
)
def test_a_bound_that_a_spec_leaves_out_is_that_of_a_job_file(
    before: dict[str, int], after: dict[str, int], bounds: tuple[int, int]
) -> None:
    service = OneService()
    resource = OneResource(service, {"run": "x", "elastic": before})
    resource.look()
    resource.change({"run": "x", "elastic": after})
    resource.look()
    assert (service.job["gpus_min"], service.job["gpus_max"]) == bounds
    assert resource.condition("UpToDate") == "True"


@pytest.mark.parametrize("after", [{}, {"elastic": {"sizes": [1, 4]}}])
def test_sizes_that_cannot_change_are_a_condition(after: dict[str, Any]) -> None:
    resource = OneResource(OneService(), {"run": "x", "elastic": {"min": 1, "max": 8}})
    resource.look()
    resource.change({"run": "x", **after})
    resource.look()
    assert resource.condition("UpToDate") == "False"


def test_bounds_in_whole_workers_are_no_change_and_stop_no_other_one() -> None:
    service = OneService()
    service.gpus_per_worker = 2
    spec = {"run": "x", "elastic": {"min": 1, "max": 8}}
    resource = OneResource(service, spec)
    resource.look()
    assert service.job["gpus_min"] == 2
    resource.change({**spec, "priority": -1})
    resource.look()
    assert service.job["priority"] == -1
    assert resource.condition("UpToDate") == "True"
