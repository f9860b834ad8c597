"""By what factor should the learning rate change with the batch size?

With k = M/M0 and the gain of `efficiency.gain`. Sia (SOSP 2023), section 3.5: square root for AdamW models,
AdaScale for SGD models.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stretto.errors import InputError


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a rule may look at."""

    scale: float  # M/M0
    gain: float = 1.0  # AdaScale's gain at M; only the two rules named after it use it
    epoch: float = math.inf  # passes over the data so far; only LEGW uses it
    warm_up_epochs: float = 0.0  # of the run at M0; only LEGW uses it


Rule = Callable[[Scaling], float]


def linear(at: Scaling) -> float:
    """The factor k. Goyal et al. (2017); ONES (SC 2021), section 3.3.2."""
    return at.scale


def square_root(at: Scaling) -> float:
    """√k. Krizhevsky (2014)."""
    return math.sqrt(at.scale)


def adascale(at: Scaling) -> float:
    """The gain, between 1 and k. Johnson et al. (ICML 2020)."""
    return at.gain


def adamscale(at: Scaling) -> float:
    """√gain, for adaptive optimisers. AdaptDL's published code."""
    return math.sqrt(at.gain)


def legw(at: Scaling) -> float:
    """√k, reached linearly over k times the warm-up epochs. You et al. (SC 2019)."""
    ramp_epochs = at.scale * at.warm_up_epochs
    ramp = 1.0 if at.epoch >= ramp_epochs else at.epoch / ramp_epochs
    return ramp * math.sqrt(at.scale)


RULES: Mapping[str, Rule] = {
    "linear": linear,
    "square-root": square_root,
    "adascale": adascale,
    "adamscale": adamscale,
    "legw": legw,
}


def rule_named(name: str) -> Rule:
    """The rule of that name; raises `InputError` naming the rules there are."""
    if name not in RULES:
        raise InputError(f"learning-rate rule must be one of {', '.join(RULES)}, got {name!r}")
    return RULES[name]
