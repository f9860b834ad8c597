"""Results with the bounds of their workloads, which are the same for all policies."""

from collections.abc import Sequence
from dataclasses import replace

from stretto.experiments.spec import RunSpec, set_up
from stretto.sim.bounds import bounds_of
from stretto.sim.result import Bounds, Result


def with_bounds(results: Sequence[Result], specs: Sequence[RunSpec]) -> list[Result]:
    """Each result with the bounds of its workload; specs: what each of them was, of one comparison.

    Specs of one comparison differ in their policy, trace and seed, and in settings of policies alone.
    """
    made: dict[tuple[str, int], Bounds] = {}
    bounded = []
    for result, spec in zip(results, specs, strict=True):
        key = (spec.trace, spec.seed)
        if key not in made:
            made[key] = bounds_of(*set_up(spec))
        bounded.append(replace(result, bounds=made[key]))
    return bounded
