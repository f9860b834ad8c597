"""What Hugging Face's Trainer says to Kubeflow, taken as reports."""

import os
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import Rig, a_rig, play

from stretto.service.http.routes.kubeflow import numbers_of, report_of
from stretto.service.reconcile.worker_env import start_of


def said(**metrics: object) -> dict[str, Any]:
    """A message as Trainer sends it."""
    return {
        "trainerStatus": {
            "lastUpdatedTime": "2026-01-01T00:00:00+00:00",
            "progressPercentage": 99,
            "estimatedRemainingSeconds": 7,
            "metrics": [{"name": name, "value": str(value)} for name, value in metrics.items()],
        }
    }


def test_what_is_left_follows_from_the_steps_since_the_resume() -> None:
    first = report_of({"current_step": 900.0, "total_steps": 1000.0}, {}, "j.2.0", 50.0)
    assert "left_s" not in first
    then = report_of({"current_step": 910.0, "total_steps": 1000.0}, first, "j.2.0", 70.0)
    assert then["left_s"] == 180.0  # 90 steps of 2 s, not of 20/910 s
    other = report_of({"current_step": 905.0, "total_steps": 1000.0}, then, "j.3.0", 99.0)
    assert "left_s" not in other


def test_loss_and_metric_are_found_among_what_trainer_logs() -> None:
    told = {
        "loss": "0.5",
        "eval_runtime": "3",
        "eval_loss": "0.7",
        "eval_accuracy": "0.9",
        "grad_norm": "nan",
    }
    report = report_of(numbers_of({**told, "current_epoch": "2.75"}), {}, "j.1.0", 0.0)
    metrics = {"eval_accuracy": 0.9}
    assert report == {"in_place": False, "loss": 0.5, "metric": 0.9, "metrics": metrics, "epoch": 2}


@pytest.mark.parametrize("since", [None, 3, ["j.1.0"], ["j.1.0", "x", 0.0], ["j.1.0", 1, None]])
def test_what_scripts_write_under_our_names_breaks_nothing(since: object) -> None:
    report = report_of({"current_step": 5.0, "total_steps": 1e300}, {"trainer_since": since}, "j.1.0", 1.0)
    assert report["trainer_since"] == ["j.1.0", 5, 1.0]


@pytest.mark.sqlite
def test_messages_become_reports_of_the_job_whose_token_they_bear(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            job = await rig.submit()
            await rig.until(lambda: rig.service.state.jobs[job].workers)
            record, path = rig.service.state.jobs[job], f"/api/v1/worker/kubeflow/{job}.1.0"
            async with rig.client(token=rig.service.context.token(job)) as worker:
                answer = await worker.post(path, json=said(total_steps=100))
                assert (answer.status_code, answer.json()) == (200, {"kept": True})
                assert record.uses_sdk is False
                at_once = await worker.post(path, json=said(current_step=1, total_steps=100))
                assert at_once.json() == {"kept": False}
                last = await worker.post(path, json=said(train_loss=0.25))
                assert last.json() == {"kept": True}
                assert record.learned.latest["loss"] == 0.25
                assert "finished" not in record.learned.latest
                assert (await worker.post(path, json={"trainerStatus": 3})).status_code == 422
                assert (await worker.post(f"{path}7", json=said())).status_code == 410
            async with rig.client(token="guessed") as stranger:
                assert (await stranger.post(path, json=said())).status_code == 401

    play(story)


@pytest.mark.processes
@pytest.mark.sqlite
def test_the_shell_leaves_the_token_where_trainer_looks_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path, decides=True) as rig:
            start = await start_of_a_job(rig, 'cat "$KUBEFLOW_TRAINER_SERVER_TOKEN"; exit 3')
            ended = subprocess.run(start.command, env={**os.environ, **start.env}, capture_output=True)
            assert (ended.returncode, ended.stdout.decode()) == (3, start.env["STRETTO_TOKEN"])
            kept = Path(start.env["KUBEFLOW_TRAINER_SERVER_TOKEN"])
            assert kept.stat().st_mode & 0o777 == 0o600

    play(story)


async def start_of_a_job(rig: Rig, run: str) -> Any:
    job = await rig.submit(text=f"run: {run!r}\nname: small")
    await rig.until(lambda: rig.service.state.jobs[job].workers)
    record = rig.service.state.jobs[job]
    [worker] = record.workers.values()
    return start_of(rig.service.state, record, worker, rig.service.context)


@pytest.mark.sockets
@pytest.mark.sqlite
@pytest.mark.torch
def test_trainer_itself_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    integrations = pytest.importorskip("transformers.integrations", reason="transformers is not installed")

    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.listening() as (host, port):
            start = await start_of_a_job(rig, "true")
            token = tmp_path / "token"
            token.write_text(start.env["STRETTO_TOKEN"])
            path = start.env["KUBEFLOW_TRAINER_SERVER_URL"].removeprefix("http://127.0.0.1")
            monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", f"http://{host}:{port}{path}")
            monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", str(token))
            callback = integrations.integration_utils.KubeflowCallback()
            answers: list[bool] = []

            def send() -> None:
                metrics = {"current_step": 4, "total_steps": 8, "loss": 0.5}
                answers.append(callback._update_status(50, 3, metrics, force=True))

            thread = threading.Thread(target=partial(send))
            thread.start()
            await rig.until(lambda: answers)
            thread.join()
            assert answers == [True]
            [record] = rig.service.state.jobs.values()
            assert (record.learned.latest["step"], record.learned.latest["loss"]) == (4, 0.5)

    play(story)
