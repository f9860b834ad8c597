"""A real Ray cluster whose autoscaler starts and ends nodes: a head without GPUs, and none at first."""

import json
import signal
from pathlib import Path

from tests.backends.ray.cluster import RayCluster
from tests.backends.ray.provider import STARTED

from stretto.agent import supervisor

ROOT = Path(__file__).parents[4]
IDLE_S = 3.0  # after which a node goes
UPDATE_S = 1  # between looks of the autoscaler
NODE_TYPE, GPU_TYPE, GPUS, CPUS, MOST = "small", "L4", 2, 4, 2


LISTS = (  # of a configuration, which Ray wants to see although they are empty
    *("cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands", "setup_commands"),
    *("head_setup_commands", "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands"),
)


class GrowingCluster(RayCluster):
    """Up to `MOST` nodes of `GPUS` come when they are asked for, and go when nobody uses them."""

    def __init__(self, v2: bool = False) -> None:
        super().__init__()
        self.v2 = v2

    @property
    def nodes(self) -> tuple[str, ...]:
        """Addresses of the nodes that have ever been started."""
        return tuple(self.started())

    def started(self) -> dict[str, int]:
        """The session of each of them."""
        path = self.folder / STARTED
        return json.loads(path.read_text()) if path.exists() else {}

    def of_node(self, address: str) -> list[supervisor.Process]:
        """All processes of a node, whoever started it."""
        self.sessions |= self.started()
        return super().of_node(address)

    def workers_left(self) -> list[str]:
        """Supervisors and workers."""
        self.sessions |= self.started()
        return super().workers_left()

    def begin(self) -> None:
        """Start the head, with an autoscaler in it."""
        self.folder.joinpath("n").mkdir()
        config = self.folder / "autoscaler.json"
        config.write_text(json.dumps(self.config()))
        args = ["--head", "--port", str(self.port), "--ray-client-server-port", str(self.client_port)]
        args += ["--num-cpus", "2", "--num-gpus", "0", "--temp-dir", str(self.folder / "r")]
        args += ["--include-dashboard", "false", "--autoscaling-config", str(config)]
        env = {"PYTHONPATH": str(ROOT), "AUTOSCALER_UPDATE_INTERVAL_S": str(UPDATE_S)}
        env |= {"AUTOSCALER_HEARTBEAT_TIMEOUT_S": "300"}  # on a busy machine a node takes long to begin
        env |= {"RAY_CLOUD_INSTANCE_ID": self.head, "RAY_NODE_TYPE_NAME": "head"}
        env |= {"RAY_enable_autoscaler_v2": str(int(self.v2))}
        self.start(self.head, args, env)
        self.joined(self.head)

    def config(self) -> dict[str, object]:
        """What the autoscaler is told."""
        small = {"CPU": CPUS, "GPU": GPUS, f"accelerator_type:{GPU_TYPE}": 1}
        return {
            "cluster_name": "growing",
            "max_workers": MOST,
            "idle_timeout_minutes": IDLE_S / 60,
            "upscaling_speed": 100,
            "provider": {
                "type": "external",
                "module": "tests.backends.ray.provider.LoopbackMachines",
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
                "folder": str(self.folder),
                "net": self.net,
                "head": self.head,
                "gcs": self.address,
                "head_node_id": self.head,
            },
            "head_node_type": "head",
            "docker": {},
            "auth": {},
            "file_mounts": {},
            "file_mounts_sync_continuously": False,
            **{each: [] for each in LISTS},
            "available_node_types": {
                "head": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
                NODE_TYPE: {
                    "resources": small,
                    "labels": {"ray.io/accelerator-type": GPU_TYPE},
                    "node_config": {},
                    "min_workers": 0,
                    "max_workers": MOST,
                },
            },
        }

    def end(self) -> None:
        """First the autoscaler, which would start nodes again."""
        for each in self.of_node(self.head):
            supervisor.send_to(each, signal.SIGKILL)
        super().end()
