"""The page of results says what the tables beside it hold, and knows every table that can be made."""

import json
from pathlib import Path

import pytest

from stretto.experiments.all_tables import CAUSES, Table, read_all
from stretto.experiments.causes import Causes
from stretto.experiments.knowledge import knowledge_of
from stretto.experiments.published import EXPERIMENTS
from stretto.experiments.results_page import READ, page_of

DOCS = Path(__file__).parents[2] / "docs"
TABLES = sorted((DOCS / "results").glob("*.json"))
SERIES = sorted((DOCS / "results" / CAUSES).glob("*.json"))


def test_the_page_is_that_of_the_tables_beside_it() -> None:
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    assert page == page_of(read_all(EXPERIMENTS.values(), DOCS / "results"), READ)
    assert all(f"| [{name}](#{name}) |" in page for name in EXPERIMENTS)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_each_table_is_one_that_can_be_made_and_was_judged_by_the_rule_of_now(path: Path) -> None:
    assert path.stem in EXPERIMENTS
    entries = json.loads(path.read_text(encoding="utf-8"))
    table = Table.of_json(entries)
    assert 0 < table.scale <= 1
    assert table.private == EXPERIMENTS[path.stem].private
    assert [row["verdict"] for row in entries["rows"]] == [str(each) for each in table.verdicts]
    for row, made in zip(entries["rows"], table.rows, strict=True):
        assert row["ratio"] == pytest.approx(made.ratio)


@pytest.mark.parametrize("path", SERIES, ids=lambda path: path.stem)
def test_each_series_of_switched_assumptions_is_of_a_table_that_has_one(path: Path) -> None:
    assert EXPERIMENTS[path.stem].causes is not None
    entries = json.loads(path.read_text(encoding="utf-8"))
    causes = Causes.of_json(entries)
    assert causes.name == path.stem
    assert [[value["verdict"] for value in one["values"]] for one in entries["switched"]] == [
        [str(causes.series.verdict(one, column)) for column in range(len(causes.series.figures))]
        for one in causes.series.switched
    ]
    table = Table.of_json(json.loads((DOCS / "results" / path.name).read_text(encoding="utf-8")))
    printed = {(row.row, row.metric): row.paper for row in table.rows}
    asked = {(figure.row, figure.metric): figure.paper for figure in causes.series.figures}
    assert all(printed[key] == paper for key, paper in asked.items() if key in printed)
    assert asked.keys() & printed.keys(), "it asks after a figure of its table"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_of_each_policy_it_is_said_how_what_it_knows_compares_with_its_paper(path: Path) -> None:
    """A baseline that knows more, or less, than its paper gives it is so named beside the table."""
    shown = json.loads(path.read_text(encoding="utf-8"))["shown"]
    assert [policy for policy in shown if not knowledge_of(path.stem, policy)] == []


def test_a_policy_of_no_paper_has_nothing_said_of_it() -> None:
    assert knowledge_of("sia-table3", "sjf") == knowledge_of("nobody-table1", "sia") == ""
