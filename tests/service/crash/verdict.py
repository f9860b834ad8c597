"""What must be true whatever happened: read from the jobs' own notes, the log, and all processes."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from stretto.agent import run_directory, supervisor
from stretto.demo.own_service import NotInTime, until

from .strikes import SLEPT_S, Asked, Scene

Entry = tuple[int, float, str, dict[str, Any]]  # number, time, kind, body
SAME_WRITE_S = 0.5  # what was on its way to the log when a verb came is behind it there, and is stopped then
RIGHT = "nothing lost, nothing twice, nothing left"


def check(scene: Scene) -> str:
    """The verdict in words. Raises AssertionError where it is another one."""
    running = scene.running
    with running.client() as client:
        listed = {one["id"]: one for one in client.jobs(everybody=True, ended=True)}
    names = Counter(one["name"] for one in listed.values())
    assert names == Counter(job.name for job in scene.asked), "each acknowledged once, and no other"
    cancelled = {job for job, verb in scene.changed if verb == "cancel"}
    for job in scene.asked:
        _check_job(scene.notes, job, listed[job.id]["state"], job.id in cancelled)
    violations = scene.notes / "violations"
    assert not violations.exists(), violations.read_text()
    starts = Counter((scene.notes / "starts").read_text().split())
    assert max(starts.values()) == 1, starts.most_common(3)
    until(lambda: not running.processes() and not running.supervisors(), what="no process is left")
    running.stop_gently()
    try:
        until(lambda: not processes_of(scene.folder))
    except NotInTime:
        raise AssertionError(f"left behind: {processes_of(scene.folder)}") from None
    decisions, differences = running.differences()
    assert decisions > 0
    assert differences == 0
    log = list(running.log_of_all())
    check_log(log)
    check_promises(log, scene.changed)
    check_runs(running.agent_state, log)
    gaps = [after[1] - before[1] for before, after in pairwise(log)]
    assert max(gaps) < SLEPT_S, "time was counted that has not passed"
    attempts = {name.rpartition(".")[0] for name in starts}
    return f"{len(listed)} jobs, {len(attempts)} attempts, {decisions} decisions: {RIGHT}"


def _check_job(notes: Path, job: Asked, state: str, is_cancelled: bool) -> None:
    done = notes / f"job-{job.id}-done"
    right = {"COMPLETED", "CANCELLED"} if is_cancelled else {"COMPLETED"}
    assert state in right, (job, state)
    if state == "COMPLETED":
        assert done.exists(), f"{job} never came to its end"
        assert int((notes / f"job-{job.id}-beats").read_text()) == job.beats


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that name this folder in their arguments or their environment."""
    found = []
    for each in supervisor.processes():
        if each.pid == os.getpid():
            continue
        texts = []
        for name in ("cmdline", "environ"):
            try:
                texts.append(Path(f"/proc/{each.pid}/{name}").read_bytes())
            except OSError:
                texts.append(b"")
        if re.search(re.escape(str(folder)).encode() + rb"(?![\w-])", b"\0".join(texts)):
            found.append(f"{each.pid}: {texts[0].decode(errors='replace')}")
    return found


def check_log(log: Sequence[Entry]) -> None:
    """Numbers without gaps, time that does not go back, one holder of a GPU at a time, one end of a job.

    A job that was killed between its last word and its exit may say that word again: what counts is the exit.
    """
    assert [seq for seq, *_ in log] == list(range(1, len(log) + 1))
    assert all(before[1] <= after[1] for before, after in pairwise(log))
    holder: dict[tuple[str, int], str] = {}
    gpus: dict[str, list[tuple[str, int]]] = {}
    over: set[tuple[str, str]] = set()
    for seq, _, kind, body in log:
        if kind == "Ended" or (kind == "AttemptClosed" and body["outcome"] == "done"):
            assert (body["job"], kind) not in over, f"job {body['job']} came to its end twice, at {seq}"
            over.add((body["job"], kind))
        if kind == "WorkersWanted":
            assert (body["job"], "AttemptClosed") not in over, f"job {body['job']} was over, at {seq}"
            for one in body["workers"]:
                mask = int(one["mask"])
                held = [(one["node"], gpu) for gpu in range(mask.bit_length()) if mask >> gpu & 1]
                assert one["id"] not in gpus, f"{one['id']} was wanted twice, at {seq}"
                assert not [place for place in held if place in holder], f"a GPU was given twice at {seq}"
                gpus[one["id"]] = held
                holder |= dict.fromkeys(held, one["id"])
        elif kind in ("WorkerEnded", "WorkersEnded"):
            ended = [body["worker"]] if kind == "WorkerEnded" else [one["id"] for one in body["workers"]]
            for place in (place for name in ended for place in gpus[name]):
                holder.pop(place, None)
        elif kind == "NodeDead":  # given up for good: what ran there counts as lost
            holder = {place: name for place, name in holder.items() if place[0] != body["node"]}


def check_runs(agent_state: Path, log: Sequence[Entry]) -> None:
    """By the notes of supervisors: every process was wanted, alone on its GPUs, of one attempt at a time."""
    wanted = {one["id"] for _, _, kind, body in log if kind == "WorkersWanted" for one in body["workers"]}
    on_gpu: dict[int, list[tuple[float, float, str]]] = {}
    of_job: dict[str, list[tuple[float, float, str]]] = {}
    for path in agent_state.glob("*/*/start.json"):
        asked, end = run_directory.read_json(path), run_directory.read_json(path.parent / "ended.json")
        assert asked is not None
        assert end is not None, f"{path.parent} has no end"
        assert asked["id"] in wanted, f"nobody wanted {asked['id']}"
        if end.get("started_s") is None:  # its supervisor was killed before it had started anything
            continue
        life = (float(end["started_s"]), float(end["ended_s"]), str(asked["id"]).rpartition(".")[0])
        of_job.setdefault(asked["job"], []).append(life)
        for gpu in asked["gpus"]:
            on_gpu.setdefault(gpu, []).append(life)
    for lives in on_gpu.values():
        for before, after in pairwise(sorted(lives)):
            assert before[1] <= after[0], f"{before} and {after} were on one GPU at once"
    for lives in of_job.values():
        for before, after in pairwise(sorted(lives)):
            assert before[1] <= after[0] or before[2] == after[2], f"{before} and {after} ran at once"


def check_promises(log: Sequence[Entry], changed: Sequence[tuple[str, str]]) -> None:
    """Each acknowledged verb is in the log, and has its effect: who is cancelled or held does not start."""
    said: Counter[tuple[str, str]] = Counter()
    since: dict[str, tuple[str, float]] = {}  # who may not start any more
    for seq, at_s, kind, body in log:
        job, verb = str(body.get("job", "")), verb_of(kind, body)
        said[job, verb] += 1
        if verb in ("cancel", "hold"):
            since.setdefault(job, (verb, at_s))
        elif verb == "release" and since.get(job, ("",))[0] == "hold":
            del since[job]
        elif kind == "WorkersWanted" and job in since:
            verb, from_s = since[job]
            assert at_s < from_s + SAME_WRITE_S, f"{verb} of {job} had no effect at {seq}"
    for promise, times in Counter(changed).items():
        assert said[promise] >= times, f"{promise} was acknowledged and lost"


def verb_of(kind: str, body: Mapping[str, Any]) -> str:
    """What somebody asked for, of which this event is the record."""
    if kind == "Held":
        return "hold" if body["held"] else "release"
    by_hand = kind == "Requeued" and body["why"] == "requeued by hand"
    return "cancel" if kind == "Cancelled" else "requeue" if by_hand else ""
