"""Gated pods ask for GPUs by the resources that the service counts, in texts or in numbers."""

from typing import Any

import msgspec
import pytest
from tests.backends.kubernetes.memory_server import a_gated_pod, a_node

from stretto.backends.kubernetes.gated_pods import GatedPod
from stretto.backends.kubernetes.inventory import gpu_resources
from stretto.backends.kubernetes.objects import Node, Pod
from stretto.jobfile.kubernetes_section import tolerates_all
from stretto.kubernetes_operator.events import Involved
from stretto.kubernetes_operator.gated_gangs import Obstacle, gang_of, job_file_of
from stretto.kubernetes_operator.pod_owners import JobSet, PodOwner, gpus_of

OWNER = PodOwner(Involved("batch/v1", "Job", "team-a", "train", "u1"), 2)
OWN = "example.org/accelerator"


def pods(*asked: dict[str, Any]) -> list[GatedPod]:
    """Pods of one Job whose containers ask for this."""
    items = []
    for number, resources in enumerate(asked):
        item = a_gated_pod(f"train-{number}")
        item["metadata"]["uid"] = f"p{number}"
        item["spec"]["containers"][0]["resources"] = resources
        items.append(msgspec.convert(item, GatedPod))
    return items


def test_a_resource_that_the_service_was_told_of_makes_a_gang() -> None:
    gated = pods({"limits": {OWN: "4"}}, {"limits": {OWN: "4"}})
    gang = gang_of(OWNER, gated, 2, gpu_resources(OWN))
    assert gang.gpus == [4, 4]
    node = msgspec.convert(a_node("k0"), Node)
    listed = {"name": "k0", "gpus": 8, "gpu_type": "h100", "closed": False}
    resources = msgspec.json.decode(job_file_of(gang, "", [listed], {"k0": node}))["resources"]
    assert (resources["accelerators"], resources["gpus_per_worker"]) == ("8", 4)
    with pytest.raises(Obstacle, match="asks for no GPUs"):
        gang_of(OWNER, gated, 2, gpu_resources())
    with pytest.raises(Obstacle, match="asks for no GPUs"):  # it is the only one that counts then
        gang_of(OWNER, pods({"limits": {"nvidia.com/gpu": "1"}}), 2, gpu_resources(OWN))


def test_what_all_pods_of_a_gang_tolerate_opens_tainted_nodes_to_their_job() -> None:
    first, second = pods({"limits": {"nvidia.com/gpu": "1"}}, {"limits": {"nvidia.com/gpu": "1"}})
    both, own = {"key": "team", "operator": "Exists"}, {"key": "x", "operator": "Exists"}
    first.spec.tolerations, second.spec.tolerations = [both, own], [both]
    node = msgspec.convert(a_node("k0"), Node)
    listed = {"name": "k0", "gpus": 8, "gpu_type": "h100", "closed": True}
    text = job_file_of(gang_of(OWNER, [first, second], 2), "", [listed], {"k0": node})
    section = msgspec.json.decode(text)["kubernetes"]
    assert section["tolerations"] == [both]
    assert tolerates_all(section, ["team=a:NoSchedule"])
    assert not tolerates_all(section, ["team=a:NoSchedule", "x:NoSchedule"])


@pytest.mark.parametrize("number", ["2", 2, 2.0])
def test_a_number_is_as_good_as_a_text(number: Any) -> None:
    resources = {"limits": {"nvidia.com/gpu": number}}
    assert gang_of(OWNER, pods(resources, resources), 2).gpus == [2, 2]
    container = {"name": "main", "resources": resources}
    template = {"spec": {"template": {"spec": {"containers": [container]}}}}
    content = msgspec.json.encode({"spec": {"replicatedJobs": [{"replicas": 2, "template": template}]}})
    job_set = msgspec.json.decode(content, type=JobSet)
    assert gpus_of(Pod(spec=job_set.spec.replicatedJobs[0].template.spec.template.spec)) == 2
