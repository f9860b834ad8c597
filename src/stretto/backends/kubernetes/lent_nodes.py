"""Nodes of lenders: whose one is stands on the node itself, for kube-scheduler and for people.

While a node is on loan it has a taint that pods of ours tolerate. Pods of its lender need no change: they
stay away from the taint, and come back once it is gone. While a node is with its lender an annotation names
that one, and no pod of ours is made for it. A node of no lender has neither.
"""

import json
from collections.abc import Mapping
from typing import Any

from stretto.backends.kubernetes.api import NODES, Api, Refusal
from stretto.backends.kubernetes.manifests import LENDER, ON_LOAN
from stretto.backends.kubernetes.objects import Node
from stretto.backends.protocol import BackendUnreachable

TRIES = 5  # of a change that another one has come before; chosen
TAINT = {"key": ON_LOAN, "effect": "NoSchedule"}


async def hand_over(api: Api, machine: str, to: str | None) -> Node | None:
    """Mark a node as its lender's, or with "" as on loan; the node as it is then, None where it is gone.

    With None for `to` every mark of ours is taken away. Raises BackendUnreachable, also where the service may
    not change nodes.
    """
    path = NODES.path("", machine)
    for _ in range(TRIES):
        try:
            known = json.loads(await api.call("GET", path))
            patch = patch_for(known, to)
            content = json.dumps(known).encode() if patch is None else await _patched(api, path, patch)
            return api.decode(content, NODES.type)
        except Refusal as refusal:
            if refusal.code == 404:
                return None
            if refusal.code != 409:
                needs = ": it needs the rights that `lenders.nodes` of the chart gives"
                why = needs if refusal.code == 403 else ""
                raise BackendUnreachable(f"node {machine} cannot change hands: {refusal}{why}") from None
    raise BackendUnreachable(f"node {machine} cannot change hands: others change it all the time")


def patch_for(node: Mapping[str, Any], to: str | None) -> dict[str, Any] | None:
    """What is to change of a node as the API server shows it, all other taints kept; None for nothing."""
    metadata = node["metadata"]
    taints = node.get("spec", {}).get("taints") or []
    others = [taint for taint in taints if taint["key"] != ON_LOAN]
    marked = [*others, TAINT] if to == "" else others
    lender = (metadata.get("annotations") or {}).get(LENDER, "")
    if lender == (to or "") and len(marked) == len(taints):
        return None
    return {
        # Of a node that has changed since, this is refused: taints are replaced as a whole.
        "metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": {LENDER: to or None}},
        "spec": {"taints": marked},
    }


async def _patched(api: Api, path: str, patch: Mapping[str, Any]) -> bytes:
    return await api.call("PATCH", path, patch, content_type="application/merge-patch+json")
