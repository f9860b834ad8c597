"""What is kept for parts of a queue while GPUs of it are given out, whoever comes first."""

from collections.abc import Sequence

import pytest

from stretto.model import Constraints, Queue
from stretto.scheduler.constraints.hierarchy import Hierarchy
from stretto.scheduler.constraints.limits import GuaranteedParts

#            lab: 6
#     vision: 4   speech: 2
#     faces: 1
QUEUES = {
    one.name: one
    for one in (
        Queue("lab", 6),
        Queue("vision", 4, parent="lab"),
        Queue("speech", 2, parent="lab"),
        Queue("faces", 1, parent="vision"),
    )
}
TREE = Hierarchy(Constraints(QUEUES, parents={"vision": "lab", "speech": "lab", "faces": "vision"}))


@pytest.mark.parametrize(
    ("queue", "others", "kept"),
    [
        pytest.param("vision", [("speech", 5)], 2, id="no more than its quota"),
        pytest.param("vision", [("speech", 1)], 1, id="no more than its jobs were to have"),
        pytest.param("faces", [("vision", 9), ("speech", 9)], 5, id="jobs directly in one are a part of it"),
        pytest.param("vision", [("vision", 2), ("faces", 3), ("speech", 2)], 3, id="on every level"),
        pytest.param("speech", [("vision", 1), ("faces", 3)], 4, id="a part with all that is in it"),
    ],
)
def test_what_a_job_leaves_to_other_parts(queue: str, others: Sequence[tuple[str, int]], kept: int) -> None:
    assert GuaranteedParts(TREE, "lab", others).kept_for_others(queue) == kept


def test_what_was_given_to_a_part_or_could_not_be_is_no_longer_kept_for_it() -> None:
    parts = GuaranteedParts(TREE, "lab", [("speech", 1), ("speech", 1), ("faces", 3), ("vision", 1)])
    parts.give("speech", 1, 1)
    assert parts.kept_for_others("vision") == 2, "one for speech, one for faces"
    parts.give("speech", 1, 0)
    assert parts.kept_for_others("vision") == 1
    parts.give("faces", 3, 3)
    assert parts.kept_for_others("speech") == 1, "vision is guaranteed four, and three are given"
