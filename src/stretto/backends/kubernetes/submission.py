"""What this cluster never takes, said when a job is submitted."""

from collections.abc import Sequence

from stretto.backends.kubernetes import gated_pods
from stretto.backends.kubernetes.node_labels import check_selector
from stretto.backends.kubernetes.objects import Node
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.protocol import NodeState
from stretto.errors import InputError
from stretto.jobfile import JobSpec
from stretto.jobfile.parts import shown


def check_job(
    spec: JobSpec, options: KubernetesOptions, nodes: Sequence[tuple[NodeState, Node | None]]
) -> None:
    """Raise InputError for a job that this cluster can never take. nodes: each with its machine, if any."""
    if gated_pods.references_in(spec.kubernetes):
        gated_pods.check(spec, options.gate)
    else:
        check_image(spec.named_image or options.image)
    usable = [(node, machine) for node, machine in nodes if node.gpus and (node.comes or not node.dead)]
    check_selector(spec, [(node, each.metadata.labels) for node, each in usable if each is not None])
    of_worker = spec.resources.gpus_per_worker
    most = max((node.gpus for node, _ in usable), default=of_worker)
    if most < of_worker:
        raise InputError(
            f"resources.gpus_per_worker {of_worker}: expected at most {most}, as many as a node has"
        )


def check_image(image: str) -> None:
    """Raise InputError for what no kubelet can pull: nothing, a file, or an address of another tool."""
    if not image:
        raise InputError("image: expected the image that the job runs in, or --image of the service for all")
    if "://" in image or image.startswith(("/", ".")):
        raise InputError(
            f"image: expected one of a registry, like registry.example/team/train:1.2, got {shown(image)}"
        )
