"""A real Slurm of one controller and three nodes on this machine, with GPUs that are links to /dev/null.

Everything is below one temporary directory and on free ports of the loopback interface; several may run at
once. Processes are ended by their recorded number, and what came of a node by descent from it.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.service.ports import free_ports

from stretto.agent import supervisor

NEEDED = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
MACHINE = str(Path(__file__).with_name("machine.py"))
PATIENCE_S = 180.0
DOWN_AFTER_S = 6  # of silence, until Slurm counts a node as down; it takes two or three times as long
ANSWER_S = 10  # of silence, until a daemon counts as not there

CONF = """ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
PlugStackConfig=/dev/null
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=5,bf_interval=5,sched_min_interval=0,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
InactiveLimit=0
BatchStartTimeout=1
MessageTimeout={answer_s}
MinJobAge={min_job_age_s}
SlurmctldTimeout=30
SlurmdTimeout={down_after_s}
GresTypes=gpu
TopologyPlugin=topology/tree
NodeName=DEFAULT CPUs=64 RealMemory=16000 State=UNKNOWN
"""
PARTITIONS = """PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=fast Nodes={fast} MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=short Nodes=ALL MaxTime=1 State=UP PriorityTier=1
PartitionName=closed Nodes=ALL MaxTime=INFINITE State=INACTIVE
PartitionName=forbidden Nodes=ALL MaxTime=INFINITE State=UP AllowGroups=nogroup DisableRootJobs=YES
"""


class CannotRun(Exception):
    """Slurm is not installed on this machine."""


@dataclass
class SlurmCluster:
    """The cluster; `environment` is what programs need to find it."""

    root: Path
    gpus: Mapping[str, tuple[str, int]] = field(
        default_factory=lambda: {"a1": ("a100", 2), "a2": ("a100", 2), "v1": ("v100", 2)}
    )
    min_job_age_s: int = 300
    controller: "subprocess.Popen[bytes] | None" = None
    machines: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Over the usual one."""
        return {"SLURM_CONF": str(self.root / "etc" / "slurm.conf")}

    def start(self) -> "SlurmCluster":
        """Write its files, start it, and wait until all nodes are idle. Raises CannotRun."""
        missing = [name for name in NEEDED if not shutil.which(name, path=programs())]
        if missing:
            raise CannotRun(f"Slurm is not installed: no {', '.join(missing)}")
        for name in ("etc", "state", "run", "log", "dev", *(f"spool/{node}" for node in self.gpus)):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self._write_files()
        self.start_controller("-c")
        for node in self.gpus:
            self.start_node(node)
        until(self._all_idle, self._complaints)
        return self

    def _write_files(self) -> None:
        ports = free_ports("127.0.0.1", 1 + len(self.gpus))
        host = socket.gethostname().split(".")[0]
        text = CONF.format(
            name=f"test{ports[0]}",
            host=host,
            user=getpass.getuser(),
            port=ports[0],
            root=self.root,
            min_job_age_s=self.min_job_age_s,
            down_after_s=DOWN_AFTER_S,
            answer_s=ANSWER_S,
        )
        gres = ""
        for (node, (gpu_type, count)), port in zip(self.gpus.items(), ports[1:], strict=True):
            text += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
            text += f" Gres=gpu:{gpu_type}:{count} Feature={gpu_type}\n"
            gres += (
                f"NodeName={node} Name=gpu Type={gpu_type} File={self.root}/dev/{node}-gpu[0-{count - 1}]\n"
            )
            for index in range(count):
                (self.root / "dev" / f"{node}-gpu{index}").symlink_to("/dev/null")
        first = next(iter(self.gpus.values()))[0]
        fast = ",".join(node for node, (gpu_type, _) in self.gpus.items() if gpu_type == first)
        etc = self.root / "etc"
        (etc / "slurm.conf").write_text(text + PARTITIONS.format(fast=fast))
        (etc / "gres.conf").write_text(gres)
        (etc / "cgroup.conf").write_text("")
        (etc / "topology.conf").write_text(self._switches())

    def _switches(self) -> str:
        """A leaf switch for each GPU type, and one switch above them all."""
        by_type: dict[str, list[str]] = {}
        for node, (gpu_type, _) in self.gpus.items():
            by_type.setdefault(gpu_type, []).append(node)
        leaves = [
            f"SwitchName=leaf-{gpu_type} Nodes={','.join(nodes)}" for gpu_type, nodes in by_type.items()
        ]
        above = ",".join(f"leaf-{gpu_type}" for gpu_type in by_type)
        return "\n".join([*leaves, f"SwitchName=spine Switches={above}", ""])

    def start_controller(self, *more: str) -> None:
        """Start slurmctld."""
        self.controller = self._spawn(["slurmctld", "-D", *more], "slurmctld")
        until(lambda: daemon_of(self.controller), lambda: "slurmctld does not start")

    def restart_controller(self) -> None:
        """End slurmctld as an admin does, and start it; what it saved it knows again."""
        assert self.controller is not None
        os.kill(daemon_of(self.controller), signal.SIGTERM)
        self.controller.wait(timeout=PATIENCE_S)
        self.start_controller()

    def has_lost_gpus(self) -> bool:
        """Whether the controller says that it could not free GPUs of a job that has ended.

        So it is in 22.05 with who was requeued since it could not be launched on a node that had just died:
        to Slurm these GPUs stay in use, though no job has them, until the controller is restarted.
        """
        return "dealloc of node" in (self.root / "log" / "slurmctld").read_text(errors="replace")

    def start_node(self, node: str) -> None:
        """Start slurmd of a node."""
        if node not in self.machines:
            self.machines[node] = self._spawn(["slurmd", "-D", "-N", node], node)

    def _spawn(self, command: list[str], name: str) -> "subprocess.Popen[bytes]":
        with (self.root / "log" / name).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", MACHINE, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment, "PATH": programs()},
                start_new_session=True,
            )

    def kill_node(self, node: str) -> None:
        """As when its power fails: nothing that ever came of its slurmd goes on."""
        if machine := self.machines.pop(node, None):
            until(lambda: kill_below(machine.pid), lambda: f"something of {node} is left")
            machine.wait(timeout=PATIENCE_S)

    def below(self, node: str) -> list[supervisor.Process]:
        """All processes of a node, without its slurmd."""
        machine = self.machines.get(node)
        if machine is None:
            return []
        daemon = daemon_of(machine)
        return [each for each in descend(machine.pid) if each.pid != daemon]

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within it the controller does not answer."""
        daemon = daemon_of(self.controller)
        os.kill(daemon, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(daemon, signal.SIGCONT)

    def run(self, *command: str, text: str = "") -> str:
        """What a program of Slurm prints."""
        env = {**os.environ, **self.environment, "PATH": programs()}
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, env=env, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """State of each node, in Slurm's short words."""
        lines = self.run("sinfo", "--all", "--noheader", "--Node", "--format=%N %t").split("\n")
        return dict(line.split() for line in lines if line)

    def _all_idle(self) -> bool:
        try:
            return set(self.states().values()) == {"idle"}
        except AssertionError:
            return False

    def _complaints(self) -> str:
        logs = sorted((self.root / "log").iterdir())
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)

    def jobs(self) -> list[str]:
        """All that is waiting or running: number, state, name, reason."""
        return self.run("squeue", "--all", "--noheader", "--format=%i %T %j %r").splitlines()

    def close(self) -> list[str]:
        """End everything; what of it was still there because of jobs."""
        left = [f"process {one.pid} on {node}" for node in self.machines for one in self.below(node)]
        for node in list(self.machines):
            self.kill_node(node)
        if self.controller is not None:
            pid = self.controller.pid
            until(lambda: kill_below(pid), lambda: "slurmctld goes on")
            self.controller.wait(timeout=PATIENCE_S)
            self.controller = None
        return left


def descend(pid: int) -> list[supervisor.Process]:
    """All that comes of a process, without it."""
    return supervisor.descendants({pid}, list(supervisor.processes()))


def kill_below(pid: int) -> bool:
    """SIGKILL to all that comes of a process, then to itself; whether that was it."""
    below = descend(pid)
    for each in below:
        supervisor.send_to(each, signal.SIGKILL)
    if below:
        return False
    if found := supervisor.process_at(pid):
        supervisor.send_to(found, signal.SIGKILL)
    return True


def daemon_of(machine: "subprocess.Popen[bytes] | None") -> int:
    """The first process below a machine; 0 before there is one."""
    below = [each for each in descend(machine.pid) if each.parent == machine.pid] if machine else []
    return min(below, key=lambda each: each.ticks).pid if below else 0


def programs() -> str:
    """PATH, with where daemons are."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def until(is_so: Callable[[], object], what: Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    """Wait until something is so."""
    end_s = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < end_s, f"not within {patience_s} s: {what()}"
        time.sleep(0.05)
