"""Whatever the interface accepts can be folded, however much later it is written."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.jobfile.test_neighbours import SKY, TRAIN_JOB

from stretto.service.eventlog.clock import Clock
from stretto.service.eventlog.writer import fold
from stretto.service.state.state import State

from .rig import a_rig, play

pytestmark = pytest.mark.sqlite

UNIX_S = 1.7e9  # when the clock of a rig was zero
SCRIPT = "#!/bin/sh\n#SBATCH --gres=gpu:2 --time=10 --begin=now+1hour --nice=5\npython t.py\n"


@dataclass
class Leaping:
    """A clock that goes ahead whenever something is written: what was checked is written later."""

    clock: Clock
    leap_s: float

    def now_s(self) -> float:
        self.clock.origin_s += self.leap_s
        return self.clock.now_s()


def date(after_s: float) -> str:
    return datetime.fromtimestamp(UNIX_S + after_s, UTC).isoformat()


AFTER_S = st.floats(0.5, 4e7)
DATES = AFTER_S.map(date)
TIMES = DATES | st.sampled_from(["1s", "90s", "2h", "300d"])
OWN = st.fixed_dictionaries(
    {"run": st.just("'true'")},
    optional={
        "deadline": TIMES,
        "start_after": TIMES,
        "elastic": st.sampled_from(["{min: 1, max: 3}", "{sizes: [1, 2, 4]}"]),
        "array": st.sampled_from(["0-2", "1,5%1"]),
        "priority": st.integers(-9, 9),
        "queue": st.just("q"),
        "max_time": st.just("1s"),
        "model": st.just("m"),
        "stop": st.just("{metric: loss, target: 0.5, max_epochs: 3}"),
        "depends_on": st.just("[{job: before, when: ended}]"),
    },
) | st.tuples(TIMES, TIMES).map(
    lambda by: {"run": "x", "rewards": f"[{{by: '{by[0]}', worth: 2}}, {{by: '{by[1]}', worth: 1}}]"}
)
FILES = OWN.map(lambda said: "\n".join(f"{key}: {value}" for key, value in said.items()))
TEXTS = FILES | st.sampled_from([SCRIPT, SKY.replace("A100: 8, H100: 8", "A100: 1"), TRAIN_JOB])
JOBS = st.sampled_from(["1", "1", "1", "2", "3_0"])
SIZES = st.integers(1, 9)
Request = tuple[str, str, dict[str, Any]]
SUBMISSIONS = st.tuples(
    st.just("post"), st.just("/jobs"), TEXTS.map(lambda text: {"text": text, "name": "before"})
)
REQUESTS = st.one_of(
    SUBMISSIONS,
    st.tuples(
        st.just("post"),
        JOBS.map("/jobs/{}/scale".format),
        st.builds(lambda low, high: {"min_gpus": low, "max_gpus": high}, SIZES, SIZES),
    ),
    st.tuples(
        st.just("post"),
        JOBS.map("/jobs/{}/priority".format),
        st.integers(-(10**6), 10**6).map(lambda priority: {"priority": priority}),
    ),
    st.tuples(
        st.just("post"),
        st.builds("/jobs/{}/{}".format, JOBS, st.sampled_from(["hold", "release", "requeue", "cancel"])),
        st.just({}),
    ),
    st.tuples(
        st.just("put"),
        st.just("/queues/q"),
        st.builds(
            lambda quota, borrow, weight: {"quota_gpus": quota, "borrow_gpus": borrow, "weight": weight},
            st.none() | st.integers(0, 9),
            SIZES,
            st.floats(0.1, 9.0),
        ),
    ),
    st.tuples(
        st.just("put"),
        st.just("/reservations/r"),
        st.builds(
            lambda start, end, gpus: {
                "start": UNIX_S + start,
                "end": UNIX_S + start + end,
                "gpus": gpus,
                "gpu_type": "a100",
                "user": "ada",
            },
            AFTER_S,
            AFTER_S,
            SIZES,
        ),
    ),
    st.tuples(
        st.just("post"),
        st.builds(
            "/nodes/{}/{}".format,
            st.sampled_from(["n0", "n1"]),
            st.sampled_from(["cordon", "drain", "uncordon"]),
        ),
        st.just({}),
    ),
)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    first=st.lists(SUBMISSIONS, min_size=1, max_size=4),
    then=st.lists(REQUESTS, max_size=12),
    leap_s=st.sampled_from([0.6, 3_700.0, 4e6]),
)
def test_every_accepted_request_is_folded_however_late_it_is_written(
    first: list[Request], then: list[Request], leap_s: float
) -> None:
    async def story() -> None:
        with TemporaryDirectory() as folder:
            async with a_rig(Path(folder)) as rig:
                service = rig.service
                service.log_writer.clock = Leaping(service.clock, leap_s)  # type: ignore[assignment]
                async with rig.client("root") as client:
                    for method, path, body in [*first, *then]:
                        answer = await client.request(method, f"/api/v1{path}", json=body)
                        assert answer.status_code < 500, answer.text
                    assert (await client.get("/readyz")).json()["skipped_events"] == 0
                assert service.state.skipped == ()
                again = State()
                for one in rig.store.read(limit=service.state.seq):
                    fold(again, one)
                assert (again.skipped, list(again.jobs)) == ((), list(service.state.jobs))

    play(story)
