"""What an `ElasticJob` is: a job file with another word for hold, checked before it is submitted."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from stretto.jobfile.stretto_file import KEYS
from stretto.kubernetes_operator.crd import NOT_OF_A_RESOURCE, definition, definition_text
from stretto.kubernetes_operator.elastic_job import MUTABLE, ElasticJob, bounds_of, digest_of, job_file_of
from stretto.kubernetes_operator.status import ENDED, Finding, status_of
from stretto.model import InputError

DEPLOY = Path(__file__).parents[2] / "deploy" / "kustomize" / "operator"
NOW, LATER = "2026-11-23T10:00:00Z", "2026-11-23T10:05:00Z"


def a_resource(spec: dict[str, Any], **status: Any) -> ElasticJob:
    metadata = {"name": "train", "namespace": "team-a", "uid": "u-1", "generation": 3}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, ElasticJob)


def a_job(**values: Any) -> dict[str, Any]:
    """A job as the service describes it."""
    return {
        "id": "7",
        "state": "RUNNING",
        "reason": "",
        "evidence": "",
        "gpus": 4,
        "gpu_type": "a100",
        "nodes": {"n2": 2, "n1": 2},
        "gpus_min": 1,
        "gpus_max": 8,
        "attempt": 1,
        "restarts": 0,
        "resizes": 2,
        **values,
    }


def test_a_spec_is_a_job_file_in_the_namespace_of_its_resource() -> None:
    text = job_file_of(a_resource({"run": "python train.py", "suspend": True, "kubernetes": {"image": "i"}}))
    assert json.loads(text) == {
        "run": "python train.py",
        "hold": True,
        "name": "train",
        "kubernetes": {"image": "i", "namespace": "team-a"},
    }


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (
            {"run": "x", "kubernetes": {"namespace": "kube-system"}},
            "spec.kubernetes.namespace must be team-a",
        ),
        (
            {"run": "x", "kubernetes": {"gated_pods": [{"name": "theirs", "uid": "u"}]}},
            "spec.kubernetes.gated_pods: expected none",
        ),
        ({"run": "x", "kubernetes": "here"}, "spec.kubernetes must be an object"),
        ({"run": "x", "array": "0-9"}, "spec.array: expected none"),
        ({"run": "x", "hold": True}, "spec.hold: expected `suspend`"),
    ],
)
def test_what_a_resource_must_not_say_is_one_line(spec: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as wrong:
        job_file_of(a_resource(spec))
    assert str(wrong.value).startswith(line)
    assert "\n" not in str(wrong.value)


def test_every_key_of_a_job_file_is_in_the_definition() -> None:
    (version,) = definition()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert {*schema["properties"]} == ({*KEYS} - NOT_OF_A_RESOURCE) | {"suspend"}
    assert yaml.safe_load(definition_text()) == definition()
    (installed,) = yaml.safe_load_all((DEPLOY / "elasticjobs.yaml").read_text(encoding="utf-8"))
    assert installed["spec"] == definition()["spec"]
    rules = " ".join(rule["rule"] for rule in schema["x-kubernetes-validations"])
    assert "self.run == oldSelf.run" in rules
    assert not any(f"self.{key} ==" in rules for key in MUTABLE)


def test_the_digest_is_of_what_cannot_change() -> None:
    first = a_resource({"run": "x", "elastic": {"min": 1, "max": 2}, "priority": 1})
    assert digest_of(first) == digest_of(
        a_resource({"run": "x", "suspend": True, "elastic": {"min": 2, "max": 4}})
    )
    assert digest_of(first) != digest_of(a_resource({"run": "y"}))
    assert digest_of(first) != digest_of(a_resource({"run": "x"})), "the job stays elastic"
    assert digest_of(first) != digest_of(a_resource({"run": "x", "elastic": {"sizes": [1, 2]}}))


@pytest.mark.parametrize(
    ("elastic", "bounds"),
    [
        ({"min": 2, "max": 4}, (2, 4)),
        ({"max": 4}, (1, 4)),
        ({"min": 2}, (2, None)),
        ({}, (1, None)),
        (None, None),
        ({"sizes": [1, 2]}, None),
    ],
)
def test_bounds_are_those_that_a_spec_says(elastic: Any, bounds: tuple[int, int | None] | None) -> None:
    assert bounds_of(a_resource({"run": "x", "elastic": elastic})) == bounds
    with pytest.raises(InputError, match="expected min from 1 to max, got 5 and 4"):
        bounds_of(a_resource({"run": "x", "elastic": {"min": 5, "max": 4}}))


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (a_job(), {"Running": "Running", "Suspended": "", "Complete": "", "Failed": ""}),
        (a_job(state="PENDING", reason="NO_CAPACITY", gpus=0), {"Running": "", "Complete": ""}),
        (a_job(state="SUSPENDED", reason="HELD", gpus=0), {"Suspended": "Held", "Running": ""}),
        (a_job(state="COMPLETED", gpus=0), {"Complete": "Completed", "Failed": "", "Running": ""}),
        (a_job(state="NODE_FAIL", gpus=0), {"Failed": "NodeFail", "Complete": ""}),
    ],
)
def test_conditions_say_how_a_job_stands(job: dict[str, Any], expected: dict[str, str]) -> None:
    """expected: by type the reason where it is so, "" where it is not."""
    status = status_of(a_resource({"run": "x"}), Finding(job, "d"), NOW)
    assert (status["job"], status["gpus"], status["nodes"]) == ("7", job["gpus"], ["n1", "n2"])
    found = {each["type"]: each for each in status["conditions"]}
    assert found["Accepted"]["status"] == "True"
    for kind, reason in expected.items():
        assert (found[kind]["status"] == "True") == bool(reason)
        assert not reason or found[kind]["reason"] == reason
    assert all(each["reason"] and each["lastTransitionTime"] == NOW for each in status["conditions"])


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    before = status_of(a_resource({"run": "x"}), Finding(a_job(), "d"), NOW)
    ended = a_job(state="FAILED", gpus=0)
    after = status_of(a_resource({"run": "x"}, **before), Finding(ended, "d"), LATER)
    times = {each["type"]: each["lastTransitionTime"] for each in after["conditions"]}
    assert times == {
        **dict.fromkeys(("Accepted", "UpToDate", "Suspended", "Complete"), NOW),
        **dict.fromkeys(("Running", "Failed"), LATER),
    }


def test_a_spec_that_is_refused_says_why() -> None:
    status = status_of(
        a_resource({"run": "x"}), Finding(None, "d", refused="priority: expected a number"), NOW
    )
    assert (status["state"], status["message"]) == ("REFUSED", "priority: expected a number")
    (accepted,) = [each for each in status["conditions"] if each["type"] == "Accepted"]
    assert (accepted["status"], accepted["reason"], accepted["message"]) == (
        "False",
        "Invalid",
        status["message"],
    )
    assert status["state"] not in ENDED
