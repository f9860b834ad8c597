"""`explain`, `whatif` and `submit --dry-run` over a real service."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from stretto.demo.own_service import OwnService, until

from ..ran import Stretto
from .conftest import reaches, waits_for

pytestmark = pytest.mark.processes

JobFile = Callable[..., Path]
ENOUGH_DRAWS = 8
# By how much a forecast of ten minutes may be off; by more where a busy machine left time for few draws only.
NEAR_S, FEW_DRAWS_S = 60.0, 250.0


@pytest.fixture
def crowded(verbs: Stretto, service: OwnService, job_file: JobFile) -> tuple[str, str]:
    """A job that holds three of four slots for ten minutes, and one that waits for two."""
    holding = job_file("holding", "run: sleep 600", "resources: {accelerators: 3}", "expected_time: 10m")
    waiting = job_file("waiting", "run: sleep 1", "resources: {accelerators: 2}", "expected_time: 1m")
    first = verbs("submit", holding).out.strip()
    with service.client() as client:
        reaches(client, first, "RUNNING")
        second = verbs("submit", waiting).out.strip()
        waits_for(client, second, "NO_FREE_GPUS")
    return first, second


def explained(verbs: Stretto, job: str, when: str, *words: str) -> Any:
    """As JSON, and with these words else, once a fifth of a second was enough to foresee it several times."""

    def found() -> Any | Literal[False]:
        as_json, said = verbs("explain", job, "--json").json, verbs("explain", job).out
        span = as_json[when] or {"middle": None}
        is_foreseen = span["middle"] is not None and span["low"] < span["middle"] < span["high"]
        is_tried = as_json["changes"] or when == "end"
        return is_foreseen and is_tried and all(one in said for one in words) and as_json

    return until(found, what=f"{when} of job {job} is foreseen: {words}")


def near_s(found: Any) -> float:
    return NEAR_S if found["draws"] >= ENOUGH_DRAWS else FEW_DRAWS_S


def test_a_waiting_job_is_told_who_holds_what_until_when_and_what_would_help(
    crowded: tuple[str, str], verbs: Stretto
) -> None:
    first, second = crowded
    found = explained(verbs, second, "start", " ± ", "would start now with 1 x cpu")
    ran_s = verbs("describe", first, "--json").json["running_s"]
    assert [(one["id"], one["gpus"]) for one in found["holders"]] == [(first, 3)]
    assert found["start"]["middle"] - found["now"] == pytest.approx(600 - ran_s, abs=near_s(found))
    assert [(one["change"], one["gpus"]) for one in found["changes"]] == [("with 1 x cpu", 1)]
    assert [(one["gpu_type"], one["free"]) for one in found["prices"]] == [("cpu", 1)]
    assert not found["never"]


def test_a_running_job_is_told_when_it_is_likely_to_end(crowded: tuple[str, str], verbs: Stretto) -> None:
    found = explained(verbs, crowded[0], "end", "it holds 3 x cpu, ends about")
    ran_s = verbs("describe", crowded[0], "--json").json["running_s"]
    assert found["end"]["middle"] - found["now"] == pytest.approx(600 - ran_s, abs=near_s(found))


def test_a_job_that_comes_after_a_failed_one_ends_and_says_why(
    verbs: Stretto, service: OwnService, job_file: JobFile
) -> None:
    failed = verbs("submit", "--wait", "--json", "--", "false").json["id"]
    job = verbs("submit", job_file("after", "run: 'true'", f"depends_on: [{failed}]")).out.strip()
    with service.client() as client:
        client.wait(job)
    ended = verbs("describe", job, "--json").json
    assert (ended["state"], ended["reason"]) == ("CANCELLED", "DEPENDENCY_FAILED")
    said = f"it has ended: CANCELLED, a job that had to come first ended in the wrong way: after {failed}\n"
    assert verbs("explain", job).out == f"job {job} after: {said}"


def test_a_dry_run_submits_nothing_and_says_where_and_when(
    crowded: tuple[str, str], verbs: Stretto, job_file: JobFile
) -> None:
    small = job_file("small", "run: 'true'", "resources: {accelerators: 1}", "expected_time: 1m")
    before = verbs("list", "--json").json["jobs"]
    late = verbs("submit", "--dry-run", small, "--json").json
    assert late["start"]["middle"] > late["now"] + 300  # first come, first served
    assert (late["gpus"], late["gpu_type"]) == (1, "cpu")
    assert "small would start about" in verbs("submit", "--dry-run", small).out
    held = job_file("held", "run: x", "hold: yes")
    assert "assumed: held is released at once\n" in verbs("submit", "--dry-run", held).err
    assert [one["id"] for one in verbs("list", "--json").json["jobs"]] == [one["id"] for one in before]


def test_what_would_be_under_another_policy_or_with_more_nodes(
    crowded: tuple[str, str], verbs: Stretto
) -> None:
    first, second = crowded
    found = verbs("whatif", "--add", "cpu:4", "--json").json
    starts = [
        {one["id"]: one["start"]["middle"] - found["now"] for one in found[side]["jobs"]}[second]
        for side in ("present", "changed")
    ]
    assert starts[0] > 300
    assert starts[1] < 5
    assert found["changed"]["mean_jct_s"]["middle"] < found["present"]["mean_jct_s"]["middle"]
    other = verbs("whatif", "--policy", "srtf", "--json").json
    assert (other["present"]["policy"], other["changed"]["policy"]) == ("fifo", "srtf")
    header, *rows = verbs("whatif").table
    assert [row[0] for row in rows[:2]] == [first, second]
    assert header == ["id", "name", "starts", "ends", "jct"]


def test_what_would_be_without_some_of_the_jobs(crowded: tuple[str, str], verbs: Stretto) -> None:
    first, second = crowded
    found = verbs("whatif", "--without", first, "--json").json
    assert [job["id"] for job in found["changed"]["jobs"]] == [second]
    assert found["changed"]["jobs"][0]["start"]["middle"] - found["now"] < 5
    both = verbs("whatif", "--without", first, "--without", second, "--json").json
    assert both["changed"]["jobs"] == []


def test_what_would_be_with_a_job_more(crowded: tuple[str, str], verbs: Stretto, job_file: JobFile) -> None:
    more = job_file("more", "run: 'true'", "resources: {accelerators: 1}", "expected_time: 5m")
    found = verbs("whatif", "--job", more, "--json").json
    assert [one["id"] for one in found["changed"]["jobs"]] == [*crowded, "new"]
    assert [one["id"] for one in found["present"]["jobs"]] == list(crowded)
