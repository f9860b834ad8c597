"""Modules have names that the vocabulary has, or everybody knows; values have names that say something."""

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
accounting app arrival attaching autoscaling axes bench branching build built cdf
cell check child class client clock comparison component conductor config connection content dataset
demand demo display dot draft entry env evict explain fill fit health
hierarchy history homogeneous hosting json knowledge kubeflow lending lightning main maker
making network openapi option outcome parse patience pin play plugin
printing protocol quantity ratio reading recipe registry remaining reproduce reproduction
reserve result runtime sampler scene serve setup sheet simulate skypilot spec status
structured submit suggestion summary svg synthetic terminal timeline timing top transformers trouble
unix watch window wording
"""
# Private words for what the field has a name for.
BANNED = """
act asking beats begin belief bury clearing collecting deciding deleting desk driving errands
foresight gate gauge keeper keeping lens link looking meters news notifying occupied orders owning
retiring seen slices standing steward wisher wishing
"""
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
