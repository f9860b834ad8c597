"""How Ray's autoscaler gets machines here: each is a loopback address with processes of its own.

Ray imports it in the process of its autoscaler, by name. What it needs to know is in the cluster's
configuration; what it has started stands in a file, so that the test can end it whatever happens.
"""

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

STARTED = "started.json"  # in the folder: the session in which the processes of each address are


class LoopbackMachines(NodeProvider):  # type: ignore[misc]  # Ray has no types
    """Machines 127.A.B.10 and so on; the head is there already."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self.folder = Path(provider_config["folder"])
        self.lock, self.turn = threading.Lock(), threading.Lock()
        self.sessions: dict[str, int] = {}
        head = provider_config["head"]
        self.tags: dict[str, dict[str, str]] = {head: named(head, "head", NODE_KIND_HEAD)}
        self.last = 9

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        """Machines that are there, by address."""
        with self.lock:
            return [name for name, tags in self.tags.items() if tag_filters.items() <= tags.items()]

    def is_running(self, node_id: str) -> bool:
        """Whether it is there."""
        return node_id in self.tags

    def is_terminated(self, node_id: str) -> bool:
        """Whether it is not."""
        return node_id not in self.tags

    def node_tags(self, node_id: str) -> dict[str, str]:
        """What Ray has noted of it."""
        return dict(self.tags[node_id])

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        """Note more."""
        self.tags[node_id] |= tags

    def internal_ip(self, node_id: str) -> str:
        """Its address."""
        return node_id

    external_ip = internal_ip

    def create_node_with_resources_and_labels(
        self,
        node_config: dict[str, Any],
        tags: dict[str, str],
        count: int,
        resources: dict[str, float],
        labels: dict[str, str],
    ) -> None:
        """`ray start` on new addresses."""
        for _ in range(count):
            self.begin(tags, dict(resources), dict(labels))

    def begin(self, tags: dict[str, str], resources: dict[str, float], labels: dict[str, str]) -> None:
        """`ray start` on one."""
        with self.lock:
            self.last += 1
            address = f"{self.provider_config['net']}.{self.last}"
        cpus, gpus = int(resources.pop("CPU", 1)), int(resources.pop("GPU", 0))
        command = [str(Path(sys.executable).with_name("ray")), "start"]
        command += ["--address", self.provider_config["gcs"], "--node-ip-address", address]
        command += ["--num-cpus", str(cpus), "--num-gpus", str(gpus), "--resources", json.dumps(resources)]
        command += ["--labels", ",".join(f"{name}={value}" for name, value in labels.items())]
        command += ["--object-store-memory", str(80 << 20), "--include-log-monitor", "false"]
        with self.lock:
            self.tags[address] = {**tags, TAG_RAY_NODE_NAME: address, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}
        threading.Thread(target=self.start, args=(address, command, tags), daemon=True).start()

    def start(self, address: str, command: list[str], tags: dict[str, str]) -> None:
        """One after the other: raylets of a machine that begin together choose the same names for sockets."""
        mine = {"RAY_CLOUD_INSTANCE_ID": address, "RAY_NODE_TYPE_NAME": tags[TAG_RAY_USER_NODE_TYPE]}
        with self.turn, (self.folder / f"{address}.log").open("wb") as log:
            started = subprocess.Popen(
                command,
                env={**os.environ, **mine},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            with self.lock:
                self.sessions[address] = started.pid
                part = self.folder / f"{STARTED}.part"  # whoever reads it finds it whole
                part.write_text(json.dumps(self.sessions))
                part.replace(self.folder / STARTED)
            started.wait()

    def terminate_node(self, node_id: str) -> None:
        """The machine is gone, and what runs there."""
        from stretto.agent import supervisor

        with self.lock:
            self.tags.pop(node_id, None)
            session = self.sessions.get(node_id, -1)
        for each in supervisor.processes():
            if each.session == session:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, 9)

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        """Nothing has to be prepared."""
        return cluster_config


def named(name: str, node_type: str, kind: str) -> dict[str, str]:
    """Tags of a machine."""
    return {
        TAG_RAY_NODE_KIND: kind,
        TAG_RAY_USER_NODE_TYPE: node_type,
        TAG_RAY_NODE_NAME: name,
        TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE,
    }
