"""Which simulations make up a comparison, and is everything that they will read in order?"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from stretto.errors import InputError
from stretto.experiments.spec import RunSpec, set_up, setup_of
from stretto.place.registry import REGISTRY as PLACERS
from stretto.policies.registry import policy_class
from stretto.sim.run import world_of
from stretto.suggestions import did_you_mean


def specs_of(
    policies: Sequence[str],
    traces: Sequence[str],
    seeds: Sequence[int],
    settings: Mapping[str, str],
    **rest: Any,
) -> list[RunSpec]:
    """A run for each policy, trace and seed, in this order; `rest` are the other fields of a run.

    A setting of `policy` or `place` goes to those that have it. All input is looked at before anything runs.
    Raises InputError for what is wrong with it. A setting that fits no policy is wrong, and so are traces or
    policies that a report could not tell apart.
    """
    names, sources = tuple(dict.fromkeys(policies)), tuple(dict.fromkeys(traces))
    if not names:
        raise InputError("--policies must name at least one policy, got none")
    own = {
        name: {key: value for key, value in settings.items() if _has(name, key, settings)} for name in names
    }
    for key in settings:
        if not any(key in chosen for chosen in own.values()):
            raise InputError(f"unknown setting {key}, {_known(names, key, settings)}")
    specs = [
        RunSpec(policy=name, trace=source, seed=seed, settings=own[name], **rest)
        for name in names
        for source in sources
        for seed in seeds
    ]
    _check_policies([spec for spec in specs if (spec.trace, spec.seed) == (specs[0].trace, specs[0].seed)])
    _check_traces([spec for spec in specs if (spec.policy, spec.seed) == (specs[0].policy, specs[0].seed)])
    return specs


def _check_policies(specs: Sequence[RunSpec]) -> None:
    _tell_apart("policies", {spec.policy: setup_of(spec).policy.name for spec in specs})


def _check_traces(specs: Sequence[RunSpec]) -> None:
    called = {}
    for spec in specs:
        workload, setup = set_up(spec)
        world_of(workload, setup)  # which finds out whether every model is known
        called[spec.trace] = workload.name
    _tell_apart("traces", called)


def _tell_apart(what: str, called: Mapping[str, str]) -> None:
    """Raise InputError where two of them have the same name in results."""
    first: dict[str, str] = {}
    for source, name in called.items():
        if name in first:
            raise InputError(
                f"{what} must have names of their own, but {first[name]} and {source} are both {name}"
            )
        first[name] = source


def _has(policy: str, key: str, settings: Mapping[str, str]) -> bool:
    """Whether a setting says anything to a policy or its placer; those of other spaces do to all."""
    component = _component(policy, key, settings)
    return component is None or key.partition(".")[2] in _names(component)


def _known(policies: Sequence[str], key: str, settings: Mapping[str, str]) -> str:
    components = [_component(policy, key, settings) for policy in policies]
    names = {name for component in components if component is not None for name in _names(component)}
    return did_you_mean(key.partition(".")[2], names) if names else "there is none"


def _component(policy: str, key: str, settings: Mapping[str, str]) -> type | None:
    space, _, name = key.partition(".")
    if space == "policy":
        return policy_class(policy)
    if space == "place" and name != "rule":
        made: Any = policy_class(policy)
        return PLACERS.class_of(settings.get("place.rule", made.placer))
    return None


def _names(component: type) -> set[str]:
    return {entry.name for entry in fields(component) if entry.init and not entry.name.startswith("_")}
