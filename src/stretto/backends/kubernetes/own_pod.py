"""The pod that the service itself runs in: what is made for its sake alone goes once its maker is deleted."""

import socket
from collections.abc import Mapping
from typing import Any

from stretto.backends.kubernetes import api
from stretto.backends.kubernetes.objects import Pod


def owners_in(namespace: str, pods: Mapping[tuple[str, str], Pod]) -> list[dict[str, Any]]:
    """Owner references to what has made the service's own pod, such as its StatefulSet.

    [] where the service runs elsewhere: an owner in another namespace would be taken for one that is gone.
    pods: all that there are, by namespace and name.
    """
    try:
        own_namespace = (api.SERVICE_ACCOUNT / "namespace").read_text(encoding="ascii").strip()
    except OSError:
        return []
    pod = pods.get((own_namespace, socket.gethostname()))
    if pod is None or own_namespace != namespace:
        return []
    return [
        {"apiVersion": each.apiVersion, "kind": each.kind, "name": each.name, "uid": each.uid}
        for each in pod.metadata.ownerReferences
        if each.controller
    ]
