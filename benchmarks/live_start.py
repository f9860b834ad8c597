"""How long a service takes to start from a long log, with a kept state and without.

    python benchmarks/live_start.py [--events 200000] [--policy sia]
    python benchmarks/live_start.py --open 100000

Writes a log of jobs that come, train, report and end, with a decision at every arrival and end, into a SQLite
file, and times what a start does with it before it listens. With `--open` the log is one of jobs that all
wait; times are of the processor, with garbage looked for meanwhile, as by default in Python, and put off.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from stretto.jobfile import JobSpec
from stretto.model import Trigger, digest
from stretto.scheduler.round import decide
from stretto.service.eventlog import Store, Unrecorded, open_store
from stretto.service.gc_tuning import put_off
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.replay import Replay
from stretto.service.scheduling.scheduler import scheduler_of
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.state import events as happened
from stretto.service.state.events import Event, body_of, subject_of
from stretto.service.state.reducer import apply
from stretto.service.state.state import State
from stretto.service.state_snapshots import begun, keep_from_log

NODES, GPUS = 8, 4
RUNNING, REPORTS = 24, 40  # jobs at once, and the fewest reports of each
REST = 1_000  # events after the kept state
KEY = b"k" * 32
DUE = frozenset({Trigger.ARRIVAL, Trigger.COMPLETION, Trigger.ROUND})


def life(policy: str) -> Iterator[tuple[float, Event]]:
    """Events with their times, for ever; each is folded as it is told, since decisions look at the state."""
    state, now_s, memory = State(), 0.0, None
    scheduler = scheduler_of(happened.Configured(policy))
    observer = SnapshotBuilder(scheduler.policy.views)

    def told(event: Event) -> tuple[float, Event]:
        apply(state, event, state.seq + 1, now_s)
        return now_s, event

    yield told(happened.Began(1.7e9))
    yield told(happened.Configured(policy))
    for node in range(NODES):
        yield told(happened.NodeSeen(f"n{node}", "a100", GPUS))
    number = 0
    while True:
        now_s += 30.0
        ended = [
            job for job in state.open_jobs() if job.learned.latest.get("step", 0) >= REPORTS + job.number % 40
        ]
        for job in ended:
            yield told(happened.Ended(job.id, "COMPLETED", 0))
        came = len(state.open) < RUNNING
        while len(state.open) < RUNNING:
            number += 1
            spec = JobSpec.from_json({"run": "true", "elastic": {"min_gpus": 1, "max_gpus": 4}, "model": "m"})
            yield told(happened.Submitted(str(number), spec.to_json(), f"user{number % 5}"))
        if came or ended:
            snapshot = snapshot_for(scheduler, observer, state, now_s, DUE, memory)
            plan = decide(snapshot, scheduler)
            yield told(decided(snapshot, plan, state.seq, 1.0))
            memory = plan.memory
        for job in state.open_jobs():
            if job.accounting.held_gpus:
                step = int(job.learned.latest.get("step", 0)) + 1
                grad_s = 0.1 + 0.001 * (job.number % 7)
                gpus = job.accounting.held_gpus
                points = [[1, gpus, 32, 1, grad_s, grad_s + 0.01 * gpus]]
                report = {"step": step, "init_batch": 32, "points": points, "loss": 1.0 / step}
                yield told(happened.Reported(job.id, report))


def waiting(jobs: int) -> Iterator[tuple[float, Event]]:
    """Events of jobs that have come, and wait."""
    yield 0.0, happened.Began(1.7e9)
    yield 0.0, happened.Configured("fifo")
    yield 0.0, happened.NodeSeen("n0", "a100", GPUS)
    spec = JobSpec.from_json({"run": "true", "model": "m"}).to_json()
    for number in range(jobs):
        yield 0.01 * number, happened.Submitted(str(number + 1), spec, f"user{number % 50}")


def start_with_open(store: Store, jobs: int) -> dict[str, float]:
    """Processor seconds of a start with so many jobs that wait."""
    events = waiting(jobs)
    while rows := [
        Unrecorded(at_s, type(event).__name__, subject_of(event), body_of(event))
        for at_s, event in islice(events, 10_000)
    ]:
        store.append(rows, store.last())
    began = time.process_time()
    started(store)
    collected_s, began = time.process_time() - began, time.process_time()
    with put_off():
        started(store)
    put_off_s = time.process_time() - began
    return {"open_jobs": jobs, "start_collecting_s": round(collected_s, 2), "start_s": round(put_off_s, 2)}


def started(store: Store, events: int | None = None) -> tuple[float, Replay]:
    """Seconds, and what a start ends up with."""
    began = time.perf_counter()
    kept = begun(store, KEY)
    replay = Replay(kept.state, for_memory=True, memory=kept.memory)
    for recorded in store.read(after=kept.state.seq, limit=events):
        replay.next(recorded)
    replay.finish()
    return time.perf_counter() - began, replay


def main() -> None:
    """Write, start, keep, start again; one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--policy", default="sia")
    parser.add_argument("--open", type=int, default=0, help="jobs that wait, instead of a long log")
    asks = parser.parse_args()
    if asks.open:
        with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "log.db") as store:
            print(json.dumps(start_with_open(store, asks.open)))
        return
    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "log.db") as store:
        rows: list[Unrecorded] = []
        for at_s, event in life(asks.policy):
            rows.append(Unrecorded(at_s, type(event).__name__, subject_of(event), body_of(event)))
            if len(rows) == 10_000 or store.last() + len(rows) == asks.events:
                store.append(rows, store.last())
                rows = []
                if store.last() >= asks.events:
                    break
        whole_s, whole = started(store)
        _, before = started(store, whole.state.seq - REST)
        began = time.perf_counter()
        keep_from_log(store, KEY, before.state.seq, before.memory)
        keep_s = time.perf_counter() - began
        stored = store.newest_state()
        kept_s, replay = started(store)
        assert stored is not None
        assert replay.state.seq == whole.state.seq
        assert replay.state.decisions == whole.state.decisions
        assert digest(replay.memory) == digest(whole.memory)
        print(
            json.dumps(
                {
                    "policy": asks.policy,
                    "events": whole.state.seq,
                    "jobs": len(whole.state.jobs),
                    "decisions": whole.state.decisions,
                    "start_without_s": round(whole_s, 2),
                    "decided_again_without": whole.decisions,
                    "keep_beside_s": round(keep_s, 2),
                    "kept_bytes": len(stored.state),
                    "start_with_s": round(kept_s, 3),
                    "decided_again_with": replay.decisions,
                    "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                }
            )
        )


if __name__ == "__main__":
    main()
