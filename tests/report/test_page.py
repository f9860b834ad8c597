"""The page: what is on it, what it promises, and what it survives."""

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape

from stretto.errors import InputError
from stretto.model.arrays import floats, ints
from stretto.report import Comparison, Intervals, RunSeries, render, write_report
from stretto.sim.summary import METRICS

from .made_runs import HETERO_64, a_comparison, a_run

HOSTILE = "<script>alert('x')</script>&\"'"
VOID = {"meta", "br", "input", "link", "img", "hr"}


class Outline(HTMLParser):
    """Headings, ids, links to elsewhere and unbalanced tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("h1", "h2", "h3"):
            self.headings.append((tag, ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            tag, words = self.headings[-1]
            self.headings[-1] = tag, words + data

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data") and not (value or "").startswith("#"):
                self.outside.append(f"{tag} {name}={value}")
            assert not name.startswith("on"), f"{tag} has an event handler in its markup"


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    found.close()
    assert found.open == []
    return found


def headings(page: str, tag: str) -> list[str]:
    return [words for level, words in outline(page).headings if level == tag]


@pytest.mark.slow
def test_the_page_tells_its_story_in_order() -> None:
    page = render(a_comparison())
    assert headings(page, "h1") == ["Five policies on a made workload"]
    assert headings(page, "h2") == [
        "How sure",
        "Why",
        "Job by job",
        "Where stretto does not lead",
        "The table",
        "How long jobs take",
        "What the cluster does",
        "Fairness and promises",
        "What deciding costs",
        "How every figure was obtained",
    ]
    assert headings(page, "h3") == [
        "Mean job completion time: waiting and running",
        "stretto against each other policy, on the same jobs",
        "Job completion time",
        "Queuing time",
        "Mean JCT, class by class",
        "GPUs in use over time",
        "Who held what, when",
        "Jobs in the system over time",
        "GPU-hours per job, by GPU type",
        "Finish-time fairness, job by job",
        "Deadlines met and missed",
        "How long decisions take",
        "Command",
        "Settings that differ",
        "Settings of every run",
    ]


def test_ids_are_unique_and_every_chart_says_what_it_shows() -> None:
    page = render(a_comparison(traces=("a", "b"), jobs=30))
    ids = outline(page).ids
    assert len(ids) == len(set(ids))
    charts = re.findall(r'<svg [^>]*class="chart"[^>]*>(.*?)<g', page, re.DOTALL)
    assert charts
    assert all(re.match(r'<title id="[^"]+">[^<]+</title><desc id="[^"]+">[^<]+</desc>', c) for c in charts)


def test_nothing_is_fetched_and_only_the_pages_own_script_may_run() -> None:
    page = render(a_comparison())
    assert outline(page).outside == []
    assert not re.search(r"url\(|@import|https?://", page)
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(script) == 1
    digest = b64encode(sha256(script[0].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_names_from_outside_stay_words() -> None:
    run = replace(a_run(HOSTILE, HOSTILE, jobs=6), jobs=tuple(f"{HOSTILE}{index}" for index in range(6)))
    run = replace(run, labels=(HOSTILE,) * 6, settings={HOSTILE: HOSTILE})
    other = replace(a_run("sia", HOSTILE, jobs=6), jobs=run.jobs)
    cluster = replace(HETERO_64, name=HOSTILE, gpu_types=(HOSTILE, "b", "c"))
    page = render(
        a_comparison(runs=(run, other), cluster=cluster, title=HOSTILE, command=HOSTILE, made=HOSTILE)
    )
    plain = render(a_comparison(("x", "sia"), jobs=6))
    assert outline(page).scripts == outline(plain).scripts
    assert "alert('x')" not in page.replace("\\u0027", "?")
    assert headings(page, "h1") == [HOSTILE]


def test_every_read_out_is_json_and_fits_its_chart() -> None:
    page = render(a_comparison(("stretto", "sia"), jobs=40))
    read = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page)]
    lines = [entry for entry in read if "series" in entry]
    assert len(lines) == 6  # two distributions, two panels of use, contention, fairness
    assert all(len(entry["box"]) == 4 and entry["domain"][0] < entry["domain"][1] for entry in read)
    shares = [
        value for entry in lines if entry["value"] == "share" for s in entry["series"] for value in s["v"]
    ]
    assert min(shares) >= 0
    assert max(shares) == 1_000


def test_the_table_shows_the_summarys_own_figures_and_marks_the_best() -> None:
    comparison = a_comparison(("stretto", "sia"))
    page = render(comparison)
    row = re.search(r'<tr data-p="0">\s*<th scope="row">.*?</tr>', page, re.DOTALL)
    assert row
    mean_h = comparison.runs[0].metric("avg_jct_s") / 3_600
    assert f'<td class="best">{mean_h:.2f}<span class="best-mark"' in row.group()


def test_every_declared_figure_that_a_run_has_is_defined_and_has_a_column() -> None:
    run = replace(a_run("sia", jobs=10), summary={metric.key: 0.5 for metric in METRICS})
    page = render(a_comparison(runs=(run,)))
    for metric in METRICS:
        assert f"<dt>{escape(metric.title)} <code>{metric.key}</code></dt>" in page
        assert f'<th scope="col">{escape(metric.title)}<span class="unit">' in page


def test_made_data_is_said_at_the_top_and_recorded_data_is_not_accused() -> None:
    made = a_comparison(jobs=10)
    recorded = replace(made, runs=tuple(replace(run, synthetic=False) for run in made.runs))
    assert "Synthetic data: Every workload here was made" in render(made).split("<main>")[0]
    assert "Synthetic" not in render(recorded)


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    write_report(a_comparison(jobs=30), tmp_path / "a.html")
    write_report(a_comparison(jobs=30), tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_five_policies_on_160_jobs_stay_well_below_a_megabyte_and_a_half() -> None:
    assert len(render(a_comparison()).encode()) < 800_000


@pytest.mark.heavy
def test_many_workloads_do_not_swell_the_page() -> None:
    page = render(a_comparison(traces=tuple(f"t{index}" for index in range(9)), seeds=(0, 1), jobs=160))
    assert len(page.encode()) < 1_500_000
    assert re.search(r"\d of 18 workloads are drawn", page)


@pytest.mark.slow
def test_a_long_trace_is_sampled_and_says_so() -> None:
    page = render(a_comparison(("stretto", "fifo"), jobs=3_000))
    assert "Of 3\u2009000 jobs every panel shows the same 160" in page
    assert len(page.encode()) < 500_000


@pytest.mark.heavy
@pytest.mark.parametrize(
    "comparison",
    [
        pytest.param(a_comparison(("sia",), jobs=20), id="one policy"),
        pytest.param(a_comparison(("sia", "fifo"), jobs=1), id="one job"),
        pytest.param(a_comparison(("sia",), jobs=1), id="one policy and one job"),
        pytest.param(a_comparison([f"policy {index}" for index in range(21)], jobs=6), id="21 policies"),
    ],
)
def test_small_and_wide_comparisons_are_pages_too(comparison: Comparison) -> None:
    page = render(comparison)
    assert "NaN" not in page
    assert ">nan" not in page
    outline(page)


def test_a_run_with_nothing_known_is_still_a_page() -> None:
    known = a_run("a", jobs=4)
    nothing = replace(
        known,
        summary=dict.fromkeys(known.summary),
        jct_s=np.full(4, np.nan),
        queue_s=np.full(4, np.nan),
        busy_times_s=floats([]),
        busy_gpus=np.zeros((0, 3)),
        active_times_s=floats([]),
        active_jobs=floats([]),
        intervals=Intervals(ints([]), floats([]), floats([]), ints([]), ints([])),
        decisions_ms=floats([]),
        labels=None,
        fairness=None,
        lateness_s=None,
        settings={},
    )
    alone = render(a_comparison(runs=(nothing,)))
    assert "No policy completed a job." in alone
    assert headings(alone, "h2") == ["The table", "How every figure was obtained"]
    beside = render(a_comparison(runs=(nothing, replace(a_run("b", jobs=4), labels=None))))
    assert "no job completed" in beside
    outline(beside)


def test_without_any_job_there_is_a_page() -> None:
    outline(render(a_comparison(runs=(_no_jobs(),))))


def test_without_runs_there_is_no_report() -> None:
    with pytest.raises(InputError, match="at least one run"):
        render(a_comparison(runs=()))


def _no_jobs() -> RunSeries:
    run = a_run("a", jobs=1)
    none = floats([])
    return replace(
        run,
        jobs=(),
        submitted_s=none,
        jct_s=none,
        queue_s=none,
        labels=(),
        fairness=none,
        lateness_s=none,
        intervals=Intervals(ints([]), none, none, ints([]), ints([])),
        summary={},
    )
