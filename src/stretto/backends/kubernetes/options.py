"""What is said of a Kubernetes cluster for all jobs."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from stretto.agent.node import MAX_LOG_BYTES
from stretto.backends.options import Site, option
from stretto.errors import InputError

if TYPE_CHECKING:
    from stretto.backends.kubernetes.node_pools import NodePool
    from stretto.backends.protocol import Backend


@dataclass(frozen=True)
class KubernetesOptions:
    """Workers are pods, which kube-scheduler binds to the nodes that we choose."""

    name: ClassVar[str] = "kubernetes"

    kubeconfig: str = option(
        "",
        cli="--kubeconfig",
        help="Kubernetes only: the kubeconfig file. Else the service account of our own pod, $KUBECONFIG, or "
        "~/.kube/config.",
    )
    context: str = option("", cli="--context", help="Kubernetes only: the context of that file.")
    namespace: str = option(  # "": that of the context
        "", cli="--namespace", help="Kubernetes only: where pods of jobs that name no namespace go."
    )
    image: str = option("", cli="--image", help="Kubernetes only: the image of jobs that name none.")
    gpu_label: str = option(  # "": the conventions of NVIDIA, GKE, EKS, AMD
        "", cli="--gpu-label", help="Kubernetes only: the label of nodes that names the type of their GPUs."
    )
    gpu_resource: str = option(  # "": those of NVIDIA, AMD and Intel
        "", cli="--gpu-resource", help="Kubernetes only: by which pods ask for GPUs, like amd.com/gpu."
    )
    rack_label: str = option("")  # of nodes, that names their rack; "": those of clouds and of Topograph
    tolerations: tuple[str, ...] = option(())  # KEY[=VALUE][:EFFECT]
    max_log_bytes: int = option(MAX_LOG_BYTES, cli="--max-log-size", at_least=0)  # 0: any amount
    priority_class: str = option("")  # of all our pods; "": the namespace's default
    run_as_non_root: bool = option(default=False)  # kubelets refuse images of jobs that run as root
    host_network: bool = option(default=False)  # pods use the network, and the addresses, of their nodes
    shared_claim: str = option(
        "",
        cli="--shared-claim",
        help="Kubernetes only: the claim of --shared's volume, which the pods of all jobs mount there, too.",
    )
    shared_path: str = option("")  # where they mount it; "": the path of --shared
    grow: tuple[str, ...] = option((), cli="--grow")  # TYPE:GPUS:NODES[:LABEL=VALUE,…] that may come
    provisioning_class: str = option("")  # of ProvisioningRequests, by which nodes are asked for; "": by pods
    provisioning_parameters: tuple[str, ...] = option(())  # KEY=VALUE of these
    placeholder_priority_class: str = option("")  # of pods that only ask for nodes; "": the default
    placeholder_image: str = option("registry.k8s.io/pause:3.10")
    gate: bool = option(default=False)  # pods of other people are placed, where the operator finds them gated
    python: str = option("python3")  # of the image, which runs the supervisor
    # after which a pod is withdrawn that no node takes, or that its node has trouble with; chosen
    pending_s: float = option(60.0, at_least=1.0)
    # after which one is that its node just gets ready: pulls its image, attaches volumes, initialises; chosen
    begin_s: float = option(1800.0, at_least=1.0)
    # after which one is whose node cannot mount its volumes, or give it a network; chosen
    mount_s: float = option(300.0, at_least=1.0)
    silence_s: float = option(75.0, at_least=1.0)  # of a watch, before it is given up

    def __post_init__(self) -> None:
        """Check what people have said."""
        _ = self.parsed_tolerations
        _ = self.pools
        for pair in self.provisioning_parameters:
            if not pair.partition("=")[0] or "=" not in pair:
                raise InputError(f"backend.provisioning_parameters {pair}: expected KEY=VALUE")
        if self.provisioning_class and not self.grow:
            raise InputError(
                f"backend.provisioning_class {self.provisioning_class}: expected --grow with it, which says "
                "what may come"
            )

    @property
    def pools(self) -> "tuple[NodePool, ...]":
        """Nodes that may come. Raises InputError."""
        from stretto.backends.kubernetes.node_pools import pools_of

        return pools_of(self.grow)

    @property
    def parsed_tolerations(self) -> list[dict[str, str]]:
        """As the API takes them. Raises InputError."""
        return [_toleration(text) for text in self.tolerations]

    async def open(self, site: Site) -> "Backend":
        """The cluster of the kubeconfig."""
        try:
            from stretto.backends.kubernetes.backend import open_kubernetes
        except ModuleNotFoundError as missing:
            raise InputError(
                f"--backend kubernetes needs {missing.name}: install stretto[kubernetes]"
            ) from None
        options = self
        if self.shared_claim and not self.shared_path:
            if site.shared is None:
                raise InputError(f"--shared-claim {self.shared_claim}: expected --shared with the path, too")
            options = replace(self, shared_path=str(site.shared_folder()))
        folder = site.state.absolute() / "kubernetes"
        return await open_kubernetes(
            options, site.service_name, folder, site.node_addresses, site.job_namespaces
        )


def _toleration(text: str) -> dict[str, str]:
    rest, _, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    if not key or effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise InputError(
            f"backend.tolerations {text}: expected KEY, KEY=VALUE or KEY:EFFECT, with effect NoSchedule, "
            "PreferNoSchedule or NoExecute"
        )
    toleration = {"key": key, "operator": "Equal" if equals else "Exists"}
    return {**toleration, **({"value": value} if equals else {}), **({"effect": effect} if effect else {})}
