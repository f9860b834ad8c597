"""Nodes that an autoscaler of Ray's would start: what they are, which machine is which, and asking for them.

A cluster that grows has a place for each node that there may be, `TYPE-1`, `TYPE-2` and so on. A place may be
without a machine. A machine that comes takes the first place of its type that is free. So machines that come
and go for months do not pile up, and the service's log knows a node before it is there.

What may come stands in the configuration of the autoscaler, which runs on Ray's head. Ray itself does not
tell it, and where it is not in a file (KubeRay), people say it instead.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.backends.ray.nodes import HEAD_RESOURCE, TYPE_LABEL, TYPE_RESOURCE, RayNode, gpu_type_of
from stretto.errors import InputError

NEVER = "no"
WORD = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*):([0-9]{1,3}):([0-9]{1,4})")
EXPECTED = "expected TYPE:GPUS:NODES like a100:8:4, or no"
GB = 2**30
ANSWER_S = 10.0  # for a task on the head; chosen
TRACE = 0.001  # of a resource that only tells types apart
Asked = tuple[list[dict[str, float]], list[dict[str, str]]]  # bundles, and the labels of each
HEAD = {HEAD_RESOURCE: TRACE}


@dataclass(frozen=True)
class NodeType:
    """Nodes of a kind, as many as there may be."""

    name: str
    gpu_type: str
    gpus: int
    most: int
    cpus: float = 0.0  # 0: not known
    memory_gb: float = 0.0
    group: str = ""  # what Ray calls it, in a label of its nodes; "" = not known
    resources: Mapping[str, float] = field(default_factory=dict)  # that tell it from others
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def places(self) -> list[str]:
        """Names of its nodes."""
        return [f"{self.name}-{number}" for number in range(1, self.most + 1)]

    def takes(self, node: RayNode) -> bool:
        """Whether a machine is of this type."""
        same = (node.gpu_type, node.gpus) == (self.gpu_type, self.gpus)
        same_group = not self.group or not node.group or node.group == self.group
        return same and same_group and not node.is_head


def types_said(words: Iterable[str]) -> list[NodeType]:
    """Types as people say them. Raises InputError."""
    types: list[NodeType] = []
    for word in words:
        parts = WORD.fullmatch(word)
        if parts is None or not int(parts[2]) or not int(parts[3]):
            raise InputError(f"--grow {word}: {EXPECTED}")
        gpu_type, gpus = parts[1], int(parts[2])
        name = f"{gpu_type.lower()}x{gpus}"
        if name in {node_type.name for node_type in types}:
            raise InputError(f"--grow {word}: {gpu_type} with {gpus} GPUs was named before")
        types.append(
            NodeType(
                name,
                gpu_type.lower(),
                gpus,
                int(parts[3]),
                resources={f"{TYPE_RESOURCE}{gpu_type}": TRACE},
                labels={TYPE_LABEL: gpu_type},
            )
        )
    return types


def types_in(config: Mapping[str, Any]) -> list[NodeType]:
    """Types with GPUs in the configuration of an autoscaler; [] where it says of none."""
    overall = config.get("max_workers")
    types = []
    for name, each in sorted((config.get("available_node_types") or {}).items()):
        resources, labels = each.get("resources") or {}, each.get("labels") or {}
        most = each.get("max_workers", overall) or 0
        gpus = int(resources.get("GPU", 0))
        if name == config.get("head_node_type") or not gpus or not most:
            continue
        types.append(
            NodeType(
                name=name,
                gpu_type=gpu_type_of(labels, resources),
                gpus=gpus,
                most=min(int(most), int(overall or most)),
                cpus=float(resources.get("CPU", 0)),
                memory_gb=round(float(resources.get("memory", 0)) / GB, 1),
                group=name,
                resources={each: TRACE for each in sorted(resources) if each.startswith(TYPE_RESOURCE)},
                labels={TYPE_LABEL: labels[TYPE_LABEL]} if TYPE_LABEL in labels else {},
            )
        )
    return types


def shown(node_type: NodeType, name: str) -> dict[str, Any]:
    """A place without a machine, as the service is shown it."""
    return {
        "name": name,
        "gpu_type": node_type.gpu_type,
        "gpus": node_type.gpus,
        "cpus": int(node_type.cpus),
        "memory_gb": node_type.memory_gb,
        "up": False,
        "dead": True,
        "why": "starts when it is needed",
        "comes": True,
    }


def asked_for(
    wishes: Sequence[Mapping[str, Any]], others: Iterable[tuple[RayNode, int]], types: Sequence[NodeType]
) -> Asked:
    """Bundles and their labels, as `request_resources` wants them; ([], []) where nothing is wished for.

    others: nodes, and how many GPUs of each are used by others. Ray looks at what nodes have and not at what
    is free, so these are asked for as well.
    """
    bundles: list[dict[str, float]] = []
    labels: list[dict[str, str]] = []
    if not wishes:
        return bundles, labels

    def add(node_type: NodeType, resources: Mapping[str, float], count: int = 1) -> None:
        positive = {name: float(much) for name, much in resources.items() if much > 0}
        for _ in range(count):
            bundles.append({**positive, **node_type.resources})
            labels.append(dict(node_type.labels))

    for node, used in others:
        fitting = next((candidate for candidate in types if candidate.gpu_type == node.gpu_type), None)
        if fitting is not None and used > 0:
            add(fitting, {"GPU": used})
    for wish in wishes:
        fits = (
            candidate
            for candidate in types
            if candidate.gpu_type == wish["gpu_type"] and candidate.gpus >= wish["gpus"]
        )
        if (fitting := next(fits, None)) is not None:
            # Memory is left out where a configuration does not tell it: Ray takes it for none then.
            memory = wish["memory_gb"] * GB if fitting.memory_gb else 0.0
            add(fitting, {"GPU": wish["gpus"], "CPU": wish["cpus"], "memory": memory}, wish["workers"])
    return bundles, labels


# ── on Ray's side ─────────────────────────────────────────────────────────────────────────────────


def asker(is_client: bool, mark: str) -> Callable[[Asked], None]:
    """A function that asks the autoscaler: here, or in a task where we are outside the cluster."""
    if not is_client:
        return lambda request: ask(request, mark)
    import ray

    task = ray.remote(num_cpus=0, max_retries=0)(ask)

    def in_a_task(request: Asked) -> None:
        ray.get(task.remote(request, mark), timeout=ANSWER_S)

    return in_a_task


def ask(request: Asked, mark: str) -> None:
    """From now on the cluster is to have room for these; empty: for nothing in particular.

    mark: under which Ray remembers for us whether we have asked for something. So a service that never has
    takes nothing back.
    """
    from ray.autoscaler.sdk import request_resources
    from ray.experimental.internal_kv import _internal_kv_put

    bundles, labels = request
    if bundles:
        _internal_kv_put(mark, b"asked")
    try:
        request_resources(bundles=bundles, bundle_label_selectors=labels)
    except TypeError:  # a Ray that knows no labels here
        request_resources(bundles=bundles)
    if not bundles:
        _internal_kv_put(mark, b"")


def has_asked(mark: str) -> bool:
    """Whether something that we have asked for holds still."""
    from ray.experimental.internal_kv import _internal_kv_get

    return bool(_internal_kv_get(mark))


def config_of_autoscaler() -> dict[str, Any]:
    """What Ray's autoscaler was told, from the file that its process names; {} if there is none.

    That process is on the head, which may be this machine.
    """
    import ray

    def look(gcs: str) -> dict[str, Any] | None:  # made here, so that it travels as a value
        from pathlib import Path

        import yaml

        option = "--autoscaling-config="
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if not any(word.endswith("/monitor.py") and "/autoscaler/" in word for word in words):
                    continue
                if f"--gcs-address={gcs}" in words:
                    paths = [word.removeprefix(option) for word in words if word.startswith(option)]
                    config = yaml.safe_load(Path(paths[-1]).expanduser().read_text()) if paths else {}
                    return config if isinstance(config, dict) else {}
            except (OSError, yaml.YAMLError):
                continue
        return None

    gcs = ray.get_runtime_context().gcs_address
    config = look(gcs)
    if config is None:
        task = ray.remote(num_cpus=0, max_retries=0, resources=HEAD)(look)
        config = ray.get(task.remote(gcs), timeout=ANSWER_S)
    return config or {}


# ── which machine is in which place ─────────────────────────────────────────────────────────────────────────


@dataclass
class NodeSlots:
    """Places for machines that come and go.

    known: addresses of nodes by name, as the service has seen them in the life of an earlier gateway. What
    was in such a place may still run for a while, although Ray does not show it any more.
    """

    types: tuple[NodeType, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict)
    kept_s: float = 0.0  # for which a place is kept for what was in it
    began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Know all names."""
        self.type_of = {name: one for one in self.types for name in one.places}

    def names_for(self, nodes: Iterable[RayNode], last: Mapping[str, tuple[str, bool]]) -> dict[str, str]:
        """Names by id for nodes that have none yet: of those that are of a type that comes and goes.

        last: by name, the address of what was or is in a place, and whether that is over. A machine that
        comes back is what it was before.
        """
        names: dict[str, str] = {}
        assigned: set[str] = set()
        was = {name: (address, not self.may_still_run(name)) for name, address in self.known.items()}
        was |= last
        for node in sorted(nodes, key=lambda candidate: candidate.address):
            of_type = next((candidate for candidate in self.types if candidate.takes(node)), None)
            free = [name for name in of_type.places if name not in assigned] if of_type is not None else []
            own = [name for name in free if was.get(name, ("", True))[0] == node.address]
            over = [name for name in free if was.get(name, ("", True))[1]]
            if own or over:
                names[node.id] = (own or over)[0]
                assigned.add(names[node.id])
        return names

    def may_still_run(self, name: str) -> bool:
        """Whether what was in a place before we began may be there still, whatever Ray says."""
        return name in self.known and time.monotonic() - self.began_s < self.kept_s

    def empty(self, taken: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Places that hold no node, as the service is shown them."""
        found = [shown(one, name) for name, one in self.type_of.items() if name not in taken]
        return [
            {**each, "dead": False, "why": "not seen yet"} if self.may_still_run(each["name"]) else each
            for each in found
        ]
