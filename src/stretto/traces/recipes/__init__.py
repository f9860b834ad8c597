"""Workloads made fit for an experiment: labels, ranges and deadlines that a trace does not have.

A trace name may be followed by recipes, as in `chronus-mix2@cornucopia:mislabelled=0.05,seed=1`. What a
recipe draws is drawn from a seed of its own, and the workload says in its source what was added.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stretto.errors import InputError
from stretto.settings import settings_of
from stretto.suggestions import did_you_mean
from stretto.traces.recipes import bootstrap, cornucopia, lyra, sia, unisched
from stretto.traces.workload import Workload

MARK = "@"  # between the name of a trace and that of a recipe


@dataclass(frozen=True)
class Recipe:
    """A function of a workload, and the frozen dataclass of its parameters."""

    parameters: type
    prepare: Callable[[Workload, Any], Workload]
    about: str  # one line for people


RECIPES: Mapping[str, Recipe] = {
    "bootstrap": Recipe(
        bootstrap.Bootstrap,
        bootstrap.prepare,
        "whole days drawn with replacement, one after the other",
    ),
    "cornucopia": Recipe(
        cornucopia.Cornucopia,
        cornucopia.prepare,
        "interactive and batch jobs, elastic up to twice the request",
    ),
    "lyra": Recipe(
        lyra.LyraScenario,
        lyra.prepare,
        "fungible, elastic and heterogeneous jobs, without checkpoints",
    ),
    "sia": Recipe(sia.SiaAdaptivity, sia.prepare, "jobs that keep their batch size, or their GPUs as well"),
    "unisched": Recipe(
        unisched.UniSchedScenario,
        unisched.prepare,
        "deadlines and rewards drawn anew, a part of the jobs stopping by performance",
    ),
}


def prepared(workload: Workload, recipe: str) -> Workload:
    """The workload after a recipe `NAME:key=value,…`; InputError for what is wrong with the words."""
    name, _, text = recipe.partition(":")
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}, {did_you_mean(name, RECIPES)}")
    texts: dict[str, str] = {}
    for part in text.split(",") if text else []:
        key, equals, value = part.partition("=")
        if not equals or key in texts:
            raise InputError(f"recipe {name}: parameters must be key=value, each once, got {part!r}")
        texts[key] = value
    chosen = RECIPES[name]
    values = settings_of(chosen.parameters, texts, space=f"recipe {name}")
    if values.get("seed", 0) < 0:
        raise InputError(f"recipe {name}: seed must be >= 0, got {values['seed']}")
    made = chosen.prepare(workload, chosen.parameters(**values))
    if not made.jobs:
        raise InputError(f"recipe {recipe}: expected one that leaves jobs of {workload.name}, none is left")
    return made


def read_prepared(trace: str, read: Callable[[str], Workload]) -> Workload:
    """The workload of a trace name after the recipes that follow it; `read`: from a plain name."""
    base, recipes = base_of(trace)
    workload = read(base)
    for recipe in recipes:
        workload = prepared(workload, recipe)
    return replace(workload, name=MARK.join((workload.name, *recipes)))


def base_of(trace: str) -> tuple[str, list[str]]:
    """(name of the trace, recipes that follow it). The mark may also be part of a file's path."""
    parts = trace.split(MARK)
    for count in range(len(parts), 1, -1):
        if Path(MARK.join(parts[:count])).is_file():
            return MARK.join(parts[:count]), parts[count:]
    return parts[0], parts[1:]
