"""A real etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback.

Their programs are built once by build_control_plane.sh; where they are missing, tests say so and are skipped.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import yaml
from tests.service.ports import free_ports

FOLDER = Path(
    os.environ.get("STRETTO_TEST_KUBERNETES", "~/.cache/stretto-tests/kubernetes-1.20.2")
).expanduser()
KUBECTL = FOLDER / "bin" / "kubectl"
READY_S = 120.0  # to start, on a busy machine
CONTROLLERS = (
    *("garbagecollector", "namespace", "job", "podgc", "nodelifecycle", "resourcequota"),
    *("persistentvolume-binder", "disruption"),
)
OF_PODS = ("serviceaccount", "serviceaccount-token", "endpoint", "statefulset", "deployment", "replicaset")
NODE_GRACE_S = 8  # of silence, after which a node counts as not ready


def missing() -> str:
    """Why there is no control plane on this machine; "" where there is one."""
    if (FOLDER / "complete").exists():
        return ""
    return f"no Kubernetes in {FOLDER}; tests/backends/kubernetes/build_control_plane.sh builds it"


def missing_kubectl() -> str:
    """Why there is no kubectl; "" where there is one."""
    if why := missing():
        return why
    if os.access(KUBECTL, os.X_OK):
        return ""
    return f"no kubectl in {FOLDER}; tests/backends/kubernetes/build_control_plane.sh adds it"


def free_port() -> int:
    """A port that nobody listens on now. It stays free over a restart: nobody who connects is given it."""
    (port,) = free_ports("127.0.0.1", 1)
    return port


class Asked(NamedTuple):
    """A request as roles see it."""

    verb: str
    group: str
    resource: str  # with its part behind a /
    namespace: str  # "" for all, and for what is in none
    is_allowed: bool  # by a role; what a quota or a webhook refuses is


@dataclass
class ControlPlane:
    """One cluster without nodes, below a folder."""

    folder: Path
    tokens: dict[str, str] = field(default_factory=dict)  # by user
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)  # by which they were started
    port: int = field(default_factory=free_port)
    more_controllers: tuple[str, ...] = ()
    serves_pods: bool = False  # with accounts, whose tokens their pods have, at all addresses of this machine
    admission: tuple[str, ...] = ()  # plug-ins of it that there are besides

    @property
    def url(self) -> str:
        """Of the API server."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def audit_log(self) -> Path:
        """Every request of a user without all rights, a line of JSON each."""
        return self.folder / "audit.log"

    def start(self, users: Sequence[str] = ()) -> "ControlPlane":
        """Start all four, and wait until they are ready. users: more names that tokens are made for."""
        self.folder.mkdir(parents=True, exist_ok=True)
        groups = {"admin": "system:masters", "kcm": "system:masters", "scheduler": "system:masters"}
        groups |= {"agent": "system:masters", "stretto": "", **dict.fromkeys(users, "")}
        self.tokens = {user: secrets.token_hex(8) for user in groups}
        lines = [f'{self.tokens[user]},{user},{user},"{group}"\n' for user, group in groups.items()]
        (self.folder / "tokens.csv").write_text("".join(lines), encoding="ascii")
        for user in groups:
            self.kubeconfig(user)
        audited = ["stretto", *users]
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "users": audited}, {"level": "None"}],
        }
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(policy), encoding="ascii")
        key = self.folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        store, peer = free_port(), free_port()
        self._run(
            "etcd",
            *("--data-dir", str(self.folder / "etcd"), "--unsafe-no-fsync", "--log-level", "error"),
            *("--listen-client-urls", f"http://127.0.0.1:{store}"),
            *("--advertise-client-urls", f"http://127.0.0.1:{store}"),
            *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
            *("--initial-cluster", f"default=http://127.0.0.1:{peer}"),
        )
        self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{store}",
            f"--bind-address={'0.0.0.0' if self.serves_pods else '127.0.0.1'}",
            *("--advertise-address=127.0.0.1", f"--secure-port={self.port}", "--insecure-port=0"),
            *(f"--cert-dir={self.folder}", f"--token-auth-file={self.folder / 'tokens.csv'}"),
            *("--authorization-mode=RBAC", "--allow-privileged=true"),
            *("--service-cluster-ip-range=10.96.0.0/24", f"--service-account-signing-key-file={key}"),
            *("--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}"),
            *("--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=InternalIP"),
            *(() if self.serves_pods else ("--disable-admission-plugins=ServiceAccount",)),
            *(f"--enable-admission-plugins={name}" for name in self.admission),
            *(f"--audit-policy-file={self.folder / 'audit.yaml'}", f"--audit-log-path={self.audit_log}"),
        )
        try:
            self.until_ready()
        except BaseException:
            self.close()  # nobody else ends what has begun
            raise
        controllers = [*CONTROLLERS, *self.more_controllers]
        if self.serves_pods:
            controllers += OF_PODS
        for name, user, port, more in (
            (
                "kube-controller-manager",
                "kcm",
                free_port(),
                (
                    f"--service-account-private-key-file={key}",
                    f"--controllers={','.join(controllers)}",
                    *((f"--root-ca-file={self.folder / 'apiserver.crt'}",) if self.serves_pods else ()),
                    f"--node-monitor-grace-period={NODE_GRACE_S}s",
                    "--node-monitor-period=1s",
                ),
            ),
            ("kube-scheduler", "scheduler", free_port(), ()),
        ):
            self._run(
                name,
                *(f"--kubeconfig={self.folder / f'{user}.kubeconfig'}", "--leader-elect=false"),
                *("--bind-address=127.0.0.1", f"--secure-port={port}", "--port=0", *more),
            )
        return self

    def kubeconfig(self, user: str, url: str = "") -> Path:
        """A file by which a user finds the API server."""
        path = self.folder / f"{user}.kubeconfig"
        cluster = {"server": url or self.url, "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path.write_text(yaml.safe_dump(config), encoding="ascii")
        return path

    def _run(self, name: str, *arguments: str) -> None:
        self.commands[name] = [str(FOLDER / "bin" / name), *arguments]
        self.run_again(name)

    def run_again(self, name: str) -> None:
        """Start one of them as it was started before, on what is stored."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.commands[name], stdout=log, stderr=log, cwd=self.folder
            )

    def kill(self, name: str) -> None:
        """SIGKILL to one of them."""
        self.processes[name].kill()
        self.processes[name].wait()

    def until_ready(self) -> None:
        """Wait until the API server answers."""
        until_s = time.monotonic() + READY_S
        while True:
            try:
                if self.ask("GET", "readyz").text == "ok":
                    return
            except httpx.HTTPError:
                pass
            for name, process in self.processes.items():
                assert process.poll() is None, (
                    f"{name} ended: {(self.folder / f'{name}.log').read_text()[-2000:]}"
                )
            assert time.monotonic() < until_s, "the API server is not ready"
            time.sleep(0.1)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        user: str = "admin",
    ) -> httpx.Response:
        """One call as the administrator, or as somebody else."""
        headers = {"authorization": f"Bearer {self.tokens[user]}", "content-type": content_type}
        content = None if body is None else json.dumps(body)
        with httpx.Client(verify=False, timeout=30) as client:
            return client.request(method, f"{self.url}/{path}", headers=headers, content=content)

    def allow(self, user: str, rules: list[Mapping[str, object]]) -> None:
        """Give a user rights in the whole cluster."""
        group, name = "rbac.authorization.k8s.io", f"tests-{user}"
        role = {"metadata": {"name": name}, "rules": rules}
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "User", "name": user, "apiGroup": group}],
        }
        for kind, manifest in (("clusterroles", role), ("clusterrolebindings", binding)):
            answer = self.ask("POST", f"apis/{group}/v1/{kind}", manifest)
            assert answer.status_code in (201, 409), answer.text

    def may(self, user: str, verb: str, resource: str, group: str, namespace: str, name: str) -> bool:
        """Whether somebody may do something now. resource: with its part behind a /, as roles have it."""
        plural, _, part = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": plural, "subresource": part}
        asked |= {"namespace": namespace, "name": name}
        review = {"spec": {"user": user, "resourceAttributes": asked}}
        answer = self.ask("POST", "apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        assert answer.status_code == 201, answer.text
        return bool(answer.json()["status"]["allowed"])

    def asked(self, user: str) -> Counter["Asked"]:
        """What somebody has asked for so far, and how often."""
        found: Counter[Asked] = Counter()
        lines = self.audit_log.read_text(encoding="utf-8").splitlines() if self.audit_log.exists() else ()
        for line in lines:
            event = json.loads(line)
            about = event.get("objectRef")
            if event["user"]["username"] != user or about is None:  # the version is no object
                continue
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            decision = event.get("annotations", {}).get("authorization.k8s.io/decision")
            namespace = about.get("namespace", "")
            found[
                Asked(event["verb"], about.get("apiGroup", ""), resource, namespace, decision == "allow")
            ] += 1
        return found

    def until_may(
        self, user: str, rules: Sequence[Mapping[str, Any]], namespace: str = "", *, is_allowed: bool = True
    ) -> None:
        """Wait until all of these rules hold, or nothing of them: an API server heeds roles only soon."""
        until_s = time.monotonic() + READY_S
        for rule in rules:
            names = rule.get("resourceNames", [""])
            for group, resource, verb, name in product(
                rule["apiGroups"], rule["resources"], rule["verbs"], names
            ):
                while self.may(user, verb, resource, group, namespace, name) != is_allowed:
                    assert time.monotonic() < until_s, f"{user}: {verb} {resource}: expected {is_allowed}"
                    time.sleep(0.02)

    def share(self, folder: Path, claim: str, namespace: str = "default") -> None:
        """Make a claim whose volume is a folder of this machine, which every node sees; it is bound then."""
        room = {"storage": "1Gi"}
        of_both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = {
            "metadata": {"name": claim},
            "spec": {**of_both, "capacity": room, "hostPath": {"path": str(folder)},
                     "claimRef": {"name": claim, "namespace": namespace}},
        }  # fmt: skip
        wanted = {
            "metadata": {"name": claim},
            "spec": {**of_both, "volumeName": claim, "resources": {"requests": room}},
        }
        claims = f"api/v1/namespaces/{namespace}/persistentvolumeclaims"
        for path, manifest in (("api/v1/persistentvolumes", volume), (claims, wanted)):
            answer = self.ask("POST", path, manifest)
            assert answer.status_code == 201, answer.text
        until_s = time.monotonic() + READY_S
        while self.ask("GET", f"{claims}/{claim}").json()["status"].get("phase") != "Bound":
            assert time.monotonic() < until_s, f"the claim {claim} is not bound"
            time.sleep(0.1)

    def kubectl(
        self, *arguments: str, user: str = "admin", text: str | None = None, path: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """The real command, as somebody. text: what it reads. path: folders of its plug-ins."""
        env = {
            "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"],
            "HOME": str(self.folder),
        }
        env["KUBECONFIG"] = str(self.kubeconfig(user))
        return subprocess.run(
            [KUBECTL, *arguments], env=env, input=text, capture_output=True, text=True, timeout=120
        )

    def signal(self, name: str, number: int) -> None:
        """Suspend, wake or kill one of them."""
        os.kill(self.processes[name].pid, number)

    def close(self) -> None:
        """End all four, and remove what they stored."""
        for process in reversed(self.processes.values()):
            with_signal = signal.SIGKILL  # nothing of theirs is to be kept
            process.send_signal(with_signal)
            process.wait()
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
