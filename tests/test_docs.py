"""Pages keep up with the code: links lead somewhere, names that they mention exist."""

import re
from pathlib import Path

import pytest

from stretto.experiments.published import EXPERIMENTS
from stretto.model import View
from stretto.policies.registry import POLICIES, describe, load_policy
from stretto.sim import metrics
from stretto.sim.summary import GROUPS, Metric

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    local = [link.split("#")[0] for link in links if "://" not in link and not link.startswith("#")]
    assert [link for link in local if not (page.parent / link).exists()] == []


def anchors_of(page: Path) -> set[str]:
    """What a link may name behind `#`: headings in lower case, with hyphens, as GitHub writes them."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.+)$", prose, flags=re.M)
    return {re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_a_heading_name_one_that_there_is(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)\s:]*)#([^)\s]+)\)", prose)
    there = [(page.parent / path if path else page, anchor) for path, anchor in links]
    assert [anchor for path, anchor in there if anchor not in anchors_of(path)] == []


def test_every_page_can_be_reached_from_the_index() -> None:
    index = text("docs/index.md")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page != "index.md" and f"({page})" not in index] == []


MECHANISMS = "| mechanism | paper | code | simulated | live | why it stays |\n"
WITH_MECHANISMS = [page for page in PAGES if MECHANISMS in page.read_text(encoding="utf-8")]


def mechanisms_of(page: Path) -> list[list[str]]:
    """The cells of each row of a page's table of mechanisms, without those that only rule it off."""
    _, table = page.read_text(encoding="utf-8").split(MECHANISMS)
    lines = table.split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_five_papers_have_tables_of_their_mechanisms() -> None:
    papers = [text(page.relative_to(ROOT).as_posix()).splitlines()[0] for page in WITH_MECHANISMS]
    assert [
        name for name in ("Sia", "Cornucopia", "ONES", "Lyra", "UniSched") if name not in " ".join(papers)
    ] == []


@pytest.mark.parametrize("page", WITH_MECHANISMS, ids=lambda page: page.name)
def test_what_is_not_faithful_to_a_paper_has_a_reason(page: Path) -> None:
    rows = mechanisms_of(page)
    assert [row for row in rows if len(row) != 6 or not {*row[3], *row[4]} <= set("FSDA–")] == []
    unlike = [row for row in rows if {*row[3], *row[4]} & set("SDA")]
    assert [row[0] for row in unlike if not row[5]] == []
    sentences = [sentence for row in rows for sentence in re.split(r"(?<=\.) ", row[5])]
    assert [sentence for sentence in sentences if len(sentence.split()) > 25] == []


@pytest.mark.parametrize("page", WITH_MECHANISMS, ids=lambda page: page.name)
def test_modules_that_a_table_of_mechanisms_names_have_what_it_says(page: Path) -> None:
    """`path.py:name` is a name that is defined there, below src/stretto/ or the root."""
    for row in mechanisms_of(page):
        named = re.findall(r"`([\w/.-]+)(?::(\w+))?`", row[2])
        assert named or "F" not in {row[3], row[4]}, row[0]
        for path, name in named:
            module = next(
                (root / path for root in (ROOT / "src" / "stretto", ROOT) if (root / path).exists()), None
            )
            assert module is not None, path
            defined = rf"(?m)^\s*(?:(?:async )?def {name}\(|class {name}\b|{name}\b.*[:=])"
            assert not name or re.search(defined, module.read_text(encoding="utf-8")), (path, name)


DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
CODE = [ROOT / "src" / "stretto", ROOT / "src" / "stretto" / "policies", ROOT]  # paths are below one of them


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name)
def test_every_path_that_a_decision_names_exists(page: Path) -> None:
    """A module may be named without its ending, and a folder with a slash behind it."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)+)/?(?::\w+)?`", prose)
    endings = ("", ".py")
    there = {name for name in named for root in CODE for end in endings if (root / (name + end)).exists()}
    assert [name for name in named if name not in there] == []


@pytest.mark.parametrize("page", [*DECISIONS, ROOT / "docs" / "reproducing.md"], ids=lambda page: page.name)
def test_every_table_that_a_page_names_can_be_reproduced(page: Path) -> None:
    papers = "|".join(sorted({name.split("-")[0] for name in EXPERIMENTS}))
    tables = rf"\b(?:{papers})-(?:fig|table)\d[a-z\d-]*"
    named = re.findall(tables, page.read_text(encoding="utf-8"))
    assert [name for name in named if name not in EXPERIMENTS] == []


def rows_of(figures: tuple[Metric, ...]) -> list[str]:
    """What the page of the metrics says of some figures: a row of its table for each."""
    return [
        f"| {one.title} | `{one.key}` | {one.unit} | {one.better} | {one.definition} |" for one in figures
    ]


@pytest.mark.parametrize("heading", GROUPS)
def test_the_page_of_the_metrics_has_every_figure_as_it_is_declared(heading: str) -> None:
    (section,) = re.findall(rf"^## {heading}$(.*?)^## ", text("docs/metrics.md"), flags=re.M | re.S)
    rows = rows_of(GROUPS[heading])
    assert re.findall(r"^\| .* \| `\w+` \|.*\|$", section, flags=re.M) == rows, "\n".join(rows)


def test_every_function_that_the_metrics_page_names_exists() -> None:
    named = re.findall(r"`metrics\.(\w+)`", text("docs/metrics.md"))
    assert named
    assert [name for name in named if not hasattr(metrics, name)] == []


def test_the_overview_shows_every_view_and_every_folder() -> None:
    page = text("docs/overview.md")
    assert [view.value for view in View if f"`{view.value}`" not in page] == []
    folders = sorted(path.parent.name for path in (ROOT / "src" / "stretto").glob("*/__init__.py"))
    assert [folder for folder in folders if f"{folder}/" not in text("README.md")] == []


@pytest.mark.parametrize(("title", "folder"), [("folder", ""), ("within `service/`", "service")])
def test_the_overview_lays_out_the_folders_that_there_are(title: str, folder: str) -> None:
    (table,) = re.findall(
        rf"^\| {title} \| question \|\n\|[-|]+\n((?:\|.*\n)+)", text("docs/overview.md"), flags=re.M
    )
    named = {name for row in table.splitlines() for name in re.findall(r"`([\w.]+)/?`", row.split("|")[1])}
    there = ROOT / "src" / "stretto" / folder
    assert [name for name in named if not (there / name).exists()] == []
    assert {path.parent.name for path in there.glob("*/__init__.py")} - named == set()


def test_the_page_of_fair_share_says_who_comes_first_under_every_policy() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.+) \|$", text("docs/fair-share.md"), flags=re.M))
    assert rows == {name: describe(name, load_policy(name)).order for name in POLICIES}
