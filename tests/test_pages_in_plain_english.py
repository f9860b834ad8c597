"""Pages are easy to read and to search: short sentences, headings in the field's words, paths that exist."""

import re
from pathlib import Path

import pytest
from tests.house import house

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")

# What a heading was, and what people search for instead.
BETTER = {
    "A session": "Interactive sessions",
    "Clusters that grow": "Autoscaling",
    "Files of others": "Importing files of Slurm, SkyPilot and Kubeflow",
    "For how long": "Retention",
    "How it ended": "Exit codes and retries",
    "Looking at it": "Monitoring",
    "Notices": "Webhooks",
    "Rights": "Permissions",
    "What is foreseen, and how": "Forecasts",
    "What is lost when": "Failures and recovery",
    "What it keeps": "State directory and backup",
    "What travels": "Snapshot, speeds, shares, plan",
    "Who may do what": "Authentication and roles",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_sentence_of_a_page_is_longer_than_can_be_read_at_once(page: Path) -> None:
    counter = house()
    sentences = list(counter.sentences_of(page.read_text(encoding="utf-8")))
    assert [one for one in sentences if len(one.split()) > counter.LONG_SENTENCE] == []


def test_a_sentence_is_counted_to_its_end_and_a_piece_of_code_as_a_word() -> None:
    text = "One sentence.\nIt has `a b c` here. `code` may begin one.\n\n- A point\n\n```\nno words\n```\n"
    assert [len(one.split()) for one in house().sentences_of(text)] == [2, 4, 4, 2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_headings_are_words_that_people_search_for(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.+)$", prose, flags=re.M)
    assert {heading: BETTER[heading] for heading in headings if heading in BETTER} == {}


def test_checklists_name_files_that_there_are() -> None:
    """Paths are below src/stretto/ or the root; NAME and what has no slash stand for others."""
    named = [path for path in re.findall(r"`([\w./-]+)`", EXTENDING) if "/" in path and "NAME" not in path]
    assert len(named) > 30
    there = [ROOT / "src" / "stretto", ROOT]
    assert [path for path in named if not any((folder / path).exists() for folder in there)] == []


def test_the_architecture_of_the_service_names_files_that_there_are() -> None:
    page = (ROOT / "docs" / "service-architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+/)+\w+\.py|\w+\.py|\w+/)`", page)
    assert len(named) > 20
    there = [ROOT / "src" / "stretto" / folder for folder in ("service", "")]
    assert [path for path in named if not any((folder / path).exists() for folder in there)] == []


def test_no_sentence_of_a_docstring_is_longer_than_can_be_read_at_once() -> None:
    counter = house()
    assert counter.long_docstring_sentences(counter.modules_of(ROOT))[0] == []


def test_no_docstring_makes_persons_of_jobs_nodes_and_files() -> None:
    counter = house()
    assert counter.with_persons(counter.modules_of(ROOT))[0] == []


@pytest.mark.parametrize(
    ("text", "makes"),
    [
        pytest.param("Who has the most GPUs goes first.", True, id="a job is no person"),
        pytest.param("Nobody holds the node.", True, id="nothing holds a node"),
        pytest.param("A user who waits is told.", False, id="a user is a person"),
        pytest.param("The user waits. Who has ended goes.", True, id="each sentence names its own person"),
        pytest.param("As `whoami` says.", False, id="code is no pronoun"),
    ],
)
def test_only_persons_are_who(text: str, makes: bool) -> None:
    assert house().makes_persons_of_things(text) is makes


def test_a_docstring_is_counted_by_words_and_what_explains_a_parameter_begins_a_sentence() -> None:
    counter = house()
    text = "Raises what is wrong. free, own: (nodes,) masks of GPUs.\n\nname      what it does\n"
    assert list(counter.sentences_of_docstring(text)) == [
        "Raises what is wrong.",
        "free, own: (nodes,) masks of GPUs.",
    ]
    assert counter.words_of("r = T - N S counts 1,000 jobs.") == ["counts", "1,000", "jobs."]
