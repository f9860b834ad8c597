"""What pods of workers may do: what the Pod Security Standard `restricted` allows, unless the job says more.

Not being root is left to the job, or to `backend.run_as_non_root`: many images run as root. Containers that a
job adds to its pods are as it says.
"""

from collections.abc import Mapping
from typing import Any


def pod_security(non_root: bool) -> dict[str, Any]:
    """The `securityContext` of a pod. non_root: whether its kubelet refuses an image that runs as root."""
    return {
        "seccompProfile": {"type": "RuntimeDefault"},
        **({"runAsNonRoot": True} if non_root else {}),
    }


def container_security(own: Any) -> dict[str, Any]:
    """The `securityContext` of a container. own: what the job says there, which is merged over it.

    An API server takes no container that is privileged, or has the capability SYS_ADMIN, and may not become
    more than it was. So with the one the other is not asked for.
    """
    own = own if isinstance(own, Mapping) else {}
    capabilities = own.get("capabilities")
    added = capabilities.get("add") if isinstance(capabilities, Mapping) else None
    if own.get("privileged"):
        return {}
    capabilities_only = {"capabilities": {"drop": ["ALL"]}}
    if any(str(name).removeprefix("CAP_") in ("SYS_ADMIN", "ALL") for name in added or ()):
        return capabilities_only
    return {"allowPrivilegeEscalation": False, **capabilities_only}


def own_security(patch: Mapping[str, Any], name: str) -> Any:
    """What the job's patch of a pod says of the security of one container; None for nothing."""
    containers = [each for each in patch.get("containers") or () if isinstance(each, Mapping)]
    return next((each.get("securityContext") for each in containers if each.get("name") == name), None)
