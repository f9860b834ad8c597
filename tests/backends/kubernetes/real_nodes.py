"""Real kubelets with containerd on this machine: nodes of a control plane whose containers are containers.

Each node has mount and process namespaces of its own. The kernel ends what is left in them, and takes away
their mounts, once their first process is killed. No image registry is reached. The only image has busybox
and empty folders; the runtime shows this machine's programs in these, as if they were in the image. GPUs are
numbers, which a device plug-in offers.
"""

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from tests.backends.kubernetes import control_plane
from tests.backends.kubernetes.control_plane import ControlPlane, free_port

from stretto.backends.kubernetes.manifests import ON_LOAN

PROGRAMS = ("kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox")
IMAGE = "tests.local/machine:1"  # also the sandbox of each pod, which only waits
UNSHARE = ("unshare", "-m", "-p", "-f", "--kill-child", "--mount-proc", "--propagation", "slave")
READY_S = 180.0  # chosen: for a machine under load
CGROUPS = Path("/sys/fs/cgroup")
PLUGIN = Path(__file__).with_name("device_plugin.py")
ROOT = Path(__file__).parents[3]
ETC = ("/etc/passwd", "/etc/group", "/etc/ld.so.cache")  # where programs look for users and libraries
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}

# The first process of a node. The paths that a kubelet and the shims of containerd always use are folders of
# the node's own, so that nothing remains of them and two nodes do not meet there. A kubelet that is killed
# comes back, as its unit of systemd would have it, but not as long as there is a file AWAY.
NODE = """
set -e
for path in /var/lib /var/log /run; do mount -t tmpfs none "$path"; done
mkdir -p /var/lib/kubelet/device-plugins /var/log/pods /run/containerd
containerd --config "$FOLDER/containerd.toml" >>"$FOLDER/containerd.log" 2>&1 &
until ctr -a /run/containerd.sock version >/dev/null 2>&1; do sleep 0.1; done
for image in "$FOLDER"/../machine.tar $(ls "$FOLDER"/*.tar 2>/dev/null); do
  ctr -a /run/containerd.sock -n k8s.io images import --snapshotter native "$image"
done
(while [ -e "$FOLDER/NO_PLUGIN" ]; do sleep 0.1; done; exec $PLUGIN) >>"$FOLDER/plugin.log" 2>&1 &
set +e
while :; do
  kubelet "$@" >>"$FOLDER/kubelet.log" 2>&1
  while [ -e "$FOLDER/AWAY" ]; do sleep 0.1; done
done
"""


def missing() -> str:
    """Why there are no real nodes on this machine; "" where they can be had."""
    if why := control_plane.missing():
        return why
    if absent := [name for name in PROGRAMS if not (control_plane.FOLDER / "bin" / name).exists()]:
        return f"no {', '.join(absent)} in {control_plane.FOLDER / 'bin'}"
    if os.geteuid() != 0:
        return "kubelets must run as root"
    if shutil.which("unshare") is None:
        return "no program unshare on this machine"
    tried = subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "none", "/var/log"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"this machine permits no namespaces with mounts: {tried.stderr.strip()}"
    if not os.access(CGROUPS / "memory", os.W_OK):
        return f"{CGROUPS}/memory: expected control groups of version 1 that can be written"
    return ""


def write_image(path: Path) -> None:
    """An image of busybox and the folders on which pods mount the machine, as docker saves them."""
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, mode="w") as archive:
        for name in ("usr", "proc", "sys", "dev", "etc", "var", "run", "root", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(entry)
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        add(archive, "etc/nsswitch.conf", b"hosts: files dns\n")  # else the name of the pod is not found
        add(archive, "busybox", (control_plane.FOLDER / "bin" / "busybox").read_bytes(), 0o755)
    waits = ["/busybox", "sh", "-c", "trap exit TERM INT; /busybox sleep 100000000 & wait"]
    save_image(path, IMAGE, layer, {"Cmd": waits, "Env": ["PATH=/usr/bin:/bin"]})


def add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Put a file into an archive."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def save_image(path: Path, name: str, layer: Path, config: Mapping[str, object]) -> None:
    """An image of one layer, as docker saves it; the file of the layer goes."""
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        add(archive, "config.json", json.dumps(image).encode())
        archive.add(layer, "layer.tar")
        add(archive, "manifest.json", json.dumps(manifest).encode())
    layer.unlink()


def machine_paths() -> list[str]:
    """Folders of this machine's programs, of its Python and of our tree."""
    prefixes = {str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix)}
    return ["/usr", *sorted(path for path in {*prefixes, str(ROOT)} if not path.startswith("/usr/"))]


def machine_spec() -> dict[str, object]:
    """What containers are made from, as OCI has it: with this machine's programs, Python and our tree."""
    made = subprocess.run(
        [control_plane.FOLDER / "bin" / "ctr", "oci", "spec"], capture_output=True, text=True, check=True
    )
    spec: dict[str, object] = json.loads(made.stdout)
    mounts = [
        {"destination": path, "source": path, "type": "bind", "options": ["rbind", "ro"]}
        for path in (*machine_paths(), *ETC)
        if Path(path).exists()
    ]
    spec["mounts"] = [*spec["mounts"], *mounts]  # type: ignore[misc]
    return spec


@dataclass
class RealNodes:
    """Kubelets of one control plane, below a folder."""

    folder: Path
    plane: ControlPlane
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)  # by node
    gpus: int = 0  # of each
    # Where pods have addresses of their own there is a network of pods, and images have what they need.
    plugin: Path | None = None  # of CNI: its folder
    name_server: str = ""

    def start(self, products: Mapping[str, str], gpus: int) -> "RealNodes":
        """Start a node of each name, with GPUs of its product, and wait until all are ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.gpus = gpus
        write_image(self.folder / "machine.tar")
        (self.folder / "machine.json").write_text(json.dumps(machine_spec()), encoding="utf-8")
        for name, product in products.items():
            self._run(name, product)
        for name in products:
            self._until_registered(name)
            self._describe(name)
        self.until_ready(tuple(products), gpus)
        return self

    def run_again(self, name: str, product: str) -> None:
        """Start a node that was killed, with what its disk has."""
        if self.processes[name].poll() is not None:
            self._run(name, product)

    def _run(self, name: str, product: str) -> None:
        folder = self.folder / name
        (folder / "cni").mkdir(parents=True, exist_ok=True)
        kind = "pods" if self.plugin else "loopback"
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": kind}]}
        (folder / "cni" / "1.conflist").write_text(json.dumps(network), encoding="utf-8")
        (folder / "containerd.toml").write_text(self._containerd(folder), encoding="utf-8")
        (folder / "kubelet.yaml").write_text(yaml.safe_dump(self._kubelet(name)), encoding="utf-8")
        programs = control_plane.FOLDER / "bin"
        environment = {
            **os.environ,
            "FOLDER": str(folder),
            "PLUGIN": f"{sys.executable} {PLUGIN} {self.gpus}",
            "PATH": f"{programs}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(programs),  # runc needs its libseccomp
        }
        endpoint = "unix:///run/containerd.sock"
        arguments = (
            f"--kubeconfig={self.plane.kubeconfig('agent')}",
            f"--config={folder / 'kubelet.yaml'}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint={endpoint}",
            f"--image-service-endpoint={endpoint}",
            f"--hostname-override={name}",
            "--node-ip=127.0.0.1",
            f"--root-dir={folder / 'kubelet'}",
            f"--cert-dir={folder / 'kubelet' / 'pki'}",
            f"--node-labels=nvidia.com/gpu.product={product}",
        )
        with (folder / "node.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*UNSHARE, "sh", "-c", NODE, "node", *arguments], stdout=log, stderr=log, env=environment
            )

    def _containerd(self, folder: Path) -> str:
        runtimes = 'plugins."io.containerd.grpc.v1.cri".containerd'
        programs = f'bin_dir = "{self.plugin}"' if self.plugin else ""
        shown = "" if self.plugin else f'base_runtime_spec = "{folder.parent}/machine.json"'
        return f"""
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
  conf_dir = "{folder}/cni"
  {programs}
[{runtimes}]
  snapshotter = "native"
  default_runtime_name = "runc"
[{runtimes}.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  {shown}
[{runtimes}.runtimes.runc.options]
  BinaryName = "{control_plane.FOLDER}/bin/runc"
"""

    def _groups(self, name: str) -> list[Path]:
        """Control groups of containers of a node that this machine still has."""
        tasks = self.folder / name / "containerd" / "io.containerd.grpc.v1.cri"
        ids = {path.name for kind in ("sandboxes", "containers") for path in tasks.glob(f"{kind}/*")}
        return [path for path in CGROUPS.glob("*/k8s.io/*") if path.name in ids]

    def _kubelet(self, name: str) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": 0,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "evictionHard": {"memory.available": "1Mi"},
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 5,
            "syncFrequency": "5s",
            "kubeAPIQPS": 50,  # more than as usual: pods come all the time
            "kubeAPIBurst": 100,
            **({"clusterDNS": [self.name_server], "clusterDomain": "cluster.local"} if self.plugin else {}),
        }

    def _logs(self, name: str) -> str:
        paths = sorted((self.folder / name).glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in paths)

    def _until_registered(self, name: str) -> None:
        until_s = time.monotonic() + READY_S
        while self.plane.ask("GET", f"api/v1/nodes/{name}").status_code != 200:
            assert self.processes[name].poll() is None, f"node {name} ended: {self._logs(name)}"
            assert time.monotonic() < until_s, f"node {name} does not register: {self._logs(name)}"
            time.sleep(0.2)

    def _describe(self, name: str) -> None:
        """Give a node its address: a kubelet says no address on loopback of its own."""
        patch = {"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}}
        path, kind = f"api/v1/nodes/{name}/status", "application/strategic-merge-patch+json"
        answer = self.plane.ask("PATCH", path, patch, kind)
        assert answer.status_code == 200, answer.text

    def kill_kubelet(self, name: str) -> None:
        """SIGKILL to the kubelet alone, which stays away until it is brought back; containers go on."""
        (self.folder / name / "AWAY").touch()
        os.kill(self.kubelet(name), signal.SIGKILL)

    def bring_kubelet_back(self, name: str) -> None:
        """Another kubelet, on what the disk has."""
        (self.folder / name / "AWAY").unlink(missing_ok=True)

    def keep_plugin_away(self, name: str) -> None:
        """A node that was killed begins without its device plug-in, and has no GPUs to give until then.

        Its kubelet writes that itself as it begins, sooner or later than it looks at its pods: here sooner.
        """
        (self.folder / name / "NO_PLUGIN").touch()
        none = {"status": {each: {"nvidia.com/gpu": "0"} for each in ("allocatable", "capacity")}}
        path, kind = f"api/v1/nodes/{name}/status", "application/strategic-merge-patch+json"
        answer = self.plane.ask("PATCH", path, none, kind)
        assert answer.status_code == 200, answer.text

    def begin_plugin(self, name: str) -> None:
        """The device plug-in that was kept away begins."""
        (self.folder / name / "NO_PLUGIN").unlink(missing_ok=True)

    def kubelet(self, name: str) -> int:
        """The process id of the kubelet of a node. Raises ProcessLookupError where there is none."""
        root = f"--root-dir={self.folder / name / 'kubelet'}".encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                command = path.read_bytes().split(b"\0")
                if command[0] == b"kubelet" and root in command:
                    return int(path.parent.name)
        raise ProcessLookupError(f"no kubelet of {name}")

    def until_ready(self, names: Sequence[str], gpus: int) -> None:
        """Wait until pods with GPUs may be bound to all of these nodes."""
        until_s = time.monotonic() + READY_S
        for name in names:
            while True:
                node = self.plane.ask("GET", f"api/v1/nodes/{name}").json()
                ready = any(
                    condition["type"] == "Ready" and condition["status"] == "True"
                    for condition in node["status"]["conditions"]
                )
                given = node["status"]["allocatable"].get("nvidia.com/gpu")
                # That of a loan keeps none of our pods away.
                taints = [each for each in node["spec"].get("taints") or () if each["key"] != ON_LOAN]
                if ready and given == str(gpus) and not taints:
                    break
                assert self.processes[name].poll() is None, f"node {name} ended: {self._logs(name)}"
                assert time.monotonic() < until_s, f"{node['status']} {self._logs(name)}"
                time.sleep(0.2)

    def workers(self, name: str) -> list[int]:
        """Processes of this machine that run in containers of workers of a node."""
        found = []
        for path in (path / "cgroup.procs" for path in self._groups(name) if path.parts[-3] == "memory"):
            with suppress(OSError):
                found += [int(pid) for pid in path.read_text().split() if _is_of_worker(pid)]
        return found

    def left(self) -> Sequence[str]:
        """Mounts, processes and control groups of ours that this machine still has."""
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        groups = [str(path) for name in self.processes for path in self._groups(name)]
        commands = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                commands.append(path.read_text(errors="replace").replace("\0", " "))
        ours = [text for text in (*mounts, *commands) if str(self.folder) in text]
        return [*ours, *groups]

    def kill(self, name: str) -> None:
        """As when the power of a node fails: its kubelet and its containers end at once."""
        self.processes[name].kill()
        self.processes[name].wait()

    def close(self) -> None:
        """End all nodes with their containers; nothing of them is left."""
        for process in self.processes.values():
            process.kill()  # the kernel kills the first process of its namespaces, and so all others
        for process in self.processes.values():
            process.wait()
        for name in self.processes:
            for group in self._groups(name):
                _remove_group(group)
        for group in CGROUPS.glob("*/k8s.io"):
            with suppress(OSError):  # it has groups of others
                group.rmdir()


def _is_of_worker(pid: str) -> bool:
    with suppress(OSError):
        return b"\0STRETTO_WORKER_ID=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    return False


def process_in(worker: str, pid: int) -> int:
    """The number on this machine of a process that the container of a worker calls `pid`; 0: it is gone."""
    mark = f"STRETTO_WORKER_ID={worker}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            numbers = re.search(r"^NSpid:(.*)$", (path / "status").read_text(), flags=re.M)
            if numbers is None or numbers[1].split()[-1] != str(pid) or len(numbers[1].split()) < 2:
                continue
            if mark in (path / "environ").read_bytes().split(b"\0"):
                return int(path.name)
    return 0


def _remove_group(group: Path) -> None:
    """Remove a control group and those in it, once the kernel has ended their processes."""
    until_s = time.monotonic() + READY_S
    for each in [*sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True), group]:
        while True:
            try:
                each.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                assert time.monotonic() < until_s, f"{each} is in use"
                time.sleep(0.1)
