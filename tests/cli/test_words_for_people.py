"""What a terminal shows where it is narrow, and events in words."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.cli.ran import Stretto

from stretto import __version__
from stretto.cli.cluster import table_of_nodes
from stretto.cli.events import aligned, cells_of
from stretto.cli.jobs import nothing_listed
from stretto.cli.printing import (
    CONTROL,
    harmless,
    say,
    shortened,
    show_cells,
    show_line,
    show_table,
    table_of,
)
from stretto.cli.service import again_and_again
from stretto.cli.shares import place_of
from stretto.client import ServiceError
from stretto.demo.scene import SCENE, folder_of
from stretto.model import InputError
from stretto.service.state.event_words import WORDS, said_of, what_of
from stretto.service.state.events import Event


def shown(header: list[str], rows: list[list[str]], width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from rich.console import Console

    monkeypatch.setenv("COLUMNS", str(width))
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(table_of("", header, rows, tight="name"))
    return [line.rstrip() for line in capture.get().splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("text", "width", "said"),
    [
        ("short", 9, "short"),
        ("resnet50-sweep-lr1", 18, "resnet50-sweep-lr1"),
        ("resnet50-sweep-lr1", 11, "resne…p-lr1"),
        ("resnet50-sweep-lr1", 10, "resne…-lr1"),
    ],
)
def test_a_name_that_is_too_long_keeps_both_its_ends(text: str, width: int, said: str) -> None:
    assert shortened(text, width) == said


def test_names_give_way_so_that_every_job_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    header = ["id", "name", "state", "why"]
    rows = [
        [str(index), f"a-name-of-sixty-characters-{'x' * 30}-{index}", "RUNNING", "-"] for index in range(3)
    ]
    lines = shown(header, rows, 50, monkeypatch)
    assert len(lines) == 2 + 3  # header, rule, and a line each
    assert all(line.split()[1].endswith(f"-{index}") for index, line in enumerate(lines[2:]))
    assert max(map(len, lines)) <= 50
    wide = shown(header, rows, 120, monkeypatch)
    assert [line.split()[1] for line in wide[2:]] == [row[1] for row in rows]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"kind": "WorkerReady", "worker": "7.1.0"}, "7.1.0"),
        ({"kind": "WorkerStopped", "worker": "7.1.0"}, "7.1.0"),
        ({"kind": "WorkerEnded", "worker": "7.1.0", "status": 3, "why": ""}, "7.1.0 with status 3"),
        (
            {"kind": "WorkerEnded", "worker": "7.1.0", "status": 3, "why": "no room"},
            "7.1.0 with status 3: no room",
        ),
        (
            {"kind": "Joined", "worker": "7.1.0", "number": 2, "step": 563, "lost_s": 0.0873},
            "7.1.0 is in generation 2, from step 563, 0.09 s lost",
        ),
        (
            {"kind": "Joined", "worker": "7.1.0", "number": 1, "step": 0, "lost_s": 0.0},
            "7.1.0 is in generation 1, from step 0",
        ),
        ({"kind": "StoreOpened", "number": 2, "address": "n0:3000"}, "of generation 2: n0:3000"),
        ({"kind": "Generation", "number": 2, "workers": ["7.1.0"]}, "generation 2: one worker trains"),
        ({"kind": "Generation", "number": 3, "workers": []}, "generation 3: all workers save and leave"),
    ],
)
def test_what_one_worker_does_is_said_in_words(event: dict[str, Any], words: str) -> None:
    assert said_of(event) == words


def test_many_workers_are_told_of_by_the_first_the_last_and_their_number() -> None:
    names = [f"7.2.{index}" for index in range(16)]
    ran = {"seq": 9, "at_s": 3.0, "kind": "WorkersRan", "job": "7", "workers": names}
    assert said_of(ran) == "7.2.0 to 7.2.15 (16)"
    assert said_of({**ran, "workers": names[:2]}) == "7.2.0, 7.2.1"
    ends = [{"id": name, "status": 0} for name in names]
    assert said_of({"kind": "WorkersEnded", "workers": ends}) == "7.2.0 to 7.2.15 (16): all with status 0"
    ends[3]["status"] = 137
    assert (
        said_of({"kind": "WorkersEnded", "workers": ends})
        == "7.2.0 to 7.2.15 (16): 15 with status 0, 1 with status 137"
    )


def test_an_event_is_one_line_whoever_reads_it() -> None:
    event = {"seq": 9, "at_s": 3.0, "kind": "Checkpointed", "job": "7", "step": 40, "path": "x"}
    assert cells_of(event) == ["9", "3.0s", "job 7: checkpoint", "at step 40: x"]
    assert cells_of(event, "7")[2] == "checkpoint"
    assert aligned(cells_of(event)) == "     9  3.0s      job 7: checkpoint         at step 40: x"


def test_an_event_of_every_kind_has_words() -> None:
    kinds = {kind.__name__ for kind in all_kinds(Event)}
    assert {"Submitted", "Decided", "WorkersWanted"} <= kinds
    for kind in kinds:
        words = what_of({"kind": kind})
        assert words == words.strip() != ""
        assert not re.search("[a-z][A-Z]", words), f"{kind} is shown by its name"
    assert set(WORDS) <= kinds, "words for a kind that there is not"


def all_kinds(kind: type[Event]) -> list[type[Event]]:
    return [one for below in kind.__subclasses__() for one in (below, *all_kinds(below))]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"kind": "Held", "held": True}, "held"),
        ({"kind": "Held", "held": False}, "released"),
        ({"kind": "NodeCordoned", "closed": True}, "node is cordoned"),
        ({"kind": "NodeCordoned", "closed": True, "drain": True}, "node is drained"),
        ({"kind": "NodeCordoned", "closed": False}, "node is open"),
        ({"kind": "SomethingNewHappened"}, "something new happened"),
    ],
)
def test_an_event_says_what_happened(event: dict[str, object], words: str) -> None:
    assert what_of(event) == words


EVIL = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202egnp.exe\r\n"


def test_control_characters_of_a_job_never_reach_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show_line(f"checkpoint {EVIL}")
    show_cells(["checkpoint", EVIL])
    show_table("", ["what"], [[EVIL]])
    say(EVIL)
    printed = capsys.readouterr()
    for text in (*printed.out.split("\n"), *printed.err.split("\n")):
        assert not CONTROL.search(text.replace("\t", "")), repr(text)
    assert r"\x1b]0;PWNED\x07" in printed.out
    assert harmless("täglich 漢字 7 → 8") == "täglich 漢字 7 → 8"


def test_both_ways_of_asking_for_the_version(stretto: Stretto) -> None:
    assert stretto("--version").out == stretto("version").out == f"{__version__}\n"


def test_the_examples_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert all((folder_of(None) / entry.file).is_file() for entry in SCENE)
    with pytest.raises(InputError, match=SCENE[0].file):
        folder_of(tmp_path)


def test_what_is_shown_stays_while_the_service_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.cli.service.time.sleep", lambda seconds: None)
    answers: list[int | ServiceError] = [1, ServiceError("away"), ServiceError("away"), 2]

    def look() -> int:
        answer = answers.pop(0) if answers else ServiceError("gone")
        if isinstance(answer, ServiceError):
            raise answer
        return answer

    shown = again_and_again(look)
    assert [next(shown), next(shown)] == [1, 2]
    with pytest.raises(ServiceError, match="gone"):
        next(shown)


def test_a_clock_that_has_jumped_is_said_with_its_way_and_length() -> None:
    jump = {"seq": 3, "kind": "ClockSet", "at_s": 1.0, "boot": "b", "awake_s": 9.0}
    assert what_of(jump) == "the clocks are read"
    assert said_of({**jump, "jumped_s": 0.0}) == ""
    assert said_of({**jump, "jumped_s": 40 * 86_400.0}) == "the time of day has jumped ahead by 40.0 d"
    assert said_of({**jump, "jumped_s": -7200.0}) == "the time of day has jumped back by 2.0 h"


def test_a_terminal_shows_a_line_instead_of_a_table_without_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_table("", ["id", "name"], [], none="no jobs")
    assert capsys.readouterr() == ("id\tname\n", "")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_table("", ["id", "name"], [], none="no jobs")
    assert capsys.readouterr() == ("", "no jobs\n")


@pytest.mark.parametrize(
    ("everybody", "ended", "said"),
    [
        (False, False, "no open jobs of yours: see also --all and --ended"),
        (True, False, "no open jobs: see also --ended"),
        (False, True, "no jobs of yours: see also --all"),
        (True, True, "no jobs"),
    ],
)
def test_where_there_are_no_jobs_it_says_which_and_how_to_see_others(
    everybody: bool, ended: bool, said: str
) -> None:
    assert nothing_listed(everybody, ended) == said


def test_shares_stand_below_their_queue_on_a_terminal_and_as_paths_on_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ada = {"name": "ada", "queues": ["research", "speech"]}
    assert place_of(ada) == "research/speech/ada"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert place_of(ada) == "    ada"
    assert place_of({"name": "", "queues": []}) == "(nobody)"


def test_where_nodes_are_in_the_network_is_a_column_if_it_is_known_of_any() -> None:
    node = {"name": "n0", "gpu_type": "h100", "gpus": 8, "free": 8, "others": 0, "up": True, "jobs": {}}
    node |= {"lender": "", "on_loan": False, "drained": False, "closed": False, "why": ""}
    plain = {**node, "zone": "", "rack": "", "nvlink_domain": ""}
    assert "place" not in table_of_nodes([plain])[0]
    there = {**node, "name": "n1", "zone": "a", "rack": "r7", "nvlink_domain": "7f3c.1"}
    header, rows = table_of_nodes([plain, there])
    assert header[-1] == "place"
    assert [row[-1] for row in rows] == ["-", "zone a, rack r7, nvlink 7f3c.1"]


def test_reports_of_progress_are_counted_among_events_and_shown_on_demand(
    monkeypatch: pytest.MonkeyPatch, stretto: Stretto
) -> None:
    told = [{"seq": number, "at_s": 1.0 * number, "kind": "Reported", "job": "7"} for number in range(1, 4)]
    told.append({"seq": 4, "at_s": 9.0, "kind": "Joined", "job": "7"})

    class Answers:
        def events(self, job: str, after: int, follow: bool) -> list[dict[str, object]]:
            return told[after:]

    monkeypatch.setattr("stretto.cli.events.service", lambda url, token: nullcontext(Answers()))
    short, whole = stretto("events", "7"), stretto("events", "7", "--progress")
    assert [line.split("\t")[0] for line in short.out.splitlines()] == ["4"]
    assert short.err == "without 3 reports of progress: --progress shows them\n"
    assert stretto("events", "7", "--after", "2").err.startswith("without 1 report of progress: ")
    assert ([line.split("\t")[0] for line in whole.out.splitlines()], whole.err) == ([*"1234"], "")
    assert len(stretto("events", "7", "--json").out.splitlines()) == 4
