"""What pods of a namespace share: the ConfigMap with the supervisor, and the Service that names pods."""

from dataclasses import dataclass, field

from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.api import Api, suppress_refusal
from stretto.backends.kubernetes.options import KubernetesOptions


@dataclass(eq=False)
class Prepared:
    """Namespaces that have it, as far as is known."""

    api: Api
    options: KubernetesOptions
    service: str
    namespaces: set[str] = field(default_factory=set)

    async def put_into(self, namespace: str) -> None:
        """Create it where it is not known to be; raises Refusal."""
        if namespace in self.namespaces:
            return
        needed = {"configmaps": manifests.code_map(namespace)}
        if not self.options.host_network:
            needed["services"] = manifests.network(namespace, self.service)
        for plural, manifest in needed.items():
            with suppress_refusal(409):
                path, manager = f"api/v1/namespaces/{namespace}/{plural}", {"fieldManager": "stretto"}
                await self.api.call("POST", path, manifest, params=manager)
        self.namespaces.add(namespace)

    def doubt(self, namespace: str) -> None:
        """Look again at the next start: a pod did not begin, as where the namespace was made anew."""
        self.namespaces.discard(namespace)
