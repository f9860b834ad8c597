"""Where a lender's need comes from: files that name lenders, series over time, and commands."""

import asyncio
from math import inf
from pathlib import Path

import numpy as np
import pytest
from tests.service.emulated.stage import MemoryWriter

from stretto.model import InputError
from stretto.service.eventlog.clock import Clock
from stretto.service.lending.command_feed import CommandFeed
from stretto.service.lending.feeds import (
    Lender,
    SeriesFeed,
    changed_lenders,
    lenders_of_cluster,
    read_lenders,
)
from stretto.service.state.events import LenderDeleted, LenderSet
from stretto.service.state.state import State

GOOD = "{name: a, nodes: [n0, n1], headroom: 0.1, guarantee: 2m, need: {command: echo 1, every: 5s}}"


def lenders_in(path: Path, *entries: str) -> tuple[Lender, ...]:
    file = path / "lenders.yaml"
    file.write_text("lenders:\n" + "".join(f"- {entry}\n" for entry in entries))
    return read_lenders(file)


def test_a_file_names_lenders_their_nodes_and_what_says_their_need(tmp_path: Path) -> None:
    (tmp_path / "load.csv").write_text("timestamp_s,demand_fraction\n0,0.5\n60,1\n")
    first, second = lenders_in(tmp_path, GOOD, "{name: b, nodes: [n2], need: {file: load.csv}}")
    assert (first.nodes, first.headroom, first.guarantee_s) == (("n0", "n1"), 0.1, 120)
    assert first.feed == CommandFeed("echo 1", 5.0)
    assert isinstance(second.feed, SeriesFeed)
    assert (second.feed.period_s, second.feed.shares.tolist()) == (60, [0.5, 1])


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{nodes: [n0]}", "missing name"),
        ("{name: a/b c, nodes: [n0]}", r"lenders.yaml line 3: lenders, entry 2: name must be .* got 'a/b c'"),
        (r'{name: "a\n<b>", nodes: [n0]}', "entry 2: name must be 1 to 63 letters"),
        ("{name: %s, nodes: [n0]}" % ("n" * 64), "entry 2: name must be 1 to 63 letters"),
        ("{name: a}", "nodes must be a list of at least one"),
        ("{name: a, nodes: [n0], headroom: 1}", "headroom must be a share below 1"),
        ("{name: a, nodes: [%s]}" % ("n" * 256), "names of at most 255 characters"),
        ("{name: a, nodes: [n0], guarantee: 99999999999999d}", "guarantee must be .* to 10,000,000 s"),
        ("{name: a, nodes: [n0], need: {command: echo 1, every: 0s}}", "need: every must be .* from 1 s"),
        ("{name: a, nodes: [n0], need: {command: echo 1, every: 999ms}}", "every must be .* from 1 s"),
        ("{name: a, nodes: [n0], need: {command: echo 1, every: 200d}}", "every must be .* to 10,000,000 s"),
        ("{name: a, nodes: [n0], need: {every: 5s}}", "every says how often a command runs"),
        ("{name: a, nodes: [n0], need: {file: synthetic, every: 5s}}", "every says how often a command"),
        ("{name: a, nodes: [n0], guarantee: soon}", "guarantee must be a duration"),
        ("{name: a, nodes: [n0], need: {file: x, command: y}}", "a file or a command, not both"),
        ("{name: a, nodes: [n0], need: {file: nowhere.csv}}", "nowhere.csv"),
        ("{name: a, nodes: [n0, n1, n2, n1]}", "entry 2: node n1 is there twice"),
        (r'{name: a, nodes: [n0], need: {command: "echo 1\0"}}', "entry 2: need: command must be .* NUL"),
        (r'{name: a, nodes: [n0], need: {command: "echo \ud800"}}', "command must be UTF-8"),
        ("{name: a, nodes: [n0], ned: 1}", "unknown key 'ned'"),
        ("{name: z, nodes: [n9]}", "belongs to another lender"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path: Path, entry: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        lenders_in(tmp_path, "{name: other, nodes: [n9]}", entry)
    assert "\n" not in str(refused.value)


def test_an_emulated_cluster_has_the_lenders_of_its_file_and_keeps_the_guarantee_that_was_set() -> None:
    (lender,) = lenders_of_cluster("lyra", {}, 0)
    assert (lender.name, len(lender.nodes), lender.headroom, lender.feed) == ("inference", 520, 0.02, None)
    state = State()
    log_writer = MemoryWriter(state, Clock())
    assert not lender.is_known(state)
    log_writer.record(lender.event(state))
    log_writer.record(LenderSet(lender.name, lender.nodes, lender.headroom, 60.0))
    assert lender.is_known(state)
    assert lenders_of_cluster("lyra", {"lend.demand": "synthetic"}, 0)[0].feed is not None
    with pytest.raises(InputError, match="has no lenders"):
        lenders_of_cluster("gpu8-256", {"lend.demand": "synthetic"}, 0)


def test_lenders_that_a_file_names_no_more_are_gone_and_those_that_somebody_has_set_stay(
    tmp_path: Path,
) -> None:
    state = State()
    log_writer = MemoryWriter(state, Clock())
    named = lenders_in(tmp_path, GOOD, "{name: b, nodes: [n2]}")
    log_writer.record(*changed_lenders(named, state))
    log_writer.record(LenderSet("b", ("n2",), guarantee_s=60.0), LenderSet("by-hand", ("n3",)))
    assert changed_lenders(named[:1], state) == [LenderDeleted("b")]
    log_writer.record(*changed_lenders((), state))
    assert [*state.lenders] == ["by-hand"]
    assert changed_lenders((), state) == []


def test_a_file_takes_no_node_of_a_lender_that_somebody_has_set(tmp_path: Path) -> None:
    state = State()
    log_writer = MemoryWriter(state, Clock())
    log_writer.record(LenderSet("by-hand", ("n5", "n1")))
    with pytest.raises(InputError, match="lender a of a file: node n1 belongs to lender by-hand") as refused:
        changed_lenders(lenders_in(tmp_path, GOOD), state)
    assert "\n" not in str(refused.value)
    assert changed_lenders(lenders_in(tmp_path, "{name: by-hand, nodes: [n1]}"), state)
    log_writer.record(*changed_lenders(lenders_in(tmp_path, "{name: old, nodes: [n0]}"), state))
    assert LenderDeleted("old") in changed_lenders(lenders_in(tmp_path, "{name: new, nodes: [n0]}"), state)


def test_a_series_says_when_it_changes_and_stays_as_it_is_after_its_end() -> None:
    feed = SeriesFeed(10.0, np.array([0.25, 0.5, 1.0]))
    answers = [asyncio.run(feed.need_at(now_s, 4)) for now_s in (0.0, 12.0, 20.0, 500.0)]
    assert answers == [(1.0, 10.0), (2.0, 8.0), (4.0, inf), (4.0, inf)]
