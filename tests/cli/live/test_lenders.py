"""The verbs for lenders, and lenders of a file that a service starts with."""

import re
import signal
from pathlib import Path

import pytest
from tests.service.running import Running

from stretto.demo.own_service import OwnService, until

from ..ran import Stretto

pytestmark = [pytest.mark.processes, pytest.mark.sqlite]

HEADER = ["lender", "nodes", "need", "with it", "on loan", "lacks", "waits", "longest", "guarantee"]


def state_of_first(verbs: Stretto) -> str:
    """The state of the first node in the list."""
    header, first, *_ = verbs("nodes", "list").table
    return first[header.index("state")]


def test_a_lender_is_set_says_what_it_needs_and_is_deleted(verbs: Stretto, service: OwnService) -> None:
    node = verbs("nodes", "list", "--json").json["nodes"][0]["name"]
    assert verbs("lenders").table == [HEADER]
    done = verbs(
        "lenders", "set", "inference", "--nodes", f" {node},", "--guarantee", "2m", "--headroom", "0"
    )
    try:
        assert (done.status, done.out) == (0, "lender inference: 1 nodes, 0 on loan\n"), done.err
        with service.client() as client:
            until(lambda: client.lenders()[0]["usable"] == [node], what="it has its node")
        assert verbs("lenders", "need", "inference", "1").out == "lender inference: needs 1, lacks 0\n"
        row = ["inference", "1", "1", "1", "0", "0", "-", "-", "120s"]
        assert verbs("lenders", "list").table == [HEADER, row]
        (lender,) = verbs("lenders", "--json").json["lenders"]
        assert (lender["need"], lender["usable"], lender["guarantee_s"]) == (1, [node], 120)
        assert state_of_first(verbs) == "lender's"
        assert verbs("lenders", "need", "inference", "0", "--json").json["need"] == 0
    finally:
        assert verbs("lenders", "delete", "inference").out == "lender inference: deleted\n"
    assert verbs("lenders", "--json").json == {"lenders": []}
    until(lambda: state_of_first(verbs) == "up", what="the node is ours again")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["set", "inference", "--nodes", "nowhere"], "nowhere"),
        (["set", "inference", "--nodes", ","], "nodes"),
        (
            ["set", "inference", "--nodes", "n", "--guarantee", "soon"],
            "expected a duration such as 90s or 2m",
        ),
        (["set", "inference", "--nodes", "n", "--headroom", "1"], "headroom"),
        (["set", "no name", "--nodes", "n"], "name: String should match"),
        (["need", "inference", "1"], "inference"),
        (["need", "inference", "many"], "NODES"),
        (["delete", "inference"], "inference"),
    ],
)
def test_a_wrong_word_about_lenders_is_answered_in_one_line(
    verbs: Stretto, words: list[str], expected: str
) -> None:
    done = verbs("lenders", *words)
    assert done.status == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert expected in done.err
    assert verbs("lenders", "--json").json == {"lenders": []}


def test_more_than_a_lender_has_is_not_needed(verbs: Stretto) -> None:
    node = verbs("nodes", "list", "--json").json["nodes"][0]["name"]
    assert verbs("lenders", "set", "inference", "--nodes", node).status == 0
    try:
        done = verbs("lenders", "need", "inference", "2")
        assert (done.status, len(done.err.splitlines())) == (2, 1)
        assert "lender inference has 1, got 2" in done.err
        assert verbs("lenders", "--json").json["lenders"][0]["need"] is None
    finally:
        verbs("lenders", "delete", "inference")


CLUSTER = """
gpu_types: {cpu: {memory_gb: 1}}
nodes: [{type: cpu, gpus: 2, count: 3, names: [own, lent-0, lent-1]}]
"""


def test_a_service_has_the_lenders_of_its_file_and_asks_their_command(
    stretto: Stretto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    need = tmp_path / "need"
    need.write_text("2\n")
    file = tmp_path / "lenders.yaml"
    entry = f"need: {{command: cat {need}, every: 1s}}, guarantee: 1m"
    file.write_text(f"lenders: [{{name: inference, nodes: [lent-0, lent-1], {entry}}}]\n")
    options = ("--backend", "emulated", "--cluster", str(tmp_path / "cluster.yaml"), "--policy", "lyra")
    running = Running(
        tmp_path, *options, "--set", "lend.rule=lyra", "--set", "lend.on_demand=false", "--lenders", str(file)
    )
    running.begin()
    try:
        monkeypatch.setenv("STRETTO_URL", running.url)
        monkeypatch.delenv("STRETTO_TOKEN", raising=False)
        with running.client() as client:
            until(lambda: client.lenders()[0]["need"] == 2, what="the command was asked")
            need.write_text("1\n")
            until(lambda: client.lenders()[0]["on_loan"] == 1, what="one of them is lent")
            until(lambda: client.lenders()[0]["in_its_hands"] == 1, what="it has changed hands")
            need.write_text("many\n")  # stays as it was, and the service's log says so
            log = running.state / "service.log"
            until(lambda: "the need of a lender is not known" in log.read_text(), what="there is a warning")
            row = ["inference", "2", "1", "1", "1", "0", "-", "-", "60s"]
            assert stretto("lenders").table == [HEADER, row]
            need.write_text("2\n")
            until(lambda: client.lenders()[0]["in_its_hands"] == 2, what="it is back")
            assert client.lenders()[0]["waits"] == 1
        assert running.kill(signal.SIGTERM) == 0
    finally:
        running.end()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lenders: [{name: inference}]", "nodes must be a list"),
        ("lenders: [{name: inference, nodes: [a], guarantee: soon}]", "guarantee must be a duration"),
        ("lenders: [{name: inference, nodes: [a], need: {fil: x.csv}}]", "unknown key 'fil'"),
        ("lenders: [{", "lenders.yaml"),
    ],
)
def test_a_service_does_not_start_with_a_file_of_lenders_that_is_wrong(
    stretto: Stretto, tmp_path: Path, text: str, expected: str
) -> None:
    file = tmp_path / "lenders.yaml"
    file.write_text(text)
    done = stretto(
        "serve", "--state", str(tmp_path / "state"), "--listen", "127.0.0.1:0", "--lenders", str(file)
    )
    assert done.status == 2
    assert re.fullmatch(r"[^\n]+\n", done.err)
    assert expected in done.err
    assert not (tmp_path / "state" / "stretto.db").exists()


def test_a_service_does_not_start_with_a_file_that_takes_a_node_of_a_lender_that_somebody_has_set(
    stretto: Stretto, tmp_path: Path
) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    file = tmp_path / "lenders.yaml"
    file.write_text("lenders: [{name: inference, nodes: [lent-0, lent-1]}]\n")
    options = ("--backend", "emulated", "--cluster", str(tmp_path / "cluster.yaml"), "--policy", "lyra")
    running = Running(tmp_path, *options)
    running.begin()
    try:
        with running.client() as client:
            client.set_lender("by-hand", nodes=["lent-1"])
        assert running.kill(signal.SIGTERM) == 0
        recorded = len(list(running.log_of_all()))
        place = ("--state", str(running.state), "--store", running.store, "--listen", "127.0.0.1:0")
        done = stretto("serve", *place, *options, "--lenders", str(file))
        assert done.status == 2
        assert re.fullmatch(r"[^\n]*node lent-1 belongs to lender by-hand, [^\n]+\n", done.err)
        assert len(list(running.log_of_all())) == recorded
    finally:
        running.end()
