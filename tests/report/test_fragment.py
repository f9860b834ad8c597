"""What a notebook shows of runs: its words, what it promises to the page around it, what it survives."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stretto.report.fragment import DARK, LIGHT, NAME, comparison_fragment, run_fragment
from stretto.report.html import asset

from .made_runs import HETERO_64, a_comparison, a_run
from .test_browser import BROWSER, seen
from .test_page import HOSTILE, outline

# What Jupyter says of every list, table and piece of code, in other words.
NOTEBOOK = """
.outer dt { float: left; width: 20% } .outer code { background: red } .outer table { table-layout: fixed }
.outer tbody tr:nth-child(odd) { background: red } .outer td { max-width: 10px }
"""
TRIAL = """
const style = (selector, name) => {
  const nodes = [...document.querySelectorAll(".stretto-out " + selector)];
  return [...new Set(nodes.map((node) => getComputedStyle(node)[name]))];
};
for (const folded of document.querySelectorAll("details")) folded.open = true;
document.title = "TRIAL " + JSON.stringify({
  floats: style("dt", "float"), code: style("code", "backgroundColor"),
  rows: style("tbody tr", "backgroundColor"),
  layout: style("table", "tableLayout"), card: style(".card", "backgroundColor"),
  fits: document.documentElement.scrollWidth <= innerWidth,
});
"""


def alone(**changes: Any) -> str:
    return run_fragment(a_comparison(runs=(a_run("sia", "made", jobs=20),), **changes))


def test_a_run_says_what_came_of_it_and_shows_its_figures() -> None:
    shown = alone(title="sia on made")
    assert re.search(r'class="title">sia on made<', shown)
    assert "20 jobs · seed 0" in shown
    assert re.findall(r"<figcaption><b>(.*?)</b>", shown) == [
        "GPUs in use over time",
        "Who held what, when",
        "Jobs in the system over time",
        "Job completion time",
        "Queuing time",
    ]
    assert "<th" not in shown  # there is nothing to compare with


def test_a_comparison_has_the_verdict_and_a_line_for_each_policy() -> None:
    shown = comparison_fragment(a_comparison(("stretto", "sia", "fifo"), jobs=40))
    assert re.findall(r'<th scope="row">.*?</i>(\w+)</th>', shown) == ["stretto", "sia", "fifo"]
    assert re.search(r'class="winner p0">stretto</b> finishes a job in', shown)
    assert shown.count("Mean job completion time: waiting and running</b>") == 1


def test_nothing_is_fetched_and_nothing_runs() -> None:
    for shown in (alone(), comparison_fragment(a_comparison(traces=("a", "b"), jobs=20))):
        assert (outline(shown).outside, outline(shown).scripts) == ([], 0)
        assert not re.search(r"url\(|@import|https?://|javascript:", shown)


def test_names_from_outside_stay_words() -> None:
    run = replace(a_run(HOSTILE, HOSTILE, jobs=6), jobs=tuple(f"{HOSTILE}{index}" for index in range(6)))
    run = replace(run, labels=(HOSTILE,) * 6, settings={HOSTILE: HOSTILE})
    other = replace(a_run("sia", HOSTILE, jobs=6), jobs=run.jobs)
    cluster = replace(HETERO_64, name=HOSTILE, gpu_types=(HOSTILE, "b", "c"))
    for runs in ((run,), (run, other)):
        content = a_comparison(runs=runs, cluster=cluster, title=HOSTILE)
        shown = run_fragment(content) if len(runs) == 1 else comparison_fragment(content)
        assert outline(shown).scripts == 0
        assert "alert('x')" not in shown


def test_two_of_them_on_one_page_share_no_id_and_the_same_is_the_same_bytes() -> None:
    first, again = alone(), alone()
    other = run_fragment(a_comparison(runs=(a_run("fifo", "made", jobs=20),)))
    assert first == again
    ids = outline(first + other).ids
    assert len(ids) == len(set(ids))
    named = re.findall(r'aria-labelledby="([^"]+)"', first)
    assert named
    assert {each for names in named for each in names.split()} <= set(ids)


def test_the_style_stays_within_and_follows_what_the_notebook_says_of_light_and_dark() -> None:
    style = "".join(re.findall(r"<style>(.*?)</style>", alone(), flags=re.DOTALL))
    depth, selectors, words = 0, [], ""
    for sign in style:
        if sign == "{" and depth == 0:
            selectors.append(words.strip())
        depth += (sign == "{") - (sign == "}")
        words = "" if depth or sign == "}" else words + sign
    assert depth == 0
    rules = [each for each in selectors if not each.startswith("@media")]
    assert [each for rule in rules for each in rule.split(",") if not each.endswith(NAME)] == []
    assert {f"{where} {NAME}" for where in (*LIGHT, *DARK)} <= {
        each for rule in rules for each in rule.split(",")
    }
    assert ":root" not in style


@pytest.mark.processes
@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")
def test_rules_that_a_notebook_has_for_all_it_shows_do_not_bend_it(tmp_path: Path) -> None:
    shown = comparison_fragment(a_comparison(("stretto", "sia"), jobs=20))
    page = f"<style>{NOTEBOOK}</style><body data-jp-theme-light=false><div class=outer>{shown}</div>"
    document, complaints = seen(f"{page}<script>{TRIAL}</script></body>", tmp_path)
    trial = re.search(r"<title>TRIAL (.*?)</title>", document, re.DOTALL)
    assert trial
    dark = re.findall(r"--card: #(\w\w)(\w\w)(\w\w)", asset("palette.css"))[1]
    assert json.loads(trial[1]) == {
        "floats": ["none"],
        "code": ["rgba(0, 0, 0, 0)"],
        "rows": ["rgba(0, 0, 0, 0)"],
        "layout": ["auto"],
        "card": [f"rgb({', '.join(str(int(part, 16)) for part in dark)})"],
        "fits": True,
    }
    assert complaints == ""


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_run_of_hardly_any_jobs_is_shown_too(jobs: int) -> None:
    run = a_run("sia", "made", jobs=1)
    if not jobs:
        nan = run.jct_s * float("nan")
        run = replace(run, jct_s=nan, queue_s=nan, summary={**run.summary, "avg_jct_s": None})
    shown = run_fragment(a_comparison(runs=(run,)))
    assert ("No policy completed a job." in shown) == (jobs == 0)
