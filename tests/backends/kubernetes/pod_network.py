"""A network of pods that have addresses of their own, in a network namespace that nothing else uses.

What a cluster has for it is stood in for. A script of CNI joins pods to a bridge. A name server knows
Services, and names the pods behind them, so that nothing need translate addresses. The one address of a
Service that is there is that of the API server. Policies of networks are not enforced.
"""

import ctypes
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from tests.backends.kubernetes.control_plane import ControlPlane

API_SERVER = "10.96.0.1"  # the first address of Services
GATEWAY = "10.88.0.1"  # of pods: the bridge
DOMAIN = "cluster.local"
NEW_NETWORK = 0x40000000  # CLONE_NEWNET of Linux
ADDRESS, KNOWN, UNKNOWN = 1, 0x8580, 0x8583  # a type of DNS, and what the head of an answer says

# The plug-in has two names: that of a loopback, which the runtime asks for by itself, and ours.
PLUGIN = f"""#!/bin/sh
set -e
number() {{
  exec 9>"${{0%/*}}/lock"; flock 9
  n=$(($(cat "${{0%/*}}/last" 2>/dev/null || echo 0) + 1)); echo $n >"${{0%/*}}/last"
  flock -u 9
}}
case "$CNI_COMMAND" in
VERSION) echo '{{"cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0"]}}' ;;
ADD)
  nsenter --net="$CNI_NETNS" ip link set lo up
  if [ "${{0##*/}}" = loopback ]; then echo '{{"cniVersion": "0.4.0"}}'; exit; fi
  number
  address=10.88.$((n / 200 + 1)).$((n % 200 + 1))/16
  nsenter --net="$CNI_NETNS" ip link add eth0 type veth peer name pod$n netns $$
  ip link set pod$n master pods up
  nsenter --net="$CNI_NETNS" ip address add $address dev eth0
  nsenter --net="$CNI_NETNS" ip link set eth0 up
  nsenter --net="$CNI_NETNS" ip route add default via {GATEWAY}
  echo '{{"cniVersion": "0.4.0", "interfaces": [{{"name": "eth0", "sandbox": "'$CNI_NETNS'"}}],' \\
    '"ips": [{{"version": "4", "interface": 0, "address": "'$address'", "gateway": "{GATEWAY}"}}]}}' ;;
esac
"""


def missing() -> str:
    """Why there is no such network on this machine; "" where there is one."""
    if absent := [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]:
        return f"no program {', '.join(absent)} on this machine"
    script = "ip link add pods type bridge && ip link add one type veth peer name other"
    tried = subprocess.run(["unshare", "-n", "sh", "-c", script], capture_output=True, text=True, check=False)
    return f"this machine permits no networks: {tried.stderr.strip()}" if tried.returncode else ""


@contextmanager
def network_of_pods() -> Iterator[None]:
    """Have this thread, and all that it starts, be in a network of its own, which is gone with them."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open("rb") as before:
        if libc.unshare(NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "no network namespace")
        try:
            for words in (
                "link set lo up",
                f"address add {API_SERVER}/32 dev lo",
                "link add pods type bridge",
                f"address add {GATEWAY}/16 dev pods",
                "link set pods up",
            ):
                subprocess.run(["ip", *words.split()], check=True)
            yield
        finally:
            libc.setns(before.fileno(), NEW_NETWORK)


def write_plugin(folder: Path) -> Path:
    """The folder of the plug-in of CNI."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("loopback", "pods"):
        path = folder / name
        path.write_text(PLUGIN, encoding="ascii")
        path.chmod(0o755)
    return folder


class NameServer:
    """Answers for the names of Services, and of pods that have one by a headless Service."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((GATEWAY, 53))
        self.socket.settimeout(0.2)
        self.ends = False
        self.thread = Thread(target=self._serve, name="name server", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """End it."""
        self.ends = True
        self.thread.join()
        self.socket.close()

    def _serve(self) -> None:
        while not self.ends:
            try:
                asked, sender = self.socket.recvfrom(4096)
            except TimeoutError:
                continue
            self.socket.sendto(self.answer(asked), sender)

    def answer(self, asked: bytes) -> bytes:
        """To one query."""
        words, at = [], 12
        while length := asked[at]:
            words.append(asked[at + 1 : at + 1 + length].decode().lower())
            at += 1 + length
        question = asked[12 : at + 5]
        addresses = self.addresses(".".join(words))
        wanted = addresses if struct.unpack(">H", question[-4:-2])[0] == ADDRESS else []
        head = struct.pack(">HHHHH", KNOWN if addresses else UNKNOWN, 1, len(wanted), 0, 0)
        found = [struct.pack(">HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(each) for each in wanted]
        return asked[:2] + head + question + b"".join(found)

    def addresses(self, name: str) -> list[str]:
        """Of the pods of a Service, or of one of these; none where there is no such name."""
        words = name.removesuffix(f".svc.{DOMAIN}").split(".")
        if not name.endswith(f".svc.{DOMAIN}") or len(words) not in (2, 3):
            return []
        *host, service, namespace = words
        answer = self.plane.ask("GET", f"api/v1/namespaces/{namespace}/endpoints/{service}")
        subsets = answer.json().get("subsets") or () if answer.status_code == 200 else ()
        every = [each for subset in subsets for each in subset.get("addresses", ())]
        return [each["ip"] for each in every if not host or each.get("hostname") == host[0]]
