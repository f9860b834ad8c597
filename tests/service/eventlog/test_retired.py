"""Jobs that leave the state change no answer: not the fold's, nor a policy's, nor what is shown of them."""

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drawn import scaled
from tests.service.play import DUE, Deciding
from tests.service.scene import Scene

from stretto.jobfile import JobSpec
from stretto.jobfile.to_job import JOB_KEYS
from stretto.scheduler.round import decide
from stretto.service.eventlog.archive import record_of, row_of
from stretto.service.scheduling.decision import decided, snapshot_for
from stretto.service.scheduling.snapshot_builder import SnapshotBuilder
from stretto.service.service import submission
from stretto.service.state import events as happened
from stretto.service.state.events import Event, Retired
from stretto.service.state.records import JobRecord
from stretto.service.state.reducer import apply
from stretto.service.state.relations import named, outcomes_of, resolved
from stretto.service.state.state import State
from stretto.service.state.status import status_of, why_not_yet
from stretto.testing.builders import a_job


def _gpu_us(state: State, now_s: float) -> int:
    """GPU time up to now of all jobs that there were."""
    spells = [spell for record in state.jobs.values() for spell in record.usage.until(now_s)]
    return sum(spell.gpu_us for spell in spells) + state.past.spell_gpu_us


@dataclass
class Both:
    """Two states that are told the same, one of which jobs leave as soon as they may; and the table."""

    live: Deciding
    lean: State = field(default_factory=State)
    observer: SnapshotBuilder = field(init=False)
    table: dict[str, JobRecord] = field(default_factory=dict)
    told: int = 0

    def __post_init__(self) -> None:
        self.observer = SnapshotBuilder(self.live.scheduler.policy.views)

    @property
    def scene(self) -> Scene:
        return self.live.scene

    def catch_up(self) -> None:
        for seq, event in enumerate(self.scene.log[self.told :], start=self.told + 1):
            apply(self.lean, event, seq, self.scene.now_s)
        self.told = len(self.scene.log)

    def retire(self, keep: int) -> None:
        """All but the last to end leave where they may; who is asked to and may not stays."""
        names = list(self.lean.ended)[: len(self.lean.ended) - keep]
        rows = {name: record_of(row_of(self.lean.jobs[name])) for name in names}
        apply(self.lean, Retired(tuple(names)), self.lean.seq, self.scene.now_s)
        self.table |= {name: row for name, row in rows.items() if name not in self.lean.jobs}

    def submit(self, job: str, spec: dict[str, Any]) -> None:
        """As the service does; what it would say of both must be one event."""
        given = JobSpec.from_json({"run": "true", "preemptible": True, "expected_time_s": 600.0, **spec})
        said: list[Event] = []
        for state, table in ((self.scene.state, {}), (self.lean, self.table)):
            past = {
                word: found
                for one in given.depends_on
                for word in [one.job]
                if (found := named(table.values(), word, "ada")) is not None
            }
            after = resolved(state.relations, state.jobs, given, "ada", past)
            ends = outcomes_of(state.relations, state.jobs, after, past)
            said.append(submission(job, given, "ada", f"key-{job}", after, ends))
        assert said[0] == said[1]
        self.scene.tell(said[0])

    def agree(self) -> None:
        full, lean, now_s = self.scene.state, self.lean, self.scene.now_s
        assert lean.open == full.open
        assert set(lean.jobs) | set(self.table) == set(full.jobs)
        for name, record in full.jobs.items():
            other = lean.jobs[name] if name in lean.jobs else self.table[name]
            assert status_of(lean, other, now_s) == status_of(full, record, now_s)
            assert other.number == record.number
            assert other.spec == record.spec
            if not record.has_ended:
                assert why_not_yet(lean, other, now_s) == why_not_yet(full, record, now_s)
        assert _gpu_us(lean, now_s) == _gpu_us(full, now_s)
        assert (lean.submitted, lean.largest_id, lean.ends) == (full.submitted, full.largest_id, full.ends)
        assert dict(lean.placement or {}) == dict(full.placement or {})
        assert (lean.models, lean.untried) == (full.models, full.untried)

    def decide_both(self) -> None:
        self.catch_up()
        snapshot = snapshot_for(
            self.live.scheduler, self.observer, self.lean, self.scene.now_s + 30.0, DUE, self.scene.memory
        )
        plan = decide(snapshot, self.live.scheduler)
        seen = self.scene.state.seq
        self.live.decide()
        assert self.scene.log[-1] == decided(snapshot, plan, seen, 1.0)


JOBS = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b"])},
    optional={
        "queue": st.just("q"),
        "model": st.just("m"),
        "array": st.builds(
            lambda count, at_once: {"indices": list(range(count)), "at_once": at_once},
            st.integers(2, 3),
            st.sampled_from([None, 1]),
        ),
        "after": st.tuples(
            st.sampled_from(["a", "b", *map(str, range(1, 9))]),
            st.sampled_from(["succeeded", "failed", "ended", "started"]),
        ),
        "elastic": st.just({"min_gpus": 1, "max_gpus": 3}),
    },
)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), JOBS),
        st.tuples(st.sampled_from(["end", "fail"]), st.integers(0, 5)),
        st.tuples(st.sampled_from(["end", "fail", "decide", "report", "cancel", "hold"]), st.integers(0, 5)),
    ),
    min_size=10,
    max_size=40,
)


def move(both: Both, number: int, kind: str, what: Any) -> None:
    scene = both.scene
    jobs = [job.id for job in scene.state.open_jobs()]
    if kind == "submit":
        wanted = dict(what)
        word, when = wanted.pop("after", ("", ""))
        if scene.state.relations.found(scene.state.jobs, word, "ada"):
            wanted["depends_on"] = [{"job": word, "when": when}]
        both.submit(str(scene.state.largest_id + 1), wanted)
    elif kind in ("decide", "end", "fail"):
        both.decide_both()
        scene.reconcile()
        running = sorted({worker.job for worker in scene.running.values() if not worker.stopped})
        if kind != "decide" and running:
            for name in scene.names(running[what % len(running)]):
                scene.end(name, 0 if kind == "end" else 1)
    elif jobs:
        record = scene.state.jobs[jobs[what % len(jobs)]]
        if kind == "report":
            said = {"init_batch": 8, "step": number, "points": [[1, 1, 8, 1, 0.1 * number, 0.3 * number]]}
            scene.tell(happened.Reported(record.id, said))
        elif kind == "cancel":
            scene.tell(happened.Cancelled(record.id))
        elif kind == "hold":
            scene.tell(happened.Held(record.id, not record.held))
    for name in scene.asked_to_stop & set(scene.running):
        scene.end(name, 143)
    scene.reconcile()


@settings(max_examples=scaled(60), deadline=None)
@given(policy=st.sampled_from(["fifo", "tiresias", "sia"]), moves=MOVES, keep=st.sampled_from([0, 0, 2]))
def test_whether_jobs_leave_or_stay_every_answer_is_the_same(
    policy: str, moves: list[tuple[str, Any]], keep: int
) -> None:
    both = Both(Deciding(policy))
    both.catch_up()
    for number, (kind, what) in enumerate(moves, start=1):
        move(both, number, kind, what)
        both.catch_up()
        both.retire(keep)
        both.agree()
    both.decide_both()


def test_a_job_that_has_left_memory_has_what_its_file_said() -> None:
    job = a_job("1", gpus=2, model="bert", weight=3.0)
    record = JobRecord(JobSpec("train", model="bert"), job, "ana", "", "", 1)
    again = record_of(row_of(record)).job
    assert (again.gpus, again.weight) == (2, 3.0)
    assert {name: getattr(again, name) for name in JOB_KEYS} == {
        name: getattr(job, name) for name in JOB_KEYS
    }


def test_a_row_calls_its_fields_as_older_versions_did_and_theirs_are_read() -> None:
    record = JobRecord(JobSpec("train"), a_job("7_1"), "ana", "", "", 1, array="7")
    record.max_parallel, record.uses_sdk = 2, True
    row = row_of(record)
    body = json.loads(row.body)
    assert (body["at_once"], body["speaks"]) == (2, True)
    assert not {"max_parallel", "uses_sdk"} & set(body)
    again = record_of(row)
    assert (again.max_parallel, again.uses_sdk) == (2, True)
