"""The board and the alerts ask for figures that a running service has, and every alert has a runbook."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.service.http.rig import a_rig, play

from stretto.backends.protocol import GpuUse
from stretto.service.state.events import LenderSet

promql = pytest.importorskip("promql_parser")
pytestmark = pytest.mark.sqlite

ROOT = Path(__file__).parents[2]
BOARD = json.loads((ROOT / "deploy/grafana/stretto.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text(encoding="utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
QUERIES += [rule["expr"] for rule in RULES]
OF_PROMETHEUS = {"up"}
PARTS = ("expr", "lhs", "rhs", "args", "vector_selector", "param")

Labels = dict[str, dict[str, set[str]]]  # values by label, by name of the series


def selectors(expression: Any) -> Iterator[Any]:
    """The selectors of series in a query."""
    if isinstance(expression, promql.VectorSelector):
        yield expression
        return
    for name in PARTS:
        part = getattr(expression, name, None)
        for each in part if isinstance(part, list | tuple) else [part]:
            if each is not None:
                yield from selectors(each)


def groupings(expression: Any) -> Iterator[str]:
    """The labels by which a query sums."""
    if isinstance(expression, promql.AggregateExpr) and expression.modifier is not None:
        yield from expression.modifier.labels
    for name in PARTS:
        part = getattr(expression, name, None)
        for each in part if isinstance(part, list | tuple) else [part]:
            if each is not None:
                yield from groupings(each)


def served(tmp_path: Path) -> Labels:
    """What /metrics shows of a service that has done a little of everything."""
    series: Labels = defaultdict(lambda: defaultdict(set))

    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as root:
            await rig.service.record(LenderSet("web", ("n9",)))
            job = await rig.submit("ada")
            await rig.until(lambda: rig.backend.started)
            rig.backend.use = {"n0": (GpuUse(0.5, 1 << 30, 80 << 30),)}
            rig.service.gpu_watch.look()
            await rig.backend.finish(f"{job}.1.0", 0)
            await rig.until(lambda: rig.service.state.ended)
            assert (await root.get("/api/v1/jobs/none")).status_code == 404
            budget = {"gpu_hours": 1.0, "period": "day"}
            assert (await root.put("/api/v1/budgets/b", json=budget)).status_code == 200
            assert (await root.get("/api/v1/budgets")).status_code == 200  # they have been looked at
            text = (await root.get("/metrics")).text
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    for label, value in sample.labels.items():
                        series[sample.name][label].add(value)
                    _ = series[sample.name]

    play(story)
    return series


def test_every_query_asks_for_series_and_labels_that_a_service_shows(tmp_path: Path) -> None:
    series = served(tmp_path)
    for query in QUERIES:
        expression = promql.parse(query)
        asked = list(selectors(expression))
        assert asked, query
        names = [selector.name for selector in asked if selector.name not in OF_PROMETHEUS]
        for selector in asked:
            if selector.name in OF_PROMETHEUS:
                continue
            assert selector.name in series, (query, selector.name)
            for matcher in selector.matchers.matchers:
                values = series[selector.name][matcher.name]
                is_pattern = matcher.op in (promql.MatchOp.Re, promql.MatchOp.NotRe)
                for wanted in matcher.value.split("|") if is_pattern else [matcher.value]:
                    assert wanted in values, (query, matcher.name, wanted, values)
        for label in groupings(expression):
            assert any(label in series[name] for name in names), (query, label)


def test_every_legend_names_a_label_that_is_there(tmp_path: Path) -> None:
    series = served(tmp_path)
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            (name, *_) = [selector.name for selector in selectors(promql.parse(target["expr"]))]
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert label in series[name], (panel["title"], label)


def test_every_alert_has_a_section_that_says_what_to_do() -> None:
    page = (ROOT / "docs/runbooks.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n\n(.+?)(?=\n## |\Z)", page, flags=re.M | re.S))
    assert list(sections) == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        assert sections[rule["alert"]].startswith(rule["annotations"]["summary"])
