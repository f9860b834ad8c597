"""The page of results says what the tables beside it hold, and knows every table that can be made."""

import json
from pathlib import Path

import pytest

from stretto.experiments.all_tables import READ, Table, page_of, read_all
from stretto.experiments.published import EXPERIMENTS

DOCS = Path(__file__).parents[2] / "docs"
TABLES = sorted((DOCS / "results").glob("*.json"))


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
