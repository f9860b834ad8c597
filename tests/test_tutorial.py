"""The tutorial, as it stands on its page: its files, its commands, and what it says will happen."""

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stretto.client import Client
from stretto.demo.own_service import OwnService, until

pytestmark = [pytest.mark.processes, pytest.mark.sockets, pytest.mark.torch]

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")
FILE = re.compile(r'^```\w+ title="(?P<name>[^"]+)"\n(?P<text>.*?)^```', flags=re.M | re.S)
ROW_OF_A_POLICY = re.compile(r"^(\w+)\t([^\t]*)\t([\d.]+)\t", flags=re.M)  # name, mean, times the best
SERVED = "stretto serve --slots 4 --policy gandiva --insecure-loopback &"


def part_of_the_page(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def commands_below(heading: str) -> list[list[str]]:
    """The commands of a part, each as words."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```", part_of_the_page(heading), flags=re.M | re.S)
    texts = [text.replace("\\\n", "") for language, text in blocks if not language]
    return [shlex.split(line) for text in texts for line in text.splitlines()]


def run(folder: Path, words: list[str], **env: str) -> str:
    assert words[0] == "stretto"
    done = subprocess.run(
        [sys.executable, "-m", "stretto.cli.app", *words[1:]],
        cwd=folder,
        env={**env, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout + done.stderr


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with all files of the page."""
    folder = tmp_path / "tutorial"
    folder.mkdir()
    for file in FILE.finditer(PAGE):
        (folder / file["name"]).write_text(file["text"], encoding="utf-8")
    return folder


def test_a_training_makes_room_for_a_guest_and_grows_again(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "ada")
    assert SERVED in part_of_the_page("Start a service")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    options = shlex.split(SERVED)[2:-2]  # without `stretto serve` before them and what loopback is opened by
    service = OwnService(tmp_path / "service", options, ("-m", "stretto.cli.app"), {"PATH": path})
    try:
        (tmp_path / "service").mkdir()
        service.begin()
        here = {"STRETTO_URL": service.url, "STRETTO_CONFIG": str(tmp_path / "contexts"), "USER": "ada"}
        submit, follow = commands_below("Submit it")
        run(written, submit, **here)
        assert follow == ["stretto", "logs", "-f", "digits"]
        with service.client() as client:
            until(lambda: gpus_of(client, "digits") == 4, what="the training has four workers")
            # GPUs are given before there are workers, and only a worker has a log.
            until(lambda: described(client, "digits")["state"] == "RUNNING", what="they run")
            until(lambda: "on 4 workers" in "".join(client.log("digits")), what="and says so")
            guest, listed = commands_below("Watch it make room")[:2]
            began_s = time.monotonic()
            run(written, guest, **here)
            until(lambda: described(client, "guest")["state"] == "RUNNING", what="the guest runs")
            print(f"the guest started after {time.monotonic() - began_s:.1f} s")
            assert gpus_of(client, "digits") == 1
            assert "guest" in run(written, listed, **here)
            assert client.wait("guest")["state"] == "COMPLETED"
            until(lambda: gpus_of(client, "digits") == 4, what="it grows again")
            shown = described(client, "digits")
            assert (shown["attempt"], shown["restarts"]) == (1, 0)
            for words in commands_below("Watch it make room")[2:]:
                assert run(written, words, **here)
            until(lambda: described(client, "digits")["state"] == "CANCELLED", what="it is cancelled")
    finally:
        service.end()


def gpus_of(client: Client, job: str) -> int:
    gpus: int = described(client, job)["gpus"]
    return gpus


def described(client: Client, job: str) -> dict[str, Any]:
    return client.describe(job)


@pytest.mark.slow
def test_the_jobs_of_the_page_are_compared_on_its_cluster(written: Path) -> None:
    (compare,) = commands_below("Simulate your own cluster")
    printed = run(written, compare)
    times_the_best = {policy: float(times) for policy, _, times in ROW_OF_A_POLICY.findall(printed)}
    assert times_the_best.keys() == {"fifo", "tiresias", "sjf"}
    assert times_the_best["fifo"] == max(times_the_best.values()) > 1.5  # "about twice as long on average"
    assert (written / "out" / "ours" / "report.html").exists()


@pytest.mark.slow
def test_the_script_also_trains_alone(written: Path) -> None:
    script = (written / "train.py").read_text(encoding="utf-8").replace("epochs(3000)", "epochs(2)")
    (written / "train.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=written, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "epoch 1 on 1 workers" in done.stdout
