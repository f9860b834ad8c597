"""The inference server of the examples lends its nodes while its load is low, as its page shows."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.inference import FOLDER, WITHIN_S, inference_server
from tests.service.lenders_log import settled, workers_with_lenders
from tests.service.running import Running

from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.sqlite, pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs" / "lending.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("### An inference server that scales\n")[2].partition("\n### ")[0]
COMMANDS = [shlex.split(line) for line in re.findall(r"^\$ (.+)$", SECTION, flags=re.M)]


def arguments(*words: str) -> list[str]:
    """What stands on the page behind these words, of the one command that begins with them."""
    (found,) = (command[len(words) :] for command in COMMANDS if command[: len(words)] == list(words))
    return found


@pytest.mark.long
def test_nodes_follow_the_load_of_the_example_as_its_page_shows(tmp_path: Path) -> None:
    options = [word for word in arguments("stretto", "serve") if word != "--insecure-loopback"]
    files = [str(FOLDER / word) if word.endswith(".yaml") else word for word in options]
    running = Running(tmp_path, *files)
    running.begin()
    try:
        for verb in (("lenders", "set"), ("submit",)):
            subprocess.run(
                [sys.executable, "-m", "stretto.cli.app", *verb, *arguments("stretto", *verb)],
                cwd=FOLDER,
                env={**os.environ, "STRETTO_URL": running.url, "STRETTO_TOKEN": ""},
                check=True,
                timeout=WITHIN_S,
            )
        nodes, adapter = arguments("python", "server.py"), arguments("python", "adapter.py")
        with running.client() as client, inference_server(tmp_path, running.url, nodes, adapter) as server:
            until(lambda: client.lenders()[0]["on_loan"] == 2, what="what the server can spare is on loan")
            server.replay(*arguments("python", "load.py"))
            assert server.scale()["most_running"] == len(nodes)
            until(lambda: client.lenders()[0]["need"] == 1, what="the load is over")
            until(lambda: client.lenders()[0]["on_loan"] == 2, what="training has its nodes again")
            (lender,) = client.lenders()
            said = server.lines()
        assert lender["waits"] > 0
        assert lender["waits_missed"] == 0
        assert [line for line in re.findall(r"^needs .*$", SECTION, flags=re.M) if line not in said] == []
    finally:
        running.end()
    assert settled(running, "returned")
    assert workers_with_lenders(running) == []
    decisions, differences = running.differences()
    assert decisions > 0
    assert differences == 0
