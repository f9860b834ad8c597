"""The fields of Kubernetes' objects that this backend looks at: all else is not even decoded.

A cluster of 5,000 pods is some 12 MB of JSON, most of which does not matter here. Names are those of the API.
"""

# Names of fields are the API's own, in its own case.
# ruff: noqa: N815

from collections.abc import Sequence

import msgspec
from msgspec import field


class OwnerReference(msgspec.Struct):
    """The object that an object belongs to."""

    apiVersion: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(msgspec.Struct):
    """What every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resourceVersion: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    ownerReferences: list[OwnerReference] = []
    creationTimestamp: str | None = None
    deletionTimestamp: str | None = None
    deletionGracePeriodSeconds: int | None = None


class Object(msgspec.Struct):
    """Anything that the API server keeps."""

    metadata: Metadata = field(default_factory=Metadata)


class Condition(msgspec.Struct):
    """One thing that is, or is not, so."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


# ── nodes ───────────────────────────────────────────────────────────────────────────────────────────────────


class Taint(msgspec.Struct):
    """What keeps pods away that do not tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeAddress(msgspec.Struct):
    """Under which a node is reached."""

    type: str = ""
    address: str = ""


class NodeSpec(msgspec.Struct):
    """What is wanted of a node."""

    unschedulable: bool = False
    taints: list[Taint] = []


class NodeStatus(msgspec.Struct):
    """What a node is like."""

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: list[Condition] = []
    addresses: list[NodeAddress] = []


class Node(Object):
    """One machine."""

    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)


# ── pods ────────────────────────────────────────────────────────────────────────────────────────────────────


# As the API server answers it is a text; other people's templates, as those of a JobSet, keep plain numbers.
Quantity = str | int | float


class Resources(msgspec.Struct):
    """What a container is given."""

    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}


class Container(msgspec.Struct):
    """One of a pod, as it is asked for."""

    name: str = ""
    resources: Resources = field(default_factory=Resources)


class SchedulingGate(msgspec.Struct):
    """What keeps kube-scheduler from looking at a pod."""

    name: str = ""


class PodSpec(msgspec.Struct):
    """What is wanted of a pod."""

    nodeName: str = ""
    containers: list[Container] = []
    initContainers: list[Container] = []


class Waiting(msgspec.Struct):
    """A container that has not begun."""

    reason: str = ""
    message: str = ""


class Running(msgspec.Struct):
    """A container that runs."""

    startedAt: str = ""


class Terminated(msgspec.Struct):
    """A container that has ended."""

    exitCode: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    startedAt: str | None = None
    finishedAt: str | None = None


class ContainerState(msgspec.Struct):
    """One of the three."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct):
    """One container as its kubelet last showed it."""

    name: str = ""
    state: ContainerState = field(default_factory=ContainerState)
    lastState: ContainerState = field(default_factory=ContainerState)


class PodStatus(msgspec.Struct):
    """What has become of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    podIP: str = ""
    conditions: list[Condition] = []
    containerStatuses: list[ContainerStatus] = []
    initContainerStatuses: list[ContainerStatus] = []


class Pod(Object):
    """One pod."""

    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)


# ── what others say of them ─────────────────────────────────────────────────────────────────────────────────


class ObjectReference(msgspec.Struct):
    """The object that an Event is about."""

    uid: str = ""


class EventSeries(msgspec.Struct):
    """Of an Event that happens again and again."""

    lastObservedTime: str | None = None


class Event(Object):
    """What a component of the cluster tells of an object."""

    involvedObject: ObjectReference = field(default_factory=ObjectReference)
    reason: str = ""
    message: str = ""
    lastTimestamp: str | None = None
    eventTime: str | None = None
    series: EventSeries | None = None


# ── what the API server says itself ─────────────────────────────────────────────────────────────────────────


class ListMetadata(msgspec.Struct):
    """Of a list: up to where it is, and whether there is more."""

    resourceVersion: str = ""
    continue_: str = field(default="", name="continue")


class Status(msgspec.Struct):
    """How the API server refuses."""

    code: int = 0
    reason: str = ""
    message: str = ""


class Bookmark(msgspec.Struct):
    """Up to which version a watch has told everything."""

    metadata: Metadata = field(default_factory=Metadata)


class WatchEvent(msgspec.Struct):
    """One line of a watch; the object is decoded once its kind is known."""

    type: str
    object: msgspec.Raw


def differ(one: Node, other: Node) -> bool:
    """Whether anything of a node that is looked at has changed; its version does with each sign of life."""
    before, after = (
        (each.metadata.uid, each.metadata.labels, each.metadata.annotations, each.spec, each.status)
        for each in (one, other)
    )
    return before != after


def condition(conditions: Sequence[Condition], name: str) -> Condition | None:
    """The condition of a type, or None."""
    return next((each for each in conditions if each.type == name), None)
