"""A node of a test cluster: pods that are bound to it run as processes of this machine.

It plays a kubelet for the API server: it registers and beats, admits pods to its GPUs, starts their
containers, shows what becomes of them, deletes with grace, and serves logs. Containers see no files of their
own: where a volume is mounted is replaced by where it lies, in commands and variables.

Run as `python node_agent.py SETTINGS.json`; the file names the API server, a token, the node and its folder.
"""

import asyncio
import json
import os
import shutil
import signal
import ssl
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2 as httpx

BEAT_S = 2.0
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
UNBEGUN = {"ContainersReady": "False", "Ready": "False", "PodScheduled": "True", "Initialized": "True"}


def stamp(at_s: float) -> str:
    """A time as the API writes it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class NotMounted(Exception):
    """A volume that a kubelet tries to mount again and again."""


@dataclass
class Life:
    """One pod on this node."""

    pod: dict[str, Any]
    folder: Path
    gpus: list[int] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None
    began_s: float = 0.0
    kill_at_s: float = float("inf")  # by our loop's clock
    stopping: bool = False
    ended: bool = False
    where: dict[str, str] = field(default_factory=dict)  # of volumes, by where the pod sees them


class NodeAgent:
    """One node."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.name, self.folder = str(settings["node"]), Path(settings["folder"])
        headers = {"authorization": f"Bearer {settings['token']}"}
        self.client = httpx.AsyncClient(
            base_url=settings["api"], headers=headers, verify=False, timeout=httpx.Timeout(10, read=60)
        )
        self.resource: str = settings.get("resource", "nvidia.com/gpu")
        self.lives: dict[str, Life] = {}  # by uid
        self.tasks: set[asyncio.Task[Any]] = set()
        self.log_port = 0

    def go(self, work: Any) -> None:
        """Do something beside everything else."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """One call, again and again until the API server has answered it."""
        while True:
            try:
                answer = await self.client.request(
                    method, path, content=json.dumps(body) if body is not None else None,
                    headers={"content-type": kind},
                )  # fmt: skip
            except httpx.HTTPError:
                await asyncio.sleep(0.3)
                continue
            if answer.status_code < 500:
                return answer
            await asyncio.sleep(0.3)

    # ── the node ──────────────────────────────────────────────────────────────────────────────────

    async def register(self) -> None:
        """Be a node of the cluster."""
        labels = {"kubernetes.io/hostname": self.name, **self.settings.get("labels", {})}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": labels}}
        await self.ask("POST", "/api/v1/nodes", node)
        await self.ask("PATCH", f"/api/v1/nodes/{self.name}", {"metadata": {"labels": labels}}, MERGE)
        await self.beat(first=True)

    async def beat(self, first: bool = False) -> None:
        """Say that all is well."""
        now = stamp(time.time())
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "AgentReady",
            "message": "",
            "lastHeartbeatTime": now,
        }
        if first:
            ready["lastTransitionTime"] = now
        gpus = {self.resource: str(self.settings["gpus"])}
        room = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti", **gpus}
        addresses = [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": self.name},
        ]
        status = {
            "conditions": [ready],
            "capacity": room,
            "allocatable": room,
            "addresses": addresses,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.log_port}},
        }
        await self.ask("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status}, STRATEGIC)

    async def beats(self) -> None:
        """Beat for ever."""
        while True:
            await asyncio.sleep(BEAT_S)
            await self.beat()

    async def follow(self) -> None:
        """Do with each pod of this node what its state asks for."""
        selector = {"fieldSelector": f"spec.nodeName={self.name}"}
        while True:
            try:
                answer = await self.client.get("/api/v1/pods", params=selector)
                listed = answer.json()
                if answer.status_code != 200:
                    raise httpx.HTTPError(answer.text)
                pods = listed["items"] or []
                for uid in {*self.lives} - {pod["metadata"]["uid"] for pod in pods}:
                    self.vanished(uid)
                for pod in pods:
                    self.see(pod)
                params = {**selector, "watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
                params |= {"timeoutSeconds": "50"}
                async with self.client.stream("GET", "/api/v1/pods", params=params) as lines:
                    async for line in lines.aiter_lines():
                        event = json.loads(line)
                        if event["type"] in ("ADDED", "MODIFIED"):
                            self.see(event["object"])
                        elif event["type"] == "DELETED":
                            self.vanished(event["object"]["metadata"]["uid"])
                        else:
                            break
            except (httpx.HTTPError, httpx.StreamError, ValueError, KeyError):
                await asyncio.sleep(0.3)

    # ── pods ──────────────────────────────────────────────────────────────────────────────────────

    def see(self, pod: dict[str, Any]) -> None:
        """A pod as the API server has it now."""
        uid, phase = pod["metadata"]["uid"], pod["status"].get("phase")
        life = self.lives.get(uid)
        if life is None:
            folder = self.folder / "pods" / uid
            life = self.lives[uid] = Life(pod, folder)
            if phase == "Pending" and not pod["metadata"].get("deletionTimestamp"):
                self.go(self.run(life))
            elif phase in ("Succeeded", "Failed"):
                life.ended = True
            else:  # it ran when this node was lost, or was deleted before we saw it
                self.go(self.lost(life, began=phase == "Running"))
        life.pod = pod
        self.show_orders(life)
        if pod["metadata"].get("deletionTimestamp"):
            grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            life.kill_at_s = min(life.kill_at_s, asyncio.get_running_loop().time() + grace_s)
            if not life.stopping:
                life.stopping = True
                self.go(self.stop(life))

    def vanished(self, uid: str) -> None:
        """A pod is gone: what runs of it, deleted by force, is killed; its own directories go with it."""
        life = self.lives.pop(uid, None)
        if life is None:
            return
        if life.process is not None and life.process.returncode is None:
            with suppress(ProcessLookupError):
                life.process.kill()
        for volume in life.pod["spec"].get("volumes", ()):
            if "emptyDir" in volume:
                shutil.rmtree(life.folder / volume["name"], ignore_errors=True)

    def show_orders(self, life: Life) -> None:
        """Files of the downward API follow the annotations."""
        for volume in life.pod["spec"].get("volumes", ()):
            for item in volume.get("downwardAPI", {}).get("items", ()):
                key = item["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")
                path = life.folder / volume["name"] / item["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                part = path.with_suffix(".part")
                part.write_text(life.pod["metadata"].get("annotations", {}).get(key, ""))
                part.replace(path)

    async def run(self, life: Life) -> None:
        """Start a pod, and see it to its end."""
        container = life.pod["spec"]["containers"][0]
        wanted = int(container.get("resources", {}).get("limits", {}).get(self.resource, 0))
        taken = {gpu for other in self.lives.values() if not other.ended for gpu in other.gpus}
        free = [gpu for gpu in range(int(self.settings["gpus"])) if gpu not in taken]
        if len(free) < wanted:
            await self.show(
                life, {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU"}
            )
            life.ended = True
            return
        life.gpus = free[:wanted]
        try:
            where = life.where = await self.mount(life)
            environment = await self.environment(life, container, where)
        except NotMounted as why:
            creating = {"waiting": {"reason": "ContainerCreating"}}
            await self.show(
                life, {"phase": "Pending", "containerStatuses": [self.container(container, creating)]}
            )
            await self.tell(life, "FailedMount", str(why))
            life.gpus = []
            return
        except LookupError as missing:
            waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": str(missing)}}
            await self.show(
                life, {"phase": "Pending", "containerStatuses": [self.container(container, waiting)]}
            )
            life.gpus = []
            return
        if container["image"].startswith("missing"):
            waiting = {"waiting": {"reason": "ImagePullBackOff", "message": f"no image {container['image']}"}}
            await self.show(
                life, {"phase": "Pending", "containerStatuses": [self.container(container, waiting)]}
            )
            life.gpus = []
            return
        if life.stopping:
            return
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, life.gpus))
        message = life.folder / "termination"
        environment["STRETTO_TERMINATION_LOG"] = str(message)
        command = [
            placed(each, where) for each in (*container.get("command", ()), *container.get("args", ()))
        ]
        life.process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            cwd=container.get("workingDir") or life.folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        (life.folder / "pid").write_text(str(life.process.pid))
        life.began_s = time.time()
        running = {"running": {"startedAt": stamp(life.began_s)}}
        self.go(
            self.show(life, {"phase": "Running", "containerStatuses": [self.container(container, running)]})
        )
        await self.keep_log(life)
        code = await life.process.wait()
        life.ended = True
        said = message.read_text() if message.exists() else ""
        await self.show_end(life, 128 - code if code < 0 else code, said)

    async def show_end(self, life: Life, code: int, message: str = "", reason: str = "") -> None:
        """How its container ended."""
        container = life.pod["spec"]["containers"][0]
        terminated = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "message": message,
            "finishedAt": stamp(time.time()),
        }
        if life.began_s:
            terminated["startedAt"] = stamp(life.began_s)
        status = [self.container(container, {"terminated": terminated})]
        await self.show(life, {"phase": "Failed" if code else "Succeeded", "containerStatuses": status})

    async def mount(self, life: Life) -> dict[str, str]:
        """Make the volumes; where each is, by where the pod sees it."""
        where = {}
        namespace = life.pod["metadata"]["namespace"]
        for volume in life.pod["spec"].get("volumes", ()):
            folder = life.folder / volume["name"]
            folder.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                path = f"/api/v1/namespaces/{namespace}/configmaps/{volume['configMap']['name']}"
                answer = await self.ask("GET", path)
                if answer.status_code != 200:
                    raise LookupError(f'configmap "{volume["configMap"]["name"]}" not found')
                for name, text in answer.json()["data"].items():
                    (folder / name).write_text(text)
            elif secret := volume.get("secret"):
                path = f"/api/v1/namespaces/{namespace}/secrets/{secret['secretName']}"
                if (await self.ask("GET", path)).status_code != 200:
                    raise NotMounted(f'MountVolume.SetUp failed: secret "{secret["secretName"]}" not found')
            elif "hostPath" in volume:
                folder = Path(volume["hostPath"]["path"])
            for container in life.pod["spec"]["containers"]:
                for mounted in container.get("volumeMounts", ()):
                    if mounted["name"] == volume["name"] and mounted["mountPath"] != "/dev/shm":
                        where[mounted["mountPath"]] = str(folder)
        self.show_orders(life)
        return where

    async def environment(
        self, life: Life, container: dict[str, Any], where: dict[str, str]
    ) -> dict[str, str]:
        """What a container finds in its environment."""
        namespace = life.pod["metadata"]["namespace"]
        environment = {
            name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ
        }
        for variable in container.get("env", ()):
            source = variable.get("valueFrom", {})
            value = placed(variable.get("value", "").replace("$$(", "$("), where)
            if "fieldRef" in source:
                value = "127.0.0.1"
            elif variable["name"] == "MASTER_ADDR" and value.count(".") == 2:
                value = await self.resolved(value)
            elif reference := source.get("secretKeyRef"):
                answer = await self.ask("GET", f"/api/v1/namespaces/{namespace}/secrets/{reference['name']}")
                if answer.status_code != 200:
                    raise LookupError(f'secret "{reference["name"]}" not found')
                import base64

                value = base64.b64decode(answer.json()["data"][reference["key"]]).decode()
            environment[variable["name"]] = value
        return environment

    async def resolved(self, name: str) -> str:
        """What a cluster's DNS answers for a pod's name below a headless Service; the name for none."""
        hostname, subdomain, namespace = name.split(".")
        prefix = f"/api/v1/namespaces/{namespace}"
        service = await self.ask("GET", f"{prefix}/services/{subdomain}")
        pod = await self.ask("GET", f"{prefix}/pods/{hostname}")
        if {service.status_code, pod.status_code} != {200} or service.json()["spec"]["clusterIP"] != "None":
            return name
        labels, spec = pod.json()["metadata"]["labels"], pod.json()["spec"]
        is_named = (spec.get("hostname"), spec.get("subdomain")) == (hostname, subdomain)
        selector = service.json()["spec"]["selector"]
        return "127.0.0.1" if is_named and selector.items() <= labels.items() else name

    def container(self, container: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        """A container's status."""
        return {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": "running" in state,
            "restartCount": 0,
            "started": "running" in state,
            "state": state,
        }

    async def show(self, life: Life, status: dict[str, Any]) -> None:
        """Have the API server know."""
        metadata = life.pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        status = {**status, "podIP": "127.0.0.1", "hostIP": "127.0.0.1"}
        await self.ask("PATCH", path, {"metadata": {"uid": metadata["uid"]}, "status": status}, STRATEGIC)

    async def tell(self, life: Life, reason: str, message: str) -> None:
        """Write an Event of a pod."""
        metadata, now = life.pod["metadata"], stamp(time.time())
        about = {key: metadata[key] for key in ("namespace", "name", "uid")}
        event = {
            "metadata": {"generateName": "agent-"},
            "involvedObject": {"kind": "Pod", **about},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "lastTimestamp": now,
        }
        await self.ask("POST", f"/api/v1/namespaces/{metadata['namespace']}/events", event)

    async def keep_log(self, life: Life) -> None:
        """Write what a container prints, each line with its time, until nobody can print any more."""
        assert life.process is not None
        assert life.process.stdout is not None
        rest = b""
        with (life.folder / "log").open("ab", buffering=0) as file:
            while chunk := await life.process.stdout.read(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    file.write(self.stamped(line) + b"\n")
            if rest:
                file.write(self.stamped(rest))

    def stamped(self, line: bytes) -> bytes:
        """A line as a runtime of containers keeps it."""
        now_ns = time.time_ns()
        whole = datetime.fromtimestamp(now_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{whole}.{now_ns % 10**9:09d}Z ".encode() + line

    async def stop(self, life: Life) -> None:
        """SIGTERM to the first process, SIGKILL to all when the grace is over, then let go of the pod."""
        loop = asyncio.get_running_loop()
        process = life.process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            while process.returncode is None:
                if loop.time() >= life.kill_at_s:
                    await self.kill(process.pid)
                await asyncio.sleep(0.02)
        while life.process is not None and not life.ended:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        metadata = life.pod["metadata"]
        if not life.ended and life.process is None:
            life.ended = True
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        await self.ask("DELETE", path, body)

    async def kill(self, pid: int) -> None:
        """SIGKILL to a container: to its first process, and to all that came of it."""
        for each in family(pid):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    async def lost(self, life: Life, began: bool) -> None:
        """A pod whose container ended while there was no agent."""
        life.ended = True
        if began:
            await self.show_end(life, 137, reason="ContainerStatusUnknown")

    # ── logs, as the API server asks a kubelet for them ─────────────────────────────────────────────

    async def serve_logs(self) -> None:
        """Listen for GET /containerLogs/NAMESPACE/POD/CONTAINER."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.settings["certificate"], self.settings["key"])
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0, ssl=context)
        self.log_port = server.sockets[0].getsockname()[1]
        self.go(server.serve_forever())

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request for a log."""
        from urllib.parse import parse_qs, urlsplit

        try:
            head = await reader.readuntil(b"\r\n\r\n")
            line = head.partition(b"\r\n")[0].decode()
            target = urlsplit(line.split()[1])
            _, _, namespace, name, _ = target.path.split("/")
            query = {key: values[0] for key, values in parse_qs(target.query).items()}
            life = next(
                (
                    each
                    for each in self.lives.values()
                    if (each.pod["metadata"]["namespace"], each.pod["metadata"]["name"]) == (namespace, name)
                ),
                None,
            )
            if life is not None and target.path.startswith("/exec/"):
                command = [placed(each, life.where) for each in parse_qs(target.query)["command"]]
                await execute(command, head, reader, writer)
                return
            if life is None or not (life.folder / "log").exists():
                writer.write(b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                return
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n")
            await self.write_log(life, query, writer)
        except (OSError, ValueError, IndexError):
            pass
        finally:
            writer.close()

    async def write_log(self, life: Life, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        """A log from a time on, and what is added as long as its container runs."""
        since, follow = query.get("sinceTime", ""), query.get("follow") == "true"
        with (life.folder / "log").open("rb") as file:
            while True:
                over = life.ended
                for line in iter(file.readline, b""):
                    if line[:19].decode() < since[:19]:
                        continue
                    writer.write(line if query.get("timestamps") == "true" else line.partition(b" ")[2])
                await writer.drain()
                if over or not follow:
                    return
                await asyncio.sleep(0.05)


async def execute(
    command: list[str], head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Run a program, whose standard files are channels of a WebSocket: `kubectl exec`, version 4."""
    from websockets.frames import OP_BINARY, OP_CLOSE
    from websockets.server import ServerProtocol

    protocol = ServerProtocol(subprotocols=["v4.channel.k8s.io"], max_size=None)  # type: ignore[list-item]
    protocol.receive_data(head)
    (request,) = protocol.events_received()
    protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
    writer.writelines(protocol.data_to_send())
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None

    async def tell(channel: bytes, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        with suppress(OSError):
            while piece := await stream.read(1 << 14):
                protocol.send_binary(channel + piece)
                writer.writelines(protocol.data_to_send())
                await writer.drain()

    async def hear() -> None:
        assert process.stdin is not None
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                protocol.receive_data(data)
                for frame in protocol.events_received():
                    if getattr(frame, "opcode", None) is OP_CLOSE:
                        return
                    if getattr(frame, "opcode", None) is OP_BINARY and frame.data[:1] == b"\0":  # type: ignore[union-attr]
                        process.stdin.write(frame.data[1:])  # type: ignore[union-attr]
                        await process.stdin.drain()

    hearing = asyncio.create_task(hear())
    telling = asyncio.gather(tell(b"\1", process.stdout), tell(b"\2", process.stderr))
    both: set[asyncio.Future[Any]] = {hearing, telling}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    process.stdin.close()
    await telling
    await process.wait()
    hearing.cancel()
    with suppress(OSError):
        protocol.send_close(1000)
        writer.writelines(protocol.data_to_send())
        await writer.drain()


def placed(text: str, where: dict[str, str]) -> str:
    """A text with paths of volumes as they are on this machine."""
    for seen, real in sorted(where.items(), key=lambda item: -len(item[0])):
        text = text.replace(seen, real)
    return text


def family(pid: int) -> list[int]:
    """A process and all that came of it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                text = (entry / "stat").read_text()
                parents.setdefault(int(text[text.rindex(")") + 2 :].split()[1]), []).append(int(entry.name))
    found, todo = [pid], [pid]
    while todo:
        more = parents.get(todo.pop(), [])
        found += more
        todo += more
    return found


async def main() -> None:
    """Be the node until killed."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    agent = NodeAgent(settings)
    shutil.rmtree(agent.folder / "pods", ignore_errors=True)
    (agent.folder / "pods").mkdir(parents=True)
    await agent.serve_logs()
    await agent.register()
    await asyncio.gather(agent.follow(), agent.beats())


if __name__ == "__main__":
    asyncio.run(main())
