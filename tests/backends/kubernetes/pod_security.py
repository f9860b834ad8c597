"""The rules of the Pod Security Standard `restricted`, as its page has them."""

from typing import Any

VOLUMES = {
    *(
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
}


def against_restricted(spec: dict[str, Any]) -> list[str]:
    """What the Pod Security Standard `restricted` has against a pod, by its controls."""
    security = spec.get("securityContext", {})
    against = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    volumes = {key for volume in spec.get("volumes", ()) for key in volume} - {"name"}
    against += sorted(volumes - VOLUMES)
    against += ["sysctls"] if security.get("sysctls") else []
    for each in (*spec["containers"], *spec.get("initContainers", ())):
        own = each.get("securityContext", {})
        both = {**security, **own}
        capabilities = own.get("capabilities", {})
        checks = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "runAsNonRoot": both.get("runAsNonRoot") is True,
            "runAsUser": both.get("runAsUser") != 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "drop": "ALL" in capabilities.get("drop", ()),
            "add": set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"},
            "procMount": own.get("procMount", "Default") == "Default",
            "hostPort": not any("hostPort" in port for port in each.get("ports", ())),
        }
        against += [name for name, is_so in checks.items() if not is_so]
    return against
