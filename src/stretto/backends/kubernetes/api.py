"""Calls of a Kubernetes API server: a kubeconfig, eight verbs, and errors that say what to do next.

Transport, certificates, tokens and plug-ins that log in are `lightkube`'s. Answers are decoded into the few
fields of `objects`, since decoding all of them takes a hundred times as long.
"""

import asyncio
import json
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import httpx2 as httpx
import msgspec
import yaml
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import NameValue, UserExec
from lightkube.core.exceptions import ConfigError

from stretto.backends.kubernetes import objects
from stretto.backends.protocol import BackendUnreachable
from stretto.errors import InputError

ANSWER_S = 15.0  # longest that a call may take; chosen
BUSY_TRIES = 4  # of a call that the server is too busy for, and says when to come back; chosen
LONGEST_BUSY_S = 10.0  # of one wait until then; chosen
IDLE = 20  # connections that are kept for the next call; chosen
PAGE = 500  # objects of one answer to a list, as kubectl asks for
EXEC_GROUP = "client.authentication.k8s.io"  # of plug-ins that log in
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # in a pod
MANAGER = "stretto"  # of fields, for server-side apply

Answer = TypeVar("Answer")
Item = TypeVar("Item", bound=objects.Object)


class Refusal(Exception):
    """The API server has said no: `code` is HTTP's, `reason` Kubernetes' word for it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message or reason or f"HTTP {code}")
        self.code, self.reason = code, reason

    @property
    def is_for_later(self) -> bool:
        """Whether the same may well be granted later: a quota is full, or a webhook is slow."""
        return self.code in (403, 409) or self.is_busy

    @property
    def is_busy(self) -> bool:
        """Whether the server could not look at the call, which says nothing of the call."""
        return self.code == 429 or self.code >= 500


class Expired(Exception):
    """The API server does not remember so far back (410): list again."""


@dataclass(frozen=True)
class Kind(Generic[Item]):
    """One kind of object, as it is listed and watched."""

    plural: str
    type: type[Item]
    prefix: str = "api/v1"
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "") -> str:
        """Of all, of a namespace's, or of one."""
        within = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return f"{self.prefix}{within}/{self.plural}{f'/{name}' if name else ''}"


NODES: Kind[objects.Node] = Kind("nodes", objects.Node, namespaced=False)
PODS: Kind[objects.Pod] = Kind("pods", objects.Pod)
EVENTS: Kind[objects.Event] = Kind("events", objects.Event)


def configuration(kubeconfig: str = "", context: str = "") -> SingleConfig:
    """Which API server, and as which user; raises InputError.

    kubeconfig: a file; "": the service account of the pod that we run in, else $KUBECONFIG, else
    ~/.kube/config. context: of that file; "": its current one.
    """
    try:
        config = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
        chosen = config.get(context or None)
    except (ConfigError, OSError, KeyError, TypeError, yaml.YAMLError) as wrong:
        option = f"--kubeconfig {kubeconfig}" if kubeconfig else "--backend kubernetes"
        reason = " ".join(str(wrong).split()) or type(wrong).__name__
        raise InputError(f"{option}: {reason}; expected a kubeconfig file") from None
    assert chosen is not None  # without a default, `get` raises
    if chosen.user is not None and chosen.user.exec is not None:
        _know_version(chosen.user.exec)
    return chosen


def _know_version(plug_in: UserExec) -> None:
    """Have a plug-in of version v1 run: the transport knows the versions before, which differ in little.

    A plug-in reads from a variable for which version it is asked.
    """
    asked = {"apiVersion": plug_in.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
    if plug_in.apiVersion == f"{EXEC_GROUP}/v1":
        plug_in.apiVersion = f"{EXEC_GROUP}/v1beta1"
    plug_in.env = [*(plug_in.env or ()), NameValue("KUBERNETES_EXEC_INFO", json.dumps(asked))]


@dataclass
class Connections(ConnectionParams):
    """As many as are needed: each log that is followed holds one, and commands must not wait for those."""

    limits: httpx.Limits = field(
        default_factory=lambda: httpx.Limits(max_connections=None, max_keepalive_connections=IDLE)
    )


class Closable(Protocol):
    """What holds a connection."""

    async def closed(self) -> None:
        """Let go of it, and wait until it is gone."""
        ...


class Api:
    """One API server. Calls raise BackendUnreachable where it does not answer, Refusal where it refuses."""

    def __init__(self, config: SingleConfig) -> None:
        try:
            self.client = AsyncClient(config, Connections(timeout=httpx.Timeout(ANSWER_S)))
        except (ConfigError, OSError, ssl.SSLError, AssertionError) as wrong:
            raise InputError(f"kubeconfig: context {config.context_name}: {wrong}") from None
        self.config, self.server = config, config.cluster.server
        self.lines: set[Closable] = set()  # to programs in pods, which hold connections of their own

    async def close(self) -> None:
        """Let go of all connections, and wait until they are gone."""
        await asyncio.gather(*(line.closed() for line in self.lines), return_exceptions=True)
        await self.client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str | int] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """One call; what it answers. Where the server is busy and says until when, it is made again."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": content_type} if content is not None else {}
        for attempt in range(1, BUSY_TRIES + 1):
            try:
                answer = await self.client.request(
                    method, path, params=dict(params or {}), content=content, headers=headers
                )
            except (httpx.HTTPError, httpx.InvalidURL, ConfigError, OSError) as failure:
                raise self._unreachable(failure) from failure
            except (ValueError, LookupError) as failure:  # what the plug-in has answered is no token
                wrong = ConfigError("its plug-in that logs in gives no token")
                raise self._unreachable(wrong) from failure
            pause = answer.headers.get("retry-after", "") if answer.status_code == 429 else ""
            if not pause.isdecimal() or attempt == BUSY_TRIES:
                break
            await asyncio.sleep(min(float(pause), LONGEST_BUSY_S) * random.uniform(1.0, 1.2))
        if answer.status_code >= 400:
            raise refusal_of(answer.status_code, answer.content)
        return answer.content

    def decode(self, content: bytes | msgspec.Raw, kind: type[Answer]) -> Answer:
        """What an answer says, where it is what Kubernetes answers."""
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as failure:
            raise self._unreachable(failure) from failure

    def _unreachable(self, failure: Exception) -> BackendUnreachable:
        reason = str(failure) or type(failure).__name__
        return BackendUnreachable(f"the API server at {self.server} did not answer: {reason}")

    async def version(self) -> str:
        """Of the server, such as v1.34.1."""
        return str(json.loads(await self.call("GET", "version"))["gitVersion"])

    async def get(self, kind: Kind[Item], namespace: str, name: str) -> Item | None:
        """One object; None where there is none."""
        try:
            return self.decode(await self.call("GET", kind.path(namespace, name)), kind.type)
        except Refusal as refusal:
            if refusal.code == 404:
                return None
            raise

    async def list(
        self, kind: Kind[Item], namespace: str = "", selector: str = "", fields: str = ""
    ) -> tuple[list[Item], str]:
        """All objects, page by page, and the version that a watch goes on from; raises Expired.

        selector: by labels. fields: by those fields that the API server can select by.
        """
        items: list[Item] = []
        params: dict[str, str | int] = {"limit": PAGE}
        if selector:
            params["labelSelector"] = selector
        if fields:
            params["fieldSelector"] = fields
        page_type = _page_of(kind.type)
        while True:
            page = self.decode(await self.call("GET", kind.path(namespace), params=params), page_type)
            items += page.items or ()
            if not page.metadata.continue_:
                return items, page.metadata.resourceVersion
            params["continue"] = page.metadata.continue_

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str | int], silence_s: float
    ) -> AsyncIterator[httpx.Response]:
        """An answer that goes on, until nothing has come for `silence_s`."""
        timeout = httpx.Timeout(ANSWER_S, read=silence_s)
        try:
            async with self.client.stream("GET", path, params=dict(params), timeout=timeout) as answer:
                if answer.status_code >= 400:
                    raise refusal_of(answer.status_code, await answer.aread())
                yield answer
        except (httpx.HTTPError, httpx.StreamError, OSError) as failure:
            raise self._unreachable(failure) from failure

    async def watch(
        self,
        kind: Kind[Item],
        namespace: str,
        version: str,
        *,
        lasts_s: int,
        silence_s: float,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[tuple[str, Item], None]:
        """What changes after a version, as (ADDED | MODIFIED | DELETED | BOOKMARK, object); raises Expired.

        Ends by itself after `lasts_s`. Raises BackendUnreachable after `silence_s` without a word: a watch
        can die without its socket being closed. opened: called once the server has granted the watch.
        """
        params: dict[str, str | int] = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": lasts_s,
        }
        async with self.stream(kind.path(namespace), params, silence_s) as answer:
            opened()
            async for line in answer.aiter_lines():
                if not line:
                    continue
                event = self.decode(line.encode(), objects.WatchEvent)
                if event.type == "ERROR":
                    status = self.decode(event.object, objects.Status)
                    raise refusal_from(status.code, status)
                if event.type == "BOOKMARK":  # all but its version is empty, even what no object may lack
                    bookmark = self.decode(event.object, objects.Bookmark)
                    yield event.type, kind.type(metadata=bookmark.metadata)
                    continue
                yield event.type, self.decode(event.object, kind.type)

    async def create(self, kind: Kind[Item], namespace: str, manifest: Mapping[str, Any]) -> Item:
        """A new object; raises Refusal 409 where the name is taken."""
        params = {"fieldManager": MANAGER}
        return self.decode(await self.call("POST", kind.path(namespace), manifest, params=params), kind.type)

    async def patch(self, kind: Kind[Item], namespace: str, name: str, patch: Mapping[str, Any]) -> Item:
        """Change an object by a JSON merge patch."""
        answer = await self.call(
            "PATCH", kind.path(namespace, name), patch, content_type="application/merge-patch+json"
        )
        return self.decode(answer, kind.type)

    async def apply(self, path: str, manifest: Mapping[str, Any]) -> bytes:
        """Have an object as it is said, whether or not it is there: server-side apply, by force."""
        params = {"fieldManager": MANAGER, "force": "true"}
        return await self.call(
            "PATCH", path, manifest, params=params, content_type="application/apply-patch+yaml"
        )

    async def delete(self, path: str, grace_s: int | None = None, uid: str = "") -> bool:
        """Delete one object, if it is the one with this uid; False where there is none any more."""
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self.call("DELETE", path, body)
        except Refusal as refusal:
            if refusal.code == 404 or (refusal.code == 409 and uid):
                return False  # gone, or another one by the same name
            raise
        return True


class suppress_refusal:  # noqa: N801  (reads like contextlib.suppress)
    """Nothing, where the API server refuses with one of these codes."""

    def __init__(self, *codes: int) -> None:
        self.codes = codes

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> bool:
        return isinstance(failure, Refusal) and failure.code in self.codes


def refusal_of(code: int, content: bytes) -> Exception:
    """What an answer with an error says."""
    try:
        status = msgspec.json.decode(content, type=objects.Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = objects.Status(code, "", content.decode(errors="replace")[:300])
    return refusal_from(code, status)


def refusal_from(code: int, status: objects.Status) -> Exception:
    """Expired for 410, else Refusal; BackendUnreachable where the way to the server failed, not the call."""
    if code == 410:
        return Expired(status.message)
    if code in (502, 503, 504) or code == 401:
        return BackendUnreachable(f"the API server answered {code}: {status.message or status.reason}")
    return Refusal(code, status.reason, status.message)


def _page_of(item: type[Item]) -> type[Any]:
    """The type of one answer to a list."""
    return msgspec.defstruct(
        f"{item.__name__}Page",
        [("metadata", objects.ListMetadata, msgspec.field(default_factory=objects.ListMetadata)),
         ("items", list[item] | None, None)],  # type: ignore[valid-type]
    )  # fmt: skip


def namespace_of(config: SingleConfig) -> str:
    """The namespace that a configuration names, else `default`."""
    return config.namespace or "default"


def in_cluster() -> bool:
    """Whether we run in a pod ourselves."""
    return (SERVICE_ACCOUNT / "token").exists()
