"""Which nodes the selector of a job's pods leaves: a decision chooses a GPU type, and any nodes of it.

So a selector must suit all nodes of each type that the job may use. Else kube-scheduler would never bind some
of its pods.
"""

from collections.abc import Iterable, Mapping, Sequence

from stretto.backends.protocol import NodeState
from stretto.errors import InputError
from stretto.jobfile import JobSpec

KEY = "kubernetes.pod.nodeSelector"
Selector = Mapping[str, str]


def lacks(labels: Mapping[str, str], selector: Selector) -> str:
    """The first label of a selector that a node has not, as KEY=VALUE; "" for none."""
    missing = ((key, value) for key, value in sorted(selector.items()) if labels.get(key) != value)
    return next((f"{key}={value}" for key, value in missing), "")


def check_selector(spec: JobSpec, nodes: Iterable[tuple[NodeState, Mapping[str, str]]]) -> None:
    """Raise InputError for a job whose selector leaves a part of the nodes that a decision may choose.

    nodes: those with GPUs that there are, each with its labels. Of types that are not there yet nothing is
    known.
    """
    selector = (spec.kubernetes.get("pod") or {}).get("nodeSelector")
    if not selector:
        return
    if not isinstance(selector, Mapping):
        raise InputError(f"{KEY}: expected labels of nodes, got {selector!r}")
    wanted = {selector_key: str(value) for selector_key, value in selector.items()}
    by_type: dict[str, list[tuple[str, str]]] = {}  # name, and the label that it lacks
    for node, labels in nodes:
        by_type.setdefault(node.gpu_type, []).append((node.name, lacks(labels, wanted)))
    named = {choice.gpu_type.lower() for choice in spec.resources.accelerators} - {""}
    allowed = {name: of_type for name, of_type in by_type.items() if not named or name.lower() in named}
    suits = sorted(name for name, of_type in allowed.items() if not any(lack for _, lack in of_type))
    if not allowed or len(suits) == len(allowed):
        return
    raise InputError(f"{KEY}: {_words(allowed, suits)}")


def _words(allowed: Mapping[str, Sequence[tuple[str, str]]], suits: Sequence[str]) -> str:
    """What is wrong with a selector, by the first type that it does not leave whole."""
    for name, of_type in sorted(allowed.items()):
        lack = next((lack for _, lack in of_type if lack), "")
        having = sum(not lack for _, lack in of_type)
        if having and lack:
            return (
                f"{having} of the {len(of_type)} nodes of {name} have {lack}, and jobs get any of a type: "
                "expected labels of whole types; nodes are kept for jobs by a taint that these tolerate"
            )
    name = next(name for name in sorted(allowed) if name not in suits)
    lack = next(lack for _, lack in allowed[name])
    if suits:
        types = ", ".join(suits)
        return f"nodes of {name} have no {lack}: expected resources.accelerators to name {types} only"
    return f"no node of {', '.join(sorted(allowed))} has {lack}"
