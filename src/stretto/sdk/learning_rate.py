"""By what factor the learning rate changes with the batch.

With k = M/M0, M the batch and M0 the one that the learning rate was chosen for.
"""

from collections.abc import Callable, Mapping
from math import sqrt

from stretto.model.errors import InputError

Rule = Callable[[float, float], float]  # of k and the gain


def linear(scale: float, gain: float) -> float:
    """The factor k. Goyal et al. (2017)."""
    return scale


def square_root(scale: float, gain: float) -> float:
    """√k, for adaptive optimisers. Krizhevsky (2014)."""
    return sqrt(scale)


def adascale(scale: float, gain: float) -> float:
    """The gain of one step at M over one at M0. Johnson et al. (ICML 2020), section 3."""
    return gain


def adamscale(scale: float, gain: float) -> float:
    """√gain, for adaptive optimisers."""
    return sqrt(gain)


def fixed(scale: float, gain: float) -> float:
    """Always 1."""
    return 1.0


RULES: Mapping[str, Rule] = {
    "linear": linear,
    "square-root": square_root,
    "sqrt": square_root,
    "adascale": adascale,
    "adamscale": adamscale,
    "fixed": fixed,
}


def rule_named(name: str) -> Rule:
    """The rule of that name; raises `InputError` naming the rules there are."""
    if name not in RULES:
        raise InputError(f"lr_scaling must be one of {', '.join(RULES)}, got {name!r}")
    return RULES[name]
