"""An API server of Kubernetes in memory, for what a real one does only on a bad day.

It has objects of any kind with versions, uids, finalizers, graceful deletion and merge patches. It lists in
pages whose tokens expire, has watches with bookmarks, and faults on demand. It validates nothing, and has no
scheduler and no kubelet: tests play those.
"""

import asyncio
import json
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

Object = dict[str, Any]
Name = tuple[str, str]  # namespace, name
REASONS = {
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
}


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, message: str = "", reason: str = "", retry_after_s: int = 0) -> None:
        self.code, self.retry_after_s = code, retry_after_s
        word = reason or REASONS.get(code, "")
        self.status = {"kind": "Status", "status": "Failure", "code": code, "reason": word}
        self.status["message"] = message or word


@dataclass
class Fault:
    """What happens to the next calls of one kind."""

    method: str  # or WATCH
    plural: str
    times: int
    refused: Refused | None = None
    body: bytes | None = None  # answered instead, with status 200
    is_lost: bool = False  # it is done, and its answer never comes


@dataclass
class Request:
    """One call."""

    method: str
    group: str  # such as api/v1
    namespace: str
    plural: str
    name: str
    subresource: str
    query: Mapping[str, str]
    body: Any
    headers: Mapping[str, str]


@dataclass
class MemoryServer:
    """All objects, everything that happened to them, and faults to come."""

    version: int = 100
    objects: dict[str, dict[Name, Object]] = field(default_factory=dict)  # by plural
    happened: list[tuple[int, str, str, Object]] = field(
        default_factory=list
    )  # version, plural, type, object
    oldest: int = 0  # versions before it are forgotten
    faults: list[Fault] = field(default_factory=list)
    calls: deque[Request] = field(default_factory=lambda: deque(maxlen=1000))
    logs: dict[Name, bytes] = field(default_factory=dict)
    pages: dict[str, tuple[int, list[Object]]] = field(
        default_factory=dict
    )  # by token: what is left of a list
    bookmark_s: float = 60.0
    git_version: str = "v1.34.0"
    is_silent: bool = False  # watches stay open, and say nothing any more
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    rights: dict[str, set[tuple[str, str]]] = field(
        default_factory=dict
    )  # (verb, resource) by token; else all
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    watching: dict[str, int] = field(default_factory=dict)  # open watches, by plural
    following: int = 0  # logs that are being followed
    log_poll_s: float = 0.02  # between looks for more of a log
    port: int = 0

    # ── for tests ─────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> "MemoryServer":
        """Listen on a port of loopback."""
        self.listening = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=1 << 24)
        self.port = self.listening.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        """Cut all connections."""
        self.listening.close()
        self.cut()
        await self.listening.wait_closed()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def knows_gates(self) -> bool:
        """Whether it keeps scheduling gates; servers before 1.26 drop the field, and say nothing."""
        return int(self.git_version.split(".")[1]) >= 26

    def cut(self) -> None:
        """Close all connections, whatever is under way."""
        for writer in list(self.writers):
            writer.transport.abort()

    def fail(
        self, method: str, plural: str, code: int, message: str = "", times: int = 1, **more: Any
    ) -> None:
        """Refuse the next calls. method: WATCH for watches."""
        self.faults.append(Fault(method, plural, times, Refused(code, message, **more)))

    def answer_with(self, method: str, plural: str, body: bytes) -> None:
        """Answer the next call with this, whatever it asks for."""
        self.faults.append(Fault(method, plural, 1, body=body))

    def lose(self, method: str, plural: str) -> None:
        """Do what the next call asks for, and cut the connection instead of an answer."""
        self.faults.append(Fault(method, plural, 1, is_lost=True))

    def forget_versions(self) -> None:
        """Compact: watches and pages from before are refused with 410."""
        self.oldest = self.version
        self.happened.clear()
        self.pages.clear()

    def put(self, plural: str, item: Object, *, told: bool = True) -> Object:
        """Create or replace an object. told: watches see it."""
        metadata = item.setdefault("metadata", {})
        name = (metadata.get("namespace", ""), metadata["name"])
        kinds = self.objects.setdefault(plural, {})
        before = kinds.get(name)
        metadata.setdefault("uid", before["metadata"]["uid"] if before else str(uuid.uuid4()))
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        kinds[name] = item
        if told:
            self._tell(plural, "MODIFIED" if before else "ADDED", item)
        return item

    def remove(self, plural: str, name: str, namespace: str = "", *, told: bool = True) -> None:
        """Take an object away, finalizers or not."""
        item = self.objects[plural].pop((namespace, name))
        self.version += 1
        if told:
            last = {**item["metadata"], "resourceVersion": str(self.version)}
            self._tell(plural, "DELETED", {**item, "metadata": last})

    def change(
        self, plural: str, name: str, patch: Object, namespace: str = "", *, told: bool = True
    ) -> Object:
        """Merge something into an object."""
        return self.put(plural, merge(self.objects[plural][(namespace, name)], patch), told=told)

    def of(self, method: str, plural: str) -> list[Request]:
        """Calls so far."""
        return [call for call in self.calls if (call.method, call.plural) == (method, plural)]

    def _tell(self, plural: str, kind: str, item: Object) -> None:
        self.happened.append((self.version, plural, kind, json.loads(json.dumps(item))))
        self.changed.set()
        self.changed = asyncio.Event()

    # ── what it answers ───────────────────────────────────────────────────────────────────────────

    def answer(self, call: Request) -> Object:
        """The object, or list, that a call asks for; raises Refused."""
        kinds = self.objects.setdefault(call.plural, {})
        name = (call.namespace, call.name)
        if call.method == "GET" and not call.name:
            return self._list(call)
        if call.method == "POST":
            return self._create(call, kinds)
        if name not in kinds and call.headers.get("content-type") == "application/apply-patch+yaml":
            named = {"metadata": {"namespace": call.namespace, "name": call.name}}
            return self.put(call.plural, merge(named, call.body))
        if name not in kinds:
            raise Refused(404, f'{call.plural} "{call.name}" not found')
        item = kinds[name]
        if call.method == "GET":
            return item
        if call.method == "PATCH":
            wanted_uid = call.body.get("metadata", {}).get("uid", item["metadata"]["uid"])
            if wanted_uid != item["metadata"]["uid"]:
                raise Refused(409, "the UID in the precondition does not match")
            known = item["metadata"]["resourceVersion"]
            if call.body.get("metadata", {}).get("resourceVersion", known) != known:
                raise Refused(409, "the object has been modified")
            merged = merge(item, call.body)
            if call.plural == "pods":
                check_pod_update(item.get("spec", {}), merged.get("spec", {}), self.knows_gates)
            changed = self.put(call.plural, merged)
            self._let_go(call.plural, name)
            return changed
        return self._delete(call, name, item)

    def _create(self, call: Request, kinds: dict[Name, Object]) -> Object:
        item = json.loads(json.dumps(call.body))
        item["metadata"]["namespace"] = call.namespace
        item["metadata"]["creationTimestamp"] = stamp()
        name = (call.namespace, item["metadata"]["name"])
        if name in kinds:
            raise Refused(409, f'{call.plural} "{name[1]}" already exists', "AlreadyExists")
        if call.plural == "pods":
            item.setdefault("status", {"phase": "Pending"})
            if not self.knows_gates:
                item["spec"].pop("schedulingGates", None)
        return self.put(call.plural, item)

    def _delete(self, call: Request, name: Name, item: Object) -> Object:
        options = call.body or {}
        wanted_uid = options.get("preconditions", {}).get("uid", item["metadata"]["uid"])
        if wanted_uid != item["metadata"]["uid"]:
            raise Refused(409, "the UID in the precondition does not match")
        grace_s = options.get(
            "gracePeriodSeconds", item.get("spec", {}).get("terminationGracePeriodSeconds", 30)
        )
        if call.plural != "pods" or not item.get("spec", {}).get("nodeName"):
            grace_s = 0
        metadata = item["metadata"]
        grace_s = min(grace_s, metadata.get("deletionGracePeriodSeconds", grace_s))
        deletion = {
            "deletionTimestamp": metadata.get("deletionTimestamp", stamp()),
            "deletionGracePeriodSeconds": grace_s,
        }
        changed = self.put(call.plural, merge(item, {"metadata": deletion}))
        self._let_go(call.plural, name)
        return changed

    def _let_go(self, plural: str, name: Name) -> None:
        """Remove what is deleted and kept by nothing any more."""
        metadata = self.objects[plural][name]["metadata"]
        is_over = metadata.get("deletionTimestamp") and not metadata.get("deletionGracePeriodSeconds")
        if is_over and not metadata.get("finalizers"):
            self.remove(plural, name[1], name[0])

    def _list(self, call: Request) -> Object:
        limit = int(call.query.get("limit", 0))
        if token := call.query.get("continue", ""):
            if token not in self.pages:
                raise Refused(410, "The provided continue parameter is too old")
            version, items = self.pages.pop(token)
        else:
            version, items = self.version, [*self._matching(call)]
        page, rest = (items[:limit], items[limit:]) if limit else (items, [])
        metadata = {"resourceVersion": str(version)}
        if rest:
            metadata["continue"] = token = uuid.uuid4().hex
            self.pages[token] = (version, rest)
        return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": page}

    def _matching(self, call: Request) -> Iterator[Object]:
        labels = dict(pair.split("=") for pair in call.query.get("labelSelector", "").split(",") if pair)
        for (namespace, _), item in sorted(self.objects.get(call.plural, {}).items()):
            has = item["metadata"].get("labels", {})
            if call.namespace in ("", namespace) and all(
                has.get(key) == value for key, value in labels.items()
            ):
                yield item

    async def _watch(self, call: Request, writer: asyncio.StreamWriter) -> None:
        """Write what happens until the time that was asked for is over."""
        since = int(call.query["resourceVersion"])
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        if since < self.oldest:
            self._say(writer, "ERROR", Refused(410, f"too old resource version: {since}").status)
            writer.write(b"0\r\n\r\n")
            return
        until_s = asyncio.get_running_loop().time() + float(call.query.get("timeoutSeconds", 300))
        self.watching[call.plural] = self.watching.get(call.plural, 0) + 1
        try:
            while not writer.transport.is_closing():
                changed = self.changed
                if not self.is_silent:
                    first = bisect_right(self.happened, since, key=lambda each: each[0])
                    for version, plural, kind, item in self.happened[first:]:
                        namespace = item["metadata"].get("namespace", "")
                        is_asked_for = plural == call.plural and call.namespace in ("", namespace)
                        if version > since and is_asked_for:
                            self._say(writer, kind, item)
                            since = version
                    await writer.drain()
                left_s = until_s - asyncio.get_running_loop().time()
                if left_s <= 0 and not self.is_silent:
                    break
                try:
                    await asyncio.wait_for(changed.wait(), max(min(self.bookmark_s, left_s), 0.01))
                except TimeoutError:
                    if not self.is_silent and left_s > self.bookmark_s:
                        since = max(since, self.version)
                        bookmark = {"metadata": {"resourceVersion": str(since)}, "spec": {"containers": None}}
                        self._say(writer, "BOOKMARK", bookmark)
        finally:
            self.watching[call.plural] -= 1
        writer.write(b"0\r\n\r\n")

    async def _follow_log(self, call: Request, writer: asyncio.StreamWriter) -> None:
        """Write what a pod writes until it has ended."""
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")
        name, written = (call.namespace, call.name), 0
        self.following += 1
        try:
            while not writer.transport.is_closing():
                has_ended = self._has_ended(name)  # before the rest of it is read
                text = self.logs.get(name, b"")[written:]
                if text:
                    writer.write(b"%x\r\n%s\r\n" % (len(text), text))
                    written += len(text)
                await writer.drain()
                if has_ended:
                    break
                await asyncio.sleep(self.log_poll_s)
        finally:
            self.following -= 1
        writer.write(b"0\r\n\r\n")

    def _has_ended(self, name: Name) -> bool:
        """Whether no container of a pod runs any more."""
        pod = self.objects["pods"].get(name)
        statuses = pod["status"].get("containerStatuses", []) if pod is not None else []
        return not any("running" in each["state"] for each in statuses)

    def _say(self, writer: asyncio.StreamWriter, kind: str, item: Object) -> None:
        line = msgspec.json.encode({"type": kind, "object": item}) + b"\n"
        writer.write(b"%x\r\n%s\r\n" % (len(line), line))

    # ── HTTP ──────────────────────────────────────────────────────────────────────────────────────

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while call := await read_request(reader):
                self.calls.append(call)
                await self._serve(call, writer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _serve(self, call: Request, writer: asyncio.StreamWriter) -> None:
        is_watch = "watch" in call.query
        rights = self.rights.get(call.headers.get("authorization", "").removeprefix("Bearer "))
        verb = verb_of(call)
        resource = f"{call.plural}/{call.subresource}".rstrip("/")
        if rights is not None and call.plural != "version" and (verb, resource) not in rights:
            refused = Refused(403, f"{resource} is forbidden: the user cannot {verb} it")
            respond(writer, 403, msgspec.json.encode(refused.status))
            return
        fault = self._next_fault("WATCH" if is_watch else call.method, call.plural)
        try:
            if fault is not None and fault.refused is not None:
                raise fault.refused
            if fault is not None and fault.body is not None:
                respond(writer, 200, fault.body)
                return
            if is_watch:
                await self._watch(call, writer)
                return
            if call.plural == "version":
                content: Any = {"gitVersion": self.git_version}
            elif call.subresource == "log" and "follow" in call.query:
                await self._follow_log(call, writer)
                return
            elif call.subresource == "log":
                respond(writer, 200, self.logs.get((call.namespace, call.name), b""))
                return
            else:
                content = self.answer(call)
            if fault is not None and fault.is_lost:
                writer.transport.abort()
                return
            respond(writer, 201 if call.method == "POST" else 200, msgspec.json.encode(content))
        except Refused as refused:
            respond(writer, refused.code, msgspec.json.encode(refused.status), refused.retry_after_s)

    def _next_fault(self, method: str, plural: str) -> Fault | None:
        for fault in self.faults:
            if (fault.method, fault.plural) == (method, plural):
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
                return fault
        return None


def verb_of(call: Request) -> str:
    """What roles call it."""
    if call.method == "GET":
        return "watch" if "watch" in call.query else "get" if call.name else "list"
    return {"POST": "create", "PATCH": "patch", "DELETE": "delete"}[call.method]


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """One request of HTTP/1.1; None where the connection has ended."""
    line = await reader.readline()
    if not line:
        return None
    method, target, _ = line.decode().split()
    headers: dict[str, str] = {}
    while header := (await reader.readline()).decode().strip():
        key, _, value = header.partition(":")
        headers[key.lower()] = value.strip()
    content = await reader.readexactly(int(headers.get("content-length", 0)))
    url = urlsplit(target)
    parts = [unquote(part) for part in url.path.strip("/").split("/")]
    length = 2 if parts[0] == "api" else 3 if parts[0] == "apis" else 0
    group, parts = "/".join(parts[:length]), parts[length:]
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource = [*parts, "", ""][:3]
    query = {key: values[0] for key, values in parse_qs(url.query).items()}
    body = json.loads(content) if content else None
    return Request(method, group, namespace, plural, name, subresource, query, body, headers)


def respond(writer: asyncio.StreamWriter, code: int, content: bytes, retry_after_s: int = 0) -> None:
    """One answer of HTTP/1.1."""
    lines = [f"HTTP/1.1 {code} Answer", "content-type: application/json", f"content-length: {len(content)}"]
    if retry_after_s:
        lines.append(f"retry-after: {retry_after_s}")
    writer.write("\r\n".join([*lines, "", ""]).encode() + content)


def merge(item: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """A JSON merge patch (RFC 7386)."""
    result = {key: value for key, value in item.items() if key not in patch}
    for key, value in patch.items():
        before = item.get(key)
        if isinstance(value, Mapping):
            result[key] = merge(before if isinstance(before, Mapping) else {}, value)
        elif value is not None:
            result[key] = value
    return result


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def check_pod_update(before: Object, after: Object, knows_gates: bool) -> None:
    """Refuse what an API server refuses of a pod's `spec` (KEP-3521, KEP-3838).

    Gates may only go. While there were some, node selectors and required terms may only get narrower.
    """
    gates = [[gate["name"] for gate in spec.get("schedulingGates") or ()] for spec in (before, after)]
    if not knows_gates:
        after.pop("schedulingGates", None)
    elif set(gates[1]) - set(gates[0]):
        raise Refused(422, "spec.schedulingGates: Forbidden: only deletion is allowed")
    free = ("schedulingGates", "nodeSelector", "affinity", "nodeName", "tolerations")
    if {key: after.get(key) for key in {*before, *after} if key not in free} != {
        key: before.get(key) for key in {*before, *after} if key not in free
    }:
        raise Refused(422, "spec: Forbidden: pod updates may not change fields other than ...")
    narrowing = [
        {key: spec.get(key) or {} for key in ("nodeSelector", "affinity")} for spec in (before, after)
    ]
    if narrowing[0] == narrowing[1]:
        return
    if not gates[0] or not knows_gates:
        raise Refused(422, "spec: Forbidden: pod updates may not change fields other than ...")
    selectors = [each["nodeSelector"] for each in narrowing]
    if not selectors[0].items() <= selectors[1].items():
        raise Refused(422, "spec.nodeSelector: Invalid value: only additions are allowed")
    others = [
        {key: value for key, value in each["affinity"].items() if key != "nodeAffinity"} for each in narrowing
    ]
    if others[0] != others[1]:
        raise Refused(422, "spec.affinity: Forbidden: only nodeAffinity may change")
    old, new = (_required_terms(each["affinity"]) for each in narrowing)
    if old and len(old) != len(new):
        raise Refused(422, "nodeSelectorTerms: no additions/deletions to non-empty list are allowed")
    for was, is_now in zip(old, new, strict=False):
        _check_narrower(was, is_now)


def _required_terms(affinity: Object) -> list[Object]:
    return list(((affinity.get("nodeAffinity") or {}).get(REQUIRED) or {}).get("nodeSelectorTerms") or ())


def _check_narrower(was: Object, is_now: Object) -> None:
    """Requirements of a term may be added behind those that there are; an empty term stays empty."""
    for key in ("matchExpressions", "matchFields"):
        old, new = was.get(key) or [], is_now.get(key) or []
        was_empty = not (was.get("matchExpressions") or was.get("matchFields"))
        if new[: len(old)] != old or (was_empty and new):
            raise Refused(422, "nodeSelectorTerms: only additions are allowed")


def stamp() -> str:
    """Now, as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ── made objects ──────────────────────────────────────────────────────────────────────────────────


def a_node(name: str, gpus: int = 8, product: str = "NVIDIA-H100-80GB-HBM3") -> Object:
    """A ready node, with as much beside as real ones have."""
    labels = {
        "kubernetes.io/hostname": name,
        "nvidia.com/gpu.product": product,
        "topology.kubernetes.io/zone": "z1",
    }
    labels |= {f"feature.node.kubernetes.io/cpu-{number}": "true" for number in range(30)}
    room = {"nvidia.com/gpu": str(gpus), "cpu": "96", "memory": "1056Gi", "pods": "110"}
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure")
    conditions = [
        {"type": kind, "status": "False", "reason": "Fine", "lastHeartbeatTime": stamp()} for kind in kinds
    ]
    conditions.append(
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready"}
    )
    images = [{"names": [f"registry.example/image-{number}:1"], "sizeBytes": 10**9} for number in range(20)]
    addresses = [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}]
    status = {
        "allocatable": room,
        "capacity": room,
        "conditions": conditions,
        "addresses": addresses,
        "images": images,
    }
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


def a_pod(name: str, node: str, gpus: int = 1, namespace: str = "others") -> Object:
    """A running pod of somebody else, with as much beside as real ones have."""
    variables = [{"name": f"VARIABLE_{number}", "value": f"value {number}"} for number in range(15)]
    mounts = [{"name": f"volume-{number}", "mountPath": f"/mnt/{number}"} for number in range(4)]
    container = {
        "name": "main", "image": "registry.example/team/train:1.2", "command": ["python", "train.py"],
        "env": variables, "volumeMounts": mounts, "terminationMessagePath": "/dev/termination-log",
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}},
    }  # fmt: skip
    started = {"running": {"startedAt": stamp()}}
    status = {
        "phase": "Running",
        "podIP": "10.1.0.1",
        "containerStatuses": [{"name": "main", "state": started}],
    }
    status["conditions"] = [
        {"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "PodScheduled")
    ]
    volumes = [{"name": mount["name"], "emptyDir": {}} for mount in mounts]
    spec = {
        "nodeName": node,
        "containers": [container],
        "volumes": volumes,
        "schedulerName": "default-scheduler",
    }
    metadata = {"name": name, "namespace": namespace, "labels": {"app": name}, "creationTimestamp": stamp()}
    fields = [
        {"manager": "kubelet", "operation": "Update", "fieldsV1": {f"f:{number}": {} for number in range(25)}}
    ]
    return {"metadata": {**metadata, "managedFields": fields}, "spec": spec, "status": status}


def a_gated_pod(
    name: str, gpus: int = 1, owner: Object | None = None, namespace: str = "team-a", **spec: Any
) -> Object:
    """A pod of somebody else behind our gate. owner: a Job, as `batch/v1` has it."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}}
    container = {"name": "main", "image": "registry.example/train:1", "resources": resources if gpus else {}}
    metadata: Object = {"name": name, "namespace": namespace, "creationTimestamp": stamp(), "labels": {}}
    if owner is not None:
        controller = {"kind": owner["kind"], "name": owner["metadata"]["name"], "controller": True}
        metadata["ownerReferences"] = [
            {**controller, "apiVersion": owner["apiVersion"], "uid": owner["metadata"]["uid"]}
        ]
    gated = {"schedulingGates": [{"name": "stretto.dev/gate"}], "containers": [container]}
    return {"metadata": metadata, "spec": {**gated, **spec}, "status": {"phase": "Pending"}}
