"""`--constraints FILE`: what holds in a service whatever the policy is holds in simulations, too."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from .ran import Stretto

CLUSTER = "name: four\ngpu_types: {v100: {memory_gb: 32}}\nnodes: [{type: v100, gpus: 4}]\n"
TRACE = """job_id,submitted_s,gpus,duration_s,queue,user,priority_class,preemptible
a,0,2,600,research,ada,,yes
b,0,2,600,research,ada,,yes
c,1,2,600,prod,bob,urgent,yes
d,2,2,600,prod,bob,,no
"""
WORDS = ("-c", "four.yaml", "-t", "four.csv", "-p", "fifo")
QUEUES = """
queues:
  - {name: research, quota_gpus: 2, borrow_gpus: 2}
  - {name: prod, quota_gpus: 2}
priority_classes: [{name: urgent, value: 10}]
"""

CLASS = "priority_classes: [{name: urgent, value: 10}]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "four.yaml").write_text(CLUSTER)
    (tmp_path / "four.csv").write_text(TRACE)
    return tmp_path


def starts(folder: Path, stretto: Stretto, text: str) -> Mapping[str, float]:
    """When each job starts first; the run is also decided again."""
    (folder / "rules.yaml").write_text(text)
    ran = stretto("simulate", *WORDS, "--constraints", "rules.yaml", "--out", "out")
    assert ran.status == 0, ran.err
    again = stretto("simulate", "--from-log", "out")
    assert (again.status, "0 differ" in again.out) == (0, True)
    lines = [line.split(",") for line in (folder / "out" / "jobs.csv").read_text().splitlines()]
    return {line[0]: float(line[lines[0].index("first_start_s")]) for line in lines[1:]}


def test_a_class_goes_first_and_takes_what_was_borrowed(folder: Path, stretto: Stretto) -> None:
    assert starts(folder, stretto, QUEUES) == {"a": 0.0, "b": 0.0, "c": 1.0, "d": 601.0}


def test_a_class_that_never_preempts_waits_for_free_gpus(folder: Path, stretto: Stretto) -> None:
    text = "priority_classes: [{name: urgent, value: 10, preempts: never}]"
    assert starts(folder, stretto, text) == {"a": 0.0, "b": 0.0, "c": 600.0, "d": 600.0}


def test_a_default_class_is_that_of_jobs_that_say_nothing(folder: Path, stretto: Stretto) -> None:
    text = "priority_classes: [{name: urgent, value: 0}, {name: usual, value: 5, default: true}]"
    found = starts(folder, stretto, text)
    assert found == {"a": 0.0, "b": 0.0, "c": 600.0, "d": 600.0}


def test_priorities_can_be_ignored(folder: Path, stretto: Stretto) -> None:
    text = "priorities: ignored\npriority_classes: [{name: urgent, value: 10}]"
    assert starts(folder, stretto, text) == {"a": 0.0, "b": 0.0, "c": 600.0, "d": 600.0}


def test_a_reservation_keeps_gpus_for_its_user(folder: Path, stretto: Stretto) -> None:
    text = "reservations: [{name: demo, end: 900, gpu_type: v100, gpus: 2, user: bob}]\n"
    text += "priority_classes: [{name: urgent, value: 0}]"
    assert starts(folder, stretto, text) == {"a": 0.0, "b": 600.0, "c": 1.0, "d": 601.0}


def test_jobs_that_name_no_queue_are_in_the_default_queue(folder: Path, stretto: Stretto) -> None:
    nameless = TRACE.replace("research", "").replace("prod", "").replace("urgent", "")
    (folder / "four.csv").write_text(nameless)
    text = "queues: [{name: default, quota_gpus: 2}, {name: prod, quota_gpus: 2}]"
    assert starts(folder, stretto, text) == {"a": 0.0, "b": 600.0, "c": 1200.0, "d": 1800.0}


def test_the_default_queue_has_what_is_left_over_and_gives_back_the_rest(
    folder: Path, stretto: Stretto
) -> None:
    nameless = TRACE.replace("research", "").replace("urgent", "").replace("d,2,2,600,prod", "d,2,2,600,")
    (folder / "four.csv").write_text(nameless)
    found = starts(folder, stretto, "queues: [{name: prod, quota_gpus: 2}]")
    assert found == {"a": 0.0, "b": 0.0, "c": 1.0, "d": 601.0}, "b gives back what it borrowed"


def test_users_of_a_queue_are_those_that_the_file_names(folder: Path, stretto: Stretto) -> None:
    text = QUEUES.replace("{name: prod, quota_gpus: 2}", "{name: prod, quota_gpus: 2, users: [bob]}")
    assert starts(folder, stretto, text) == {"a": 0.0, "b": 0.0, "c": 1.0, "d": 601.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queus: []", "unknown key 'queus', did you mean 'queues'?"),
        ("queues: [{quota_gpus: 1}]", "queues, entry 1: missing name"),
        ("queues: [{name: a, quota_gpus: -1}]", "quota_gpus must be a whole number >= 0, got -1"),
        ("queues: [{name: a}, {name: a}]", "entry 2: name must differ from the others, got 'a'"),
        ("reservations: [{name: a, gpu_type: v100, gpus: 1}]", "reservations, entry 1: missing end"),
        (
            "reservations: [{name: a, end: 9, gpu_type: v99, gpus: 1, user: u}]",
            "expected one of v100, got 'v99'",
        ),
        ("sizes: {nobody: [1]}", "sizes: four has no job 'nobody'"),
        ("sizes: {a: []}", "a must be a list of whole numbers >= 1, got []"),
        ("priority_classes: [{name: urgent}]", "value must be a whole number, got None"),
        (
            "priority_classes: [{name: urgent, value: 1, preempts: no}]",
            "preempts must be a text, got False",
        ),
        (
            "priority_classes: [{name: x, value: 1}]",
            "job c: unknown priority class 'urgent', expected one of x",
        ),
        (
            CLASS + "queues: [{name: prod, users: [eve, dan]}]",
            "job c: queue prod is for eve and dan, not for bob",
        ),
        (
            CLASS + "queues: [{name: lab, users: []}, {name: prod, parent: lab}]",
            "job c: queue prod is for nobody, not for bob",
        ),
        ("queues: [{name: prod, users: 3}]", "entry 1: users must be"),
        ("priorities: maybe", "priorities must be preempt or ignored, got 'maybe'"),
        ("[]", "expected keys and values, got []"),
    ],
)
def test_what_is_wrong_is_one_line(folder: Path, stretto: Stretto, text: str, said: str) -> None:
    (folder / "rules.yaml").write_text(text)
    ran = stretto("simulate", *WORDS, "--constraints", "rules.yaml", "--out", "out")
    assert (ran.status, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert said in ran.err
    assert not (folder / "out").exists()


def test_a_comparison_keeps_to_them(folder: Path, stretto: Stretto) -> None:
    (folder / "rules.yaml").write_text(QUEUES)
    words = [*WORDS[:4], "--policies", "fifo,srtf", "--constraints", "rules.yaml", "--out", "out", "--json"]
    ran = stretto("compare", *words, "--workers", 1)
    assert ran.status == 0, ran.err
    assert [run["makespan_s"] > 1200 for run in ran.json["runs"]] == [True, True]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(f"fair_share: {{half_life_s: 1{'0' * 400}}}", "half_life_s must be", id="400 digits"),
        pytest.param(f"fair_share: {{half_life_s: 1{'0' * 5000}}}", "4300 digits", id="5000 digits"),
        pytest.param(f"{BOMB}queues: *h", "unknown key 'a'", id="aliases"),
        pytest.param(f"queues: [{{name: {BOMB.splitlines()[0][3:]}}}]", "name must be a text", id="a list"),
        pytest.param("fair_share: {half_life_s: 2026-02-30}", "rules.yaml: day ", id="no such day"),
    ],
)
def test_a_value_that_nobody_meant_is_one_line(folder: Path, stretto: Stretto, text: str, said: str) -> None:
    (folder / "rules.yaml").write_text(text)
    ran = stretto("simulate", *WORDS, "--constraints", "rules.yaml")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert said in ran.err
    assert len(ran.err) < 1000


def test_a_list_of_lists_of_lists_is_shown_in_short(folder: Path, stretto: Stretto) -> None:
    nested = "[" * 6 + "x" + "]" * 6
    (folder / "rules.yaml").write_text(f"queues: [{nested}]")
    ran = stretto("simulate", *WORDS, "--constraints", "rules.yaml")
    assert "queues, entry 1: expected keys and values, got [[[[...]]]]" in ran.err


@pytest.mark.parametrize("option", ["--constraints", "-c"])
def test_a_file_without_an_end_is_not_read_to_it(folder: Path, stretto: Stretto, option: str) -> None:
    with (folder / "long.yaml").open("wb") as file:
        file.truncate((16 << 20) + 1)
    words = [*WORDS[2:], *(() if option == "-c" else WORDS[:2]), option, "long.yaml"]
    ran = stretto("simulate", *words)
    assert (ran.status, ran.err) == (2, "stretto: long.yaml: expected at most 16 MiB\n")
