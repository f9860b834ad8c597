"""The verbs for nodes, queues, usage and tokens, and `top`."""

import csv
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stretto.demo.own_service import OwnService

from ..ran import Stretto
from .conftest import reaches, waits_for

pytestmark = pytest.mark.processes


@pytest.mark.slow
def test_a_cordoned_node_takes_nobody_until_it_is_open_again(verbs: Stretto, service: OwnService) -> None:
    node = verbs("nodes", "list", "--json").json["nodes"][0]["name"]
    assert verbs("nodes", "cordon", node, "--why", "a disk").status == 0
    header, row = verbs("nodes", "list").table
    assert dict(zip(header, row, strict=True)) | {"state": "cordoned", "why": "a disk"} == dict(
        zip(header, row, strict=True)
    )
    job = verbs("submit", "--", "true").out.strip()
    assert verbs("explain", job, "--json").json["gpus"] == 0
    with service.client() as client:
        waits_for(client, job, "NODES_CLOSED")
        shown = client.describe(job)
    assert (shown["reason"], shown["evidence"]) == ("NODES_CLOSED", f"{node}: a disk")
    assert verbs("nodes", "uncordon", node).out == f"node {node}: up\n"
    with service.client() as client:
        assert client.wait(job)["state"] == "COMPLETED"


def test_nodes_and_queues_alone_are_listed(verbs: Stretto) -> None:
    assert verbs("nodes").table[0] == verbs("nodes", "list").table[0]
    assert verbs("queues").status == 0


@pytest.mark.parametrize(
    ("group", "key"),
    [
        ("nodes", "nodes"),
        ("queues", "queues"),
        ("shares", "shares"),
        ("priority-classes", "priority_classes"),
    ],
)
def test_a_group_alone_takes_the_options_of_its_list(
    verbs: Stretto, tmp_path: Path, group: str, key: str
) -> None:
    token = verbs("token", "create", f"of-{group}").out
    (tmp_path / "token").write_text(token)
    for options in (["--json"], ["--token-file", "token", "--json"], ["list", "--json"]):
        done = verbs(group, *options)
        assert done.status == 0, done.err
        assert key in done.json
    assert verbs("token", "revoke", f"of-{group}").status == 0
    assert "Commands:" in verbs(group, "--help").out
    wrong = verbs(group, "--nonsense")
    assert (wrong.status, wrong.out, wrong.err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("weight", ["inf", "nan", "0", "1e7", "heavy"])
def test_the_weight_of_a_queue_is_a_finite_number(verbs: Stretto, weight: str) -> None:
    done = verbs("queues", "set", "heavy", "--weight", weight)
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert "weight" in done.err


def test_a_queue_without_a_name_is_no_parent(verbs: Stretto) -> None:
    done = verbs("queues", "set", "part", "--parent", "")
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1), done.err


def test_a_job_is_asked_for_by_its_id_or_by_the_name_of_ones_newest(
    verbs: Stretto, job_file: Callable[..., Path]
) -> None:
    path = job_file("cnn", "run: echo number $STRETTO_JOB_ID")
    older, newer = (verbs("submit", "--wait", "--json", path).json["id"] for _ in range(2))
    assert int(older) < int(newer)
    assert verbs("describe", "cnn", "--json").json["id"] == newer
    assert verbs("explain", "cnn", "--json").json["id"] == newer
    assert verbs("logs", "cnn").out == f"number {newer}\n"
    assert "ended" in verbs("events", "cnn").out
    array = job_file("sweep", "run: 'true'", "array: 0-2")
    assert verbs("submit", array).status == 0
    many = verbs("describe", "sweep")
    assert many.status == 2
    assert "sweep is an array of 3 jobs: expected one of" in many.err
    done = verbs("explain", "digits")
    assert (done.status, done.err) == (
        2,
        "stretto: no job 'digits', expected an id, or the name of a job of yours\n",
    )


def test_a_drained_node_is_left_by_who_runs_there(verbs: Stretto, service: OwnService) -> None:
    job = verbs("submit", "--", "sleep", "600").out.strip()
    node = verbs("nodes", "list", "--json").json["nodes"][0]["name"]
    with service.client() as client:
        reaches(client, job, "RUNNING")
        verbs("nodes", "drain", node)
        reaches(client, job, "PENDING")
        verbs("nodes", "uncordon", node)
        reaches(client, job, "RUNNING")


def test_a_queue_has_the_bounds_that_it_was_given(verbs: Stretto) -> None:
    verbs("queues", "set", "team", "--quota", 2, "--borrow", 1)
    header, *rows = verbs("queues", "list").table
    team = next(dict(zip(header, row, strict=True)) for row in rows if row[0] == "team")
    assert (team["quota"], team["borrows"], team["weight"]) == ("2", "1", "1")
    assert verbs("queues", "set", "team", "--quota", "few").status == 2


def test_a_queue_is_deleted_once_nothing_is_in_it(verbs: Stretto) -> None:
    verbs("queues", "set", "short-lived", "--quota", 0)
    verbs("queues", "set", "part", "--parent", "short-lived")
    refused = verbs("queues", "delete", "short-lived")
    said = "stretto: queue short-lived cannot be deleted: part is in it\n"
    assert (refused.status, refused.err) == (2, said)
    assert verbs("queues", "delete", "part", "--json").json == {"deleted": "part"}
    assert verbs("queues", "delete", "short-lived").out == "queue short-lived: deleted\n"
    assert "short-lived" not in verbs("queues", "list").out
    assert verbs("queues", "delete", "short-lived").status == 2


def test_a_reservation_is_listed_until_it_is_given_up(verbs: Stretto) -> None:
    node = verbs("nodes", "list", "--json").json["nodes"][0]
    done = verbs(
        "reserve", "set", "talk", "--end", "2h", "--start", "1h", "--node", node["name"], "--user", "bob"
    )
    assert done.status == 0, done.err
    (one,) = verbs("reserve", "list", "--json").json["reservations"]
    assert (one["name"], one["nodes"], one["user"]) == ("talk", [node["name"]], "bob")
    assert 7190 < one["end"] - one["start"] < 7210
    many = verbs(
        "reserve", "set", "more", "--end", "2h", "--gpus", 999, "--gpu-type", node["gpu_type"], "--user", "x"
    )
    assert (many.status, many.err.count("\n")) == (2, 1)
    assert verbs("reserve", "list").table[1][0] == "talk"
    assert verbs("reserve", "cancel", "talk").out == "reservation talk: given up\n"
    assert verbs("reserve", "list", "--json").json["reservations"] == []
    assert verbs("reserve", "cancel", "talk").status == 2


def test_usage_adds_up_by_user_and_queue(verbs: Stretto) -> None:
    verbs("submit", "--wait", "--", "true")
    by_user = {row["user"]: row for row in verbs("usage", "--json").json["usage"]}
    assert by_user["ada"]["jobs"] >= 1
    assert verbs("usage", "--by", "queue").table[0][0] == "queue"


def test_usage_is_split_by_day_and_has_a_price(verbs: Stretto) -> None:
    verbs("submit", "--wait", "--", "true")
    cpu = verbs("nodes", "list", "--json").json["nodes"][0]["gpu_type"]
    assert verbs("gpu-prices", "set", cpu, "3600", "--from", "2020-01-01").out == (
        f"{cpu}: 3600 per GPU-hour from 2020-01-01 on\n"
    )
    assert verbs("gpu-prices", "--json").json["gpu_prices"] == [
        {"gpu_type": cpu, "price": 3600.0, "from": "2020-01-01T00:00:00+00:00"}
    ]
    asked = ("usage", "--by", "user", "--by", "day", "--zone", "Europe/Berlin", "--from", "2020-01-01")
    (row, *_) = verbs(*asked, "--json").json["usage"]
    assert row["cost"] == pytest.approx(row["charged_gpu_seconds"])
    assert row["gpu_seconds"] == pytest.approx(
        sum(row[f"{use}_gpu_seconds"] for use in ("useful", "unsaved", "lost", "idle"))
    )
    header, first, *_ = list(csv.reader(verbs(*asked, "--csv").out.splitlines()))
    assert header[:3] == ["user", "period", "jobs"]
    assert float(first[header.index("gpu_seconds")]) == row["gpu_seconds"]
    for words, said in (
        (
            ("usage", "--zone", "Mars/Olympus"),
            "zone: expected a time zone like Europe/Berlin, got 'Mars/Olympus'",
        ),
        (("usage", "--from", "soon"), "from: expected a date or a time like 2026-11-01, got 'soon'"),
        (("usage", "--from", "2026-11-01T00:01"), "from: expected a time at a quarter of an hour"),
        (("usage", "--by", "day", "--by", "week"), "one period at most, got day, week"),
        (("usage", "--csv", "--json"), "--csv: expected without --json"),
        (("gpu-prices", "set", cpu, "-1"), "price: expected a number from 0"),
    ):
        ran = verbs(*words)
        assert (ran.status, ran.err.count("\n")) == (2, 1), ran.err
        assert said in ran.err


def test_usage_is_written_as_a_page_and_as_figures(
    verbs: Stretto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stretto.report.figure_file.find_spec", lambda name: None)
    verbs("submit", "--wait", "--", "true")
    ran = verbs("usage", "--by", "user", "--by", "day", "--out", "pages/u.html", "--figures", "drawn")
    assert (ran.status, ran.table[0][:2]) == (0, ["user", "day"]), ran.err
    assert "page: pages/u.html\n" in ran.err
    assert "figures: drawn\n" in ran.err
    assert "<h1>GPU time by user and day</h1>" in (tmp_path / "pages" / "u.html").read_text(encoding="utf-8")
    with (tmp_path / "drawn" / "usage.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["user"] for row in rows} >= {"ada"}
    assert {path.name for path in (tmp_path / "drawn").glob("*.svg")} >= {"held.svg", "over-time.svg"}
    for words, said in (
        (("--out", "page.txt"), "--out page.txt: expected the name of a file that ends in .html"),
        (("--figures", "pages/u.html"), "--figures pages/u.html: expected a directory, but"),
    ):
        refused = verbs("usage", *words)
        assert (refused.status, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert said in refused.err


def test_a_token_comes_from_a_file_and_has_an_end(verbs: Stretto, tmp_path: Path) -> None:
    made = verbs("token", "create", "carols", "--user", "carol", "--expires", "30d", "--json").json
    assert 0 < made["expires"] - time.time() <= 30 * 86_400
    (row,) = (row for row in verbs("token", "list").table if row[0] == "carols")
    assert row[4] == time.strftime("%Y-%m-%d %H:%M", time.localtime(made["expires"]))
    file = tmp_path / "token"
    file.write_text(f"{made['token']}\n")
    job = verbs("submit", "--token-file", str(file), "--json", "--", "true").json
    assert job["user"] == "carol"
    for words, said in (
        (("--token-file", str(tmp_path / "none")), "none: expected a file with a token: No such file"),
        (("--token-file", str(tmp_path)), "expected a file with a token: Is a directory"),
        (("--token-file", str(file), "--token", "other"), "expected it without --token"),
    ):
        ran = verbs("list", *words)
        assert ran.status == 2
        assert said in ran.err
        assert made["token"] not in ran.err
    wrong = verbs("token", "create", "x", "--expires", "soon")
    assert (wrong.status, wrong.err.count("\n")) == (2, 1)
    assert "--expires soon: expected a duration" in wrong.err
    wrong = verbs("token", "create", "x", "--scope", "write")
    assert (wrong.status, wrong.err) == (2, "stretto: --scope write: expected all, read or jobs\n")
    verbs("token", "revoke", "carols")


def test_a_token_opens_the_door_until_it_is_revoked(verbs: Stretto) -> None:
    token = verbs("token", "create", "bobs", "--user", "bob").out.strip()
    (row,) = (row for row in verbs("token", "list").table if row[0] == "bobs")
    assert row == ["bobs", "bob", "user", "all", "never", "never"]
    job = verbs("submit", "--token", token, "--json", "--", "true").json
    assert job["user"] == "bob"
    refused = verbs("token", "list", "--token", token)
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    verbs("token", "revoke", "bobs")
    revoked = verbs("list", "--token", token)
    assert revoked.status == 2
    assert "revoked" in revoked.err


def test_top_on_a_pipe_shows_nodes_and_jobs_once(
    verbs: Stretto, service: OwnService, job_file: Callable[..., Path]
) -> None:
    path = job_file("wide", "run: sleep 600", "resources: {accelerators: 3}")
    job = verbs("submit", path).out.strip()
    with service.client() as client:
        reaches(client, job, "RUNNING")
    table = verbs("top").table
    assert table[1][3] == "AAA·"
    assert table[3][:5] == ["A", job, "wide", "RUNNING", "3/3"]


def test_budgets_are_set_listed_and_deleted(verbs: Stretto) -> None:
    assert len(verbs("budgets").table) == 1  # the names of the columns
    done = verbs("budgets", "set", "ada-month", "--user", "ada", "--gpu-hours", "500", "--hold", "1")
    assert re.fullmatch(r"budget ada-month: \d+\.\d\d of 500 GPU-hours are used this month\n", done.out)
    header, row = verbs("budgets").table
    shown = dict(zip(header, row, strict=True))
    assert (shown["for"], shown["of"], shown["level"]) == ("user ada", "500 GPU-hours a month", "-")
    (listed,) = verbs("budgets", "--json").json["budgets"]
    assert (listed["warn"], listed["hold"], listed["running"]) == (0.8, 1.0, "go-on")
    for words, said in (
        (("x",), "expected one of --gpu-hours and --cost"),
        (("x", "--cost", "0"), "--cost 0: expected a number above 0, up to 1e12"),
        (("x", "--cost", "1", "--warn", "80%"), "--warn 80%: expected a share above 0, like 0.8, or never"),
        (("x", "--cost", "1", "--warn", "never"), "expected warn, hold or both, got neither"),
        (("x", "--cost", "1", "--zone", "Mars"), "zone: expected a time zone like Europe/Berlin, got 'Mars'"),
    ):
        ran = verbs("budgets", "set", *words)
        assert (ran.status, ran.err.count("\n")) == (2, 1), ran.err
        assert said in ran.err
    assert verbs("budgets", "delete", "ada-month").out == "budget ada-month: deleted\n"
    assert verbs("budgets", "delete", "ada-month").status == 2


def test_a_job_names_the_budget_that_warns(verbs: Stretto, service: OwnService) -> None:
    job = verbs("submit", "--", "sleep", "600").out.strip()
    with service.client() as client:
        reaches(client, job, "RUNNING")
        client.set_budget("tiny", {"gpu_hours": 1e-6, "period": "week", "warn": 0.5})
        assert client.describe(job)["budgets"][0].startswith("budget tiny: 0.0")
    (line,) = [line for line in verbs("describe", job).table if line[0] == "budgets"]
    assert re.fullmatch(r"budget tiny: \d\.\d\d of 1e-06 GPU-hours are used this week; until .* UTC", line[1])
    said = verbs("events").out
    assert "budget is at\ttiny: warn, 0.0" in said
    assert verbs("budgets", "delete", "tiny").status == 0
