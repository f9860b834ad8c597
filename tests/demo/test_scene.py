"""When the jobs of the demo come."""

import pytest

from stretto.demo.scene import LONGEST_S, Entry, comes

pytestmark = pytest.mark.processes

SMALL, RESIZED = {"switches": 0}, {"switches": 1}


@pytest.mark.parametrize(
    ("waits", "at_s", "others", "expected"),
    [
        pytest.param(False, 4.9, [RESIZED], False, id="not before its time"),
        pytest.param(False, 5.0, [SMALL], True, id="in its time, whatever others do"),
        pytest.param(True, 5.0, [SMALL], False, id="one that waits, not before somebody was resized"),
        pytest.param(True, 5.0, [SMALL, RESIZED], True, id="one that waits, once somebody was"),
        pytest.param(True, 5.0 + LONGEST_S, [SMALL], True, id="nor does it wait for ever"),
    ],
)
def test_a_job_comes(waits: bool, at_s: float, others: list[dict[str, int]], expected: bool) -> None:
    assert comes(Entry("job.yaml", 5.0, waits=waits), at_s, others) is expected
