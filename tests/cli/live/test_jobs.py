"""The verbs for jobs, spoken with a real service."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interrupts import heed_interrupts

from stretto.cli import completion
from stretto.demo.own_service import OwnService, until

from ..ran import Stretto
from .conftest import reaches, waits_for

pytestmark = pytest.mark.processes

JobFile = Callable[..., Path]


@pytest.mark.parametrize(
    ("script", "status", "state"),
    [
        pytest.param("exit 0", 0, "COMPLETED", id="a job that ends well"),
        pytest.param("exit 3", 3, "FAILED", id="a job that fails"),
        pytest.param("kill -SEGV $$", 128 + 11, "FAILED", id="a job that a signal ended"),
    ],
)
def test_who_waits_leaves_with_the_status_of(script: str, status: int, state: str, verbs: Stretto) -> None:
    ran = verbs("submit", "--wait", "--json", "--", "sh", "-c", script)
    assert (ran.status, ran.json["state"]) == (status, state)


@pytest.mark.parametrize("how", ["--wait", "--watch"])
def test_who_is_interrupted_while_waiting_knows_what_goes_on(
    how: str, verbs: Stretto, service: OwnService
) -> None:
    command = [sys.executable, "-m", "stretto.cli.app", "submit", how, "--", "sleep", "600"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed_interrupts
    ) as waiting:
        assert waiting.stdout is not None
        job = waiting.stdout.readline().strip()
        with service.client() as client:
            reaches(client, job, "RUNNING")
            waiting.send_signal(signal.SIGINT)
            _, said = waiting.communicate(timeout=60)
            assert waiting.returncode == 130
            assert f"job {job} goes on; stretto cancel {job} ends it\n" in said
            assert client.describe(job)["state"] == "RUNNING"


def test_what_happens_is_said_while_watching(verbs: Stretto) -> None:
    ran = verbs("submit", "--watch", "--", "sh", "-c", "exit 5")
    assert ran.status == 5
    said = [line.partition(": ")[2].split()[0] for line in ran.err.splitlines()]
    assert said[-1] == "FAILED"
    assert ran.out.strip().isdecimal()


def test_a_list_on_a_pipe_has_a_line_for_every_job(
    verbs: Stretto, service: OwnService, job_file: JobFile
) -> None:
    first = job_file("first", "run: sleep 600", "resources: {accelerators: 3}", "expected_time: 1h")
    second = job_file("second", "run: sleep 600", "resources: {accelerators: 2}")
    ids = [verbs("submit", path).out.strip() for path in (first, second)]
    with service.client() as client:
        reaches(client, ids[0], "RUNNING")
        waits_for(client, ids[1], "NO_FREE_GPUS")
    header, *rows = verbs("list").table
    found = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert [found[one]["gpus"] for one in ids] == ["3/3", "0/2"]
    assert found[ids[0]]["user"] == "ada"
    assert found[ids[0]]["ends"] != "-"
    assert found[ids[1]]["state"] == "PENDING"
    assert "GPUs" in found[ids[1]]["why"]
    as_json = {one["id"]: one for one in verbs("list", "--json").json["jobs"]}
    assert as_json[ids[1]]["reason"] == "NO_FREE_GPUS"
    assert as_json[ids[0]]["left_s"] == pytest.approx(3600, abs=30)


def test_a_job_is_held_released_scaled_requeued_and_cancelled(
    verbs: Stretto, service: OwnService, job_file: JobFile
) -> None:
    path = job_file("much", "run: sleep 600", "elastic: {min: 1, max: 2}")
    job = verbs("submit", path).out.strip()
    with service.client() as client:
        reaches(client, job, "RUNNING")
        assert verbs("scale", job, "--min", 1, "--max", 3, "--json").json["gpus_max"] == 3
        assert verbs("requeue", job).status == 0
        assert verbs("hold", job, "--json").json["reason"] == "HELD"
        reaches(client, job, "SUSPENDED")
        assert "held until it is released" in verbs("describe", job).out
        verbs("release", job)
        reaches(client, job, "RUNNING")
        verbs("cancel", job)
        assert client.wait(job)["state"] == "CANCELLED"
    again = verbs("cancel", job)
    assert (again.status, again.err.count("\n")) == (2, 1)
    assert "CANCELLED" in again.err


def test_the_last_lines_of_a_log_are_shown_alone(verbs: Stretto, service: OwnService) -> None:
    job = verbs("submit", "--wait", "--json", "--", "sh", "-c", "echo one; echo two; echo three").json["id"]
    assert verbs("logs", job, "--tail", 2).out == "two\nthree\n"
    assert verbs("logs", job, "--tail", 2, "-f").out == "two\nthree\n"
    assert verbs("logs", job, "--tail", 0).out == ""
    with service.client() as client:
        assert "".join(client.log(job, tail=1)) == "three\n"
    ran = verbs("exec", job, "-it", "--", "true")
    assert (ran.status, ran.err) == (2, f"stretto: job {job} does not run\n")


def test_one_file_is_submitted_under_several_names(verbs: Stretto, job_file: JobFile) -> None:
    path = job_file("usual", "run: 'true'")
    other = verbs("submit", "--wait", path, "--name", "seed-2", "--json").json
    assert (other["name"], other["state"]) == ("seed-2", "COMPLETED")
    assert verbs("describe", "seed-2", "--json").json["id"] == other["id"]
    assert verbs("submit", "--dry-run", path, "--name", "seed-3").out.startswith("seed-3 would start")
    assert verbs("submit", "--wait", path, "--json").json["name"] == "usual"
    wrong = verbs("submit", path, "--name", "seed 4")
    assert (wrong.status, wrong.err.count("\n")) == (2, 1)


def test_several_files_are_submitted_together_each_by_itself(
    verbs: Stretto, job_file: JobFile, tmp_path: Path
) -> None:
    one, other = job_file("one", "run: 'true'"), job_file("other", "run: exit 3")
    ran = verbs("submit", "--wait", one, other)
    assert (ran.status, len(ran.out.split())) == (3, 2)
    wrong = job_file("wrong", "resources: 3")
    ran = verbs("submit", one, wrong)
    assert (ran.status, len(ran.out.split())) == (2, 1)
    assert ran.err == f"{wrong}: missing run, the command to run\n"
    assert [each["status"] for each in verbs("submit", one, wrong, "--json").json["jobs"]] == [201, 422]
    missing = verbs("submit", one, tmp_path / "none.yaml")
    assert (missing.status, missing.out) == (2, "")
    assert verbs("submit", one, other, "--dry-run").status == 2


def test_a_job_that_failed_and_runs_again_says_so(verbs: Stretto, job_file: JobFile, tmp_path: Path) -> None:
    mark, began_s = tmp_path / "failed-once", time.time()
    path = job_file("again", f"run: test -e {mark} || {{ touch {mark}; exit 3; }}", "restart: {max: 1}")
    done = verbs("submit", "--wait", path, "--json").json
    assert done["state"] == "COMPLETED"
    said = dict(line.split("\t", 1) for line in verbs("describe", done["id"]).out.splitlines())
    assert re.fullmatch(r"\d\d:\d\d", said["submitted"])
    assert re.fullmatch(r"\d\d:\d\d", said["ended"])
    described = verbs("describe", done["id"], "--json").json
    assert 0 < described["ended_unix_s"] - described["submitted_unix_s"] < time.time() - began_s + 1
    assert said["attempts"] == "2, 1 failed"
    assert said["attempt 2"].endswith(f": attempt 1 failed: worker {done['id']}.1.0 ended with status 3")


def test_a_job_that_is_submitted_held_waits_for_its_release(verbs: Stretto, service: OwnService) -> None:
    job = verbs("submit", "--hold", "--", "true").out.strip()
    after = verbs("submit", "--", "true").out.strip()
    with service.client() as client:
        assert client.wait(after)["state"] == "COMPLETED"
        assert [client.describe(job)[key] for key in ("state", "reason", "attempt")] == ["PENDING", "HELD", 0]
        assert "released" in verbs("explain", job).out
        verbs("release", job)
        assert client.wait(job)["state"] == "COMPLETED"


def test_holding_a_job_file_is_its_own_affair(verbs: Stretto, job_file: JobFile) -> None:
    ran = verbs("submit", "--hold", path := job_file("free", "run: true"))
    assert (ran.status, ran.err) == (2, f"stretto: --hold: is for commands; expected it in {path}\n")


def test_logs_are_followed_to_the_end_of_the_job(verbs: Stretto) -> None:
    job = verbs("submit", "--", "sh", "-c", "echo one; sleep 0.3; echo two").out.strip()
    assert verbs("logs", "-f", job).out == "one\ntwo\n"
    assert verbs("logs", job, "--json").json["text"] == "one\ntwo\n"


def test_logs_of_every_attempt_can_be_read(verbs: Stretto, service: OwnService, job_file: JobFile) -> None:
    run = "run: echo attempt $STRETTO_RESTARTS; [ $STRETTO_RESTARTS = 1 ] || sleep 600"
    job = verbs("submit", job_file("twice", run)).out.strip()
    with service.client() as client:
        reaches(client, job, "RUNNING")
        until(lambda: "".join(client.log(job)))
        following = client.log(job, follow=True)
        first = next(following)
        verbs("requeue", job)
        assert "".join([first, *following]) == "attempt 0\nattempt 1\n"
    assert verbs("logs", job, "--attempt", 1).out == "attempt 0\n"
    assert verbs("logs", job).out == "attempt 1\n"


def test_events_tell_the_life_of_a_job(verbs: Stretto) -> None:
    job = verbs("submit", "--wait", "--", "sleep", "0.5").out.strip()
    kinds = [line.split("\t")[2] for line in verbs("events", job).out.splitlines()]
    assert (kinds[0], kinds[-1]) == ("submitted", "ended")
    assert "processes run" in kinds
    everything = verbs("events", "--json").out.splitlines()
    assert len(everything) > len(kinds)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param("describe 999", "999", id="an unknown job"),
        pytest.param("logs a/b", "a/b", id="a path instead of a job"),
        pytest.param("submit absent.yaml", "absent.yaml", id="a file that is not there"),
        pytest.param("submit", "--interactive", id="nothing to submit"),
        pytest.param("usage --by team", "team", id="an unknown column"),
        pytest.param("whatif --add a100", "a100:8x2", id="nodes without GPUs"),
        pytest.param("whatif --without 999", "999", id="a job to be without that is not there"),
        pytest.param("whatif --policy sai", "sai", id="an unknown policy"),
        pytest.param(
            "whatif --policy evil.py:Evil", "evil.py", id="a policy that would be code in the service"
        ),
        pytest.param("token create x --role king", "king", id="an unknown role"),
        pytest.param("list --url nowhere", "nowhere", id="no address"),
    ],
)
def test_wrong_words_are_one_line_and_status_2(words: str, said: str, verbs: Stretto) -> None:
    ran = verbs(*words.split())
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err


def test_no_service_is_one_line_and_a_status_of_its_own(verbs: Stretto) -> None:
    ran = verbs("list", "--url", "http://127.0.0.1:9")
    assert (ran.status, ran.err.count("\n")) == (69, 1)
    assert "http://127.0.0.1:9" in ran.err


def test_an_array_is_cancelled_by_its_name_and_its_tasks_know_which_they_are(
    verbs: Stretto, service: OwnService, job_file: Callable[..., Path]
) -> None:
    path = job_file("tasks", "run: test $STRETTO_ARRAY_INDEX != 3 && sleep 600", "array: 3-5%2")
    array = verbs("submit", path).out.strip()
    with service.client() as client:
        assert client.wait(f"{array}_3")["state"] == "FAILED"
        assert {one["index"] for one in client.jobs() if one["array"] == array} == {4, 5}
        assert verbs("cancel", "tasks").out == f"array {array}: 2 jobs\n"
        assert client.wait(f"{array}_5")["state"] == "CANCELLED"


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        pytest.param(["run: 'true'", "workdir: /no/such/place"], 126, "/no/such/place", id="its directory"),
        pytest.param(["run: no-such-program"], 127, "status 127", id="its program"),
        pytest.param(["run: 'true'", "setup: exit 9"], 9, "status 9", id="its setup"),
    ],
)
def test_a_job_that_cannot_be_set_up_fails_at_once_for_want_of(
    lines: list[str], status: int, said: str, verbs: Stretto, job_file: Callable[..., Path]
) -> None:
    ran = verbs("submit", "--wait", "--json", job_file("broken", *lines))
    found = ran.json
    assert (ran.status, found["state"], found["attempt"]) == (status, "FAILED", 1)
    assert said in found["evidence"]
    if "setup" in lines[-1]:
        assert "setup failed with status 9" in verbs("logs", found["id"]).out


def test_list_shows_the_newest_of_those_that_have_ended_first_and_no_more_than_asked(verbs: Stretto) -> None:
    names = [verbs("submit", "--json", "--", "true").json["id"] for _ in range(3)]
    for name in names:
        verbs("cancel", name)
    rows = verbs("list", "--ended", "--last", "2").table[1:]
    assert [row[0] for row in rows] == names[:0:-1]
    shown = verbs("list", "--ended", "--json").json["jobs"]
    assert [one["id"] for one in shown[:3]] == names[::-1]


def test_verbs_take_several_jobs_ranges_states_and_all(verbs: Stretto, service: OwnService) -> None:
    ids = [verbs("submit", "--gpus", 4, "--", "sleep", "600").out.strip() for _ in range(6)]
    with service.client() as client:
        reaches(client, ids[0], "RUNNING")

        def states() -> dict[str, str]:
            return {one["id"]: one["state"] for one in client.jobs(ended=True)}

        held = verbs("hold", f"{ids[1]}-{ids[2]}")
        assert [line.split()[1] for line in held.out.splitlines()] == ids[1:3]
        assert held.out.count("held") == 2
        twice = verbs("cancel", ids[5], "no-such-job", ids[4], "--json")
        assert twice.status == 2
        assert [one["id"] for one in twice.json["changed"]] == [ids[5], ids[4]]
        assert [one["job"] for one in twice.json["refused"]] == ["no-such-job"]
        assert "no-such-job" in twice.err
        asked = verbs("cancel", "--all")
        assert (asked.status, "expected --yes" in asked.err) == (2, True)
        assert states()[ids[3]] == "PENDING"
        assert verbs("cancel", "--state", "running", "--yes").status == 0
        until(lambda: states()[ids[0]] == "CANCELLED")
        assert verbs("cancel", "--all", "-y").status == 0
        until(lambda: {states()[one] for one in ids} == {"CANCELLED"})
    nothing = verbs("cancel", "--all", "--yes")
    assert (nothing.status, nothing.err.count("\n")) == (2, 1)


def test_a_shell_completes_ids_and_names_of_open_jobs(verbs: Stretto) -> None:
    first = verbs("submit", "--name", "training", "--hold", "--", "true").out.strip()
    assert (first, "training: PENDING") in completion.jobs("")
    assert completion.jobs("train") == [("training", f"job {first}: PENDING")]
    assert verbs("queues", "set", "research", "--quota", "2").status == 0
    assert completion.queues("res") == ["research"]
    (node, what), *_ = completion.nodes("")
    assert what == "4 x cpu"
    assert completion.nodes(node[:1]) == [(node, what)]


SAYS = """
import json, os, time, urllib.request

worker = os.environ["STRETTO_WORKER_ID"]
points = [[1, 1, size, 1, 0.01 + 0.01 * size, 0.01 + 0.01 * size] for size in (1, 2, 4)]
said = {
    "worker": worker,
    "points": points,
    "requests": {worker: {"answered": 4210, "late": 31, "p50_s": 0.084, "p99_s": 0.1664}},
}
url = os.environ["STRETTO_URL"] + "/api/v1/worker/report"
headers = {"authorization": "Bearer " + os.environ["STRETTO_TOKEN"], "content-type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url, json.dumps(said).encode(), headers)).close()
time.sleep(600)
"""


def test_describe_says_what_a_job_that_serves_promises_and_what_came_of_it(
    verbs: Stretto, job_file: JobFile, tmp_path: Path
) -> None:
    (tmp_path / "says.py").write_text(SAYS, encoding="utf-8")
    file = job_file(
        "served",
        f"run: {sys.executable} says.py",
        "purpose: serving",
        "serving: {latency: 200ms, requests_per_s: 150}",
        "elastic: {min: 1, max: 4}",
    )
    job = verbs("submit", file).out.strip()
    until(lambda: "late" in verbs("describe", job).out, what="its worker has said how it serves")
    lines = [line.split("\t") for line in verbs("describe", job).out.splitlines()]
    said = {line[0]: line[1] for line in lines}
    assert said["promises"] == "200 ms at 150 requests/s"
    assert said["keep it on cpu"] == "2 or more (batches of 9 in 100 ms)"
    assert said["latency"] == "p50 84 ms, p99 166 ms; 31 of 4210 requests late"
    assert verbs("describe", job, "--json").json["serving"]["late"] == 31
