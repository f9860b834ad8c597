"""Modules have names that the vocabulary has, or everybody knows; values have names that say something."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house import house

from stretto.policies.registry import POLICIES
from stretto.traces.datasets import DATA_SETS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "stretto"

# Words of the trade that need no definition here, and names of others' programs.
PLAIN = """
accounting api app arrival async attaching autoscaling axes bar bench branching build built cdf cell charts
check child class client clock comparison component conductor config connection content dataset default demand
demo display dot draft entry env equality evict explain export file fill fit fixture fragment frame health
hierarchy history homogeneous hosting html json knowledge kubeflow label legend lending length lightning main
maker making markdown network object openapi option outcome parse patience pin play plugin printing privilege
protocol quantity ratio reading recipe registry remaining reproduce reproduction reserve resizing result retry
runtime sampler scene serve setup sheet simulate skypilot spec status structured style submit suggestion
summary svg synthetic target terminal timeline timing top transformers trouble unix waiting watch window
wording
"""
# Private words for what the field has a name for.
BANNED = """
act asking beats begin belief bury clearing collecting deciding deleting desk driving errands
foresight gate gauge keeper keeping lens link looking meters news notifying occupied orders owning
retiring seen slices standing steward wisher wishing
"""
# The same for functions, classes, parameters, values and docstrings, of the package and of its tests: each
# with the folder in which it means what another word should say.
BANNED_NAMES = {
    **dict.fromkeys(("keeper", "steward", "books"), ""),
    **dict.fromkeys(("slice", "holder", "holding"), "backends"),
}
# Plain English in a docstring, but no name.
BANNED_AS_NAMES = {"furthest": "", "link": "backends/local"}
# Names on disk and on the wire that older versions wrote: workers that they began are adopted, their files
# read.
STORED_NAMES = {
    "keeper_pid": "running.json of a worker: the process id of its supervisor",
    "keeper_ticks": "the same: when that process started",
    "keeper.log": "what a supervisor had to say",
    "keeper-": "the copy of the supervisor's program that nodes of Slurm run",
    "slice.json": "the Slurm job that was submitted for a worker",
    "steward-": "the names of node agents among Ray's actors",
    "books": "the key of ended jobs for their accounting, in the table of the log",
}
# Words that any value could be called by.
EMPTY = ("one", "found", "said", "those", "at", "held")
# Parts that still have some; the others have none, and get none.
NOT_YET = ("stretto.service.scheduling.",)


def words_of_modules() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.stem.startswith("__") and "migrations" not in path.parts:
            yield from ((word, str(path.relative_to(PACKAGE))) for word in path.stem.split("_"))


def forms_of(word: str) -> set[str]:
    singular = f"{word[:-3]}y" if word.endswith("ies") else word.removesuffix("s")
    return {word, singular, f"{word}s", word.removesuffix("es")}


def test_every_word_in_a_name_of_a_module_is_defined_or_plain() -> None:
    page = (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8").lower()
    names = {part for name in (*POLICIES, *(one.name for one in DATA_SETS)) for part in re.split(r"\W", name)}
    known = {*re.findall(r"[a-z0-9]+", page), *PLAIN.split(), *names}
    assert {word: file for word, file in words_of_modules() if not forms_of(word) & known} == {}


def test_no_module_has_a_private_word_for_what_the_field_has_a_name_for() -> None:
    assert [file for word, file in words_of_modules() if word in BANNED.split()] == []


def test_words_that_are_said_to_be_plain_are_used() -> None:
    used = {form for word, _ in words_of_modules() for form in forms_of(word)}
    assert sorted({*PLAIN.split()} - used) == []


def test_values_in_longer_functions_are_named_by_what_they_are() -> None:
    counter = house()
    assert {*EMPTY} <= {*counter.EMPTY_NAMES.split()}
    bound, _ = counter.empty_names(counter.modules_of(ROOT))
    assert [
        line for line in bound if line.rpartition(": ")[2] in EMPTY and not line.startswith(NOT_YET)
    ] == []


def names_in(tree: ast.Module) -> Iterator[str]:
    """What a module calls its functions, classes, parameters, values and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.alias(asname=str(name)) | ast.keyword(arg=str(name)):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def docstrings_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def private_words_in(text: str, folder: str) -> list[str]:
    """Private words in the names and docstrings of a module, without names that are stored."""
    tree = ast.parse(text)
    in_prose = {word for word, place in BANNED_NAMES.items() if place in folder}
    in_names = in_prose | {word for word, place in BANNED_AS_NAMES.items() if place in folder}
    found = set()
    for name in names_in(tree):
        parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
        if (parts | {part.removesuffix("s") for part in parts}) & in_names or re.search(
            r"for_ever(?!y)", name.lower()
        ):
            found.add(name)
    prose = " ".join(docstrings_in(tree))
    for stored in STORED_NAMES:
        prose = re.sub(rf"\b{stored}(?![a-z])", "", prose) if stored not in in_prose else prose
    words = re.findall(r"[a-z]+", prose.lower())
    return sorted(found | {word for word in words if {word, word.removesuffix("s")} & in_prose})


def test_no_name_and_no_docstring_has_a_private_word() -> None:
    paths = [path for top in ("src", "tests", "benchmarks") for path in sorted((ROOT / top).rglob("*.py"))]
    found = {
        name: private_words_in(path.read_text(encoding="utf-8"), name)
        for path in paths
        if path != Path(__file__)
        for name in [path.relative_to(ROOT).as_posix()]
    }
    assert {name: words for name, words in found.items() if words} == {}


def test_every_name_that_is_stored_is_still_written() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    assert [name for name in STORED_NAMES if f'"{name}' not in sources and f"'{name}" not in sources] == []


def test_the_walk_sees_private_words_wherever_they_may_stand() -> None:
    text = '''
"""Reads keeper.log, which the steward wrote."""
class BooksOfAJob: ...
def run_for_ever(keepers: int, *, link: str) -> None:
    """Of one slice."""
    self.furthest = slice(keepers)
'''
    everywhere = ["BooksOfAJob", "furthest", "keepers", "run_for_ever", "steward"]
    assert private_words_in(text, "src/stretto/sim/run.py") == everywhere
    in_backend = [*everywhere, "link", "slice"]
    assert private_words_in(text, "src/stretto/backends/local/run.py") == sorted(in_backend)
