"""What Slurm says of nodes and jobs, in the shapes of its JSON since 22.05 and in those of `scontrol -o`."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.backends.protocol import BackendUnreachable

GRES = re.compile(r"gpu(?::(?P<type>[^:=(,]+))?[:=](?P<count>\d+)(?:\([^)]*\))?")
BARE_COUNT = re.compile(r"gpu:(?P<count>\d+)(?:\([^)]*\))?")
PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")
NOT_OVER = frozenset(
    {
        "PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED",
        "RESIZING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "UPDATE_DB",
        "POWER_UP_NODE",
    }
)  # fmt: skip
OVER = frozenset(
    {
        "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
        "OUT_OF_MEMORY", "REVOKED", "LAUNCH_FAILED",
    }
)  # fmt: skip
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node as Slurm shows it."""

    name: str
    address: str
    states: frozenset[str]  # the base state and its flags, in capitals
    reason: str
    gpus: Mapping[str, int]  # by GRES type; "" where Slurm was not told one
    used: Mapping[str, int]
    cpus: int
    used_cpus: int
    memory_mb: int
    used_memory_mb: int
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job as Slurm shows it."""

    id: int
    states: frozenset[str]
    comment: str
    reason: str  # why it waits, or how it ended
    node: str
    wait_status: int | None = None  # of its script, as wait(2) gives it; None: not asked for
    user: int | None = None  # whose it is; None: not said

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more, nor will."""
        return bool(self.states & OVER) and not self.states & NOT_OVER

    @property
    def is_waiting(self) -> bool:
        """Whether it has not got its node yet."""
        return bool(self.states & WAITING) and "COMPLETING" not in self.states

    @property
    def word(self) -> str:
        """Its state as Slurm calls it."""
        return " ".join(sorted(self.states)) or "UNKNOWN"


def _usable(there: int, tres: object, key: str) -> int:
    """What jobs may have of a node: less than is there, where Slurm keeps cores or memory for the system.

    tres: such as `cpu=62,mem=503.5G,gres/gpu=8`, in which a bare size is in MB.
    """
    sizes = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
    matched = re.search(rf"(?:^|,){key}=([\d.]+)([KMGT]?)", tres) if isinstance(tres, str) else None
    return min(there, int(float(matched[1]) * sizes[matched[2]])) if matched else there


def gpus_in(text: str) -> dict[str, int]:
    """GPUs by type, of a text like `gpu:a100:4(S:0-1),gpu:v100:2,shard:8`."""
    gpus: dict[str, int] = {}
    for part in re.split(r",(?![^(]*\))", text or ""):
        part = part.strip().removeprefix("gres:").removeprefix("gres/")
        if matched := BARE_COUNT.fullmatch(part):
            gpu_type, count = "", matched["count"]
        elif matched := GRES.fullmatch(part):
            gpu_type, count = matched["type"] or "", matched["count"]
        else:
            continue
        gpus[gpu_type] = gpus.get(gpu_type, 0) + int(count)
    return gpus


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────


def nodes_in_json(text: str) -> list[SlurmNode] | None:
    """Nodes of `sinfo --json` in 22.05, or `scontrol show nodes --json`; None for other shapes.

    Raises BackendUnreachable where it says that it could not ask.
    """
    nodes = _objects(text, "nodes")
    if not nodes or not all(isinstance(node.get("name"), str) and "state" in node for node in nodes):
        return None
    return [
        SlurmNode(
            name=node["name"],
            address=node.get("address") or node.get("hostname") or node["name"],
            states=_states(node.get("state"), node.get("state_flags")),
            reason=node.get("reason") or "",
            gpus=gpus_in(node.get("gres") or ""),
            used=gpus_in(node.get("gres_used") or ""),
            cpus=_usable(_number(node.get("cpus")), node.get("tres"), "cpu"),
            used_cpus=_number(node.get("alloc_cpus")),
            memory_mb=_usable(_number(node.get("real_memory")), node.get("tres"), "mem"),
            used_memory_mb=_number(node.get("alloc_memory")),
            partitions=tuple(node.get("partitions") or ()),
        )
        for node in nodes
    ]


def jobs_in_json(text: str) -> list[SlurmJob] | None:
    """Jobs of `squeue --json`; None where it shows something else. Raises BackendUnreachable likewise."""
    jobs = _objects(text, "jobs")
    if jobs is None or not all("job_id" in job and "job_state" in job for job in jobs):
        return None
    return [
        SlurmJob(
            id=_number(job["job_id"]),
            states=_states(job["job_state"], None),
            comment=job.get("comment") or "",
            reason=_reason(job.get("state_reason"), job.get("state_description")),
            node=job.get("nodes") or "",
            wait_status=_wait_status(job.get("exit_code")),
            user=_number(job["user_id"]) if "user_id" in job else None,
        )
        for job in jobs
    ]


def _objects(text: str, key: str) -> list[dict[str, Any]] | None:
    try:
        document = json.loads(text)
    except ValueError:
        return None
    objects = document.get(key) if isinstance(document, dict) else None
    if not isinstance(objects, list) or not all(isinstance(element, dict) for element in objects):
        return None
    # A controller that cannot be reached: an empty list, status 0, and only here that it is no answer.
    if not objects and document.get("errors"):
        raise BackendUnreachable(f"Slurm does not show its {key}: {_errors(document['errors'])}")
    return objects


def _errors(errors: object) -> str:
    """The words of what went wrong, in whatever shape a version gives them."""
    each = [one for one in errors if isinstance(one, dict)] if isinstance(errors, list) else []
    words = [str(one.get(name)) for one in each for name in ("description", "error") if one.get(name)]
    return "; ".join(dict.fromkeys(words))[:400] or "it does not say why"


def _states(state: object, flags: object) -> frozenset[str]:
    """States of a word, of words joined by `+`, or of a list; newer versions list flags with the state."""
    words: list[str] = []
    for part in (state, flags):
        words += part if isinstance(part, list) else [part] if isinstance(part, str) else []
    return frozenset(word.upper() for each in words for word in re.split(r"[+ ]", each) if word)


def _number(value: object) -> int:
    """A number, plain or as newer versions wrap it; 0 for none."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) else 0
    return int(value) if isinstance(value, int | float) else 0


def _reason(reason: object, description: object) -> str:
    said = description if isinstance(description, str) and description else reason
    return said if isinstance(said, str) and said not in ("None", "none") else ""


def _wait_status(code: object) -> int | None:
    """The wait status behind an exit code, which newer versions take apart."""
    if isinstance(code, Mapping) and ("return_code" in code or "signal" in code):
        by = code.get("signal")
        number = _number(by.get("id", by.get("signal_id"))) if isinstance(by, Mapping) else _number(by)
        return _number(code.get("return_code")) << 8 | number
    return None if code is None else _number(code)


# ── text ──────────────────────────────────────────────────────────────────────────────────────────

COLUMNS = "%i|%T|%N|%r|%k"  # of squeue, for `jobs_in_columns`


def nodes_in_text(text: str) -> list[SlurmNode]:
    """Nodes of `scontrol -o -d show nodes`."""
    nodes = []
    for pairs in map(pairs_in, text.splitlines()):
        if "NodeName" in pairs:
            used = pairs.get("GresUsed", "")
            nodes.append(
                SlurmNode(
                    name=pairs["NodeName"],
                    address=pairs.get("NodeAddr") or pairs.get("NodeHostName") or pairs["NodeName"],
                    states=_states(pairs.get("State", "").replace("*", "+NOT_RESPONDING"), None),
                    reason=pairs.get("Reason", ""),
                    gpus=gpus_in(pairs.get("Gres", "")),
                    used=gpus_in(used),
                    cpus=_usable(_whole(pairs.get("CPUTot", "")), pairs.get("CfgTRES"), "cpu"),
                    used_cpus=_whole(pairs.get("CPUAlloc", "")),
                    memory_mb=_usable(_whole(pairs.get("RealMemory", "")), pairs.get("CfgTRES"), "mem"),
                    used_memory_mb=_whole(pairs.get("AllocMem", "")),
                    partitions=tuple(name for name in pairs.get("Partitions", "").split(",") if name),
                )
            )
    return nodes


def jobs_in_columns(text: str) -> list[SlurmJob]:
    """Jobs of squeue in `COLUMNS`."""
    jobs = []
    for line in text.splitlines():
        parts = line.split("|", 4)
        if len(parts) == 5 and parts[0].isdecimal():
            number, state, node, reason, comment = (part.strip() for part in parts)
            jobs.append(SlurmJob(int(number), _states(state, None), comment, _reason(reason, None), node))
    return jobs


def job_in_text(text: str) -> SlurmJob | None:
    """The job of `scontrol -o show job`."""
    for pairs in map(pairs_in, text.splitlines()):
        if pairs.get("JobId", "").isdecimal():
            code, _, number = pairs.get("ExitCode", "").partition(":")
            has_exit_code = code.isdecimal() and number.isdecimal()
            return SlurmJob(
                id=int(pairs["JobId"]),
                states=_states(pairs.get("JobState", ""), None),
                comment=pairs.get("Comment", ""),
                reason=_reason(pairs.get("Reason"), None),
                node=pairs.get("NodeList", "").replace("(null)", ""),
                wait_status=int(code) << 8 | int(number) if has_exit_code else None,
            )
    return None


def pairs_in(line: str) -> dict[str, str]:
    """`Key=Value` pairs of a line of `scontrol -o`; values may hold spaces."""
    marks = list(PAIR.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    return {mark[1]: line[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=False)}


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def by_comment(jobs: Sequence[SlurmJob], prefix: str) -> Iterator[tuple[str, SlurmJob]]:
    """Jobs whose comment begins with a prefix, and what follows it."""
    for job in jobs:
        if job.comment.startswith(prefix):
            yield job.comment.removeprefix(prefix), job
