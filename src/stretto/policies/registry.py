"""Which policies are there, and how does one get them by name?

A policy of this package is one line in POLICIES. One of another package is an entry point of the group
`stretto.policies`; one in a file of one's own is named `path/to/file.py:Class`, any other `module:Class`.
"""

import inspect
from dataclasses import dataclass

from stretto.components import Registry
from stretto.model import InputError, Policy, Trigger, traits_of

POLICIES: dict[str, str] = {
    "3sigma": "stretto.policies.three_sigma.policy:ThreeSigma",
    "afs": "stretto.policies.afs:Afs",
    "chronus": "stretto.policies.chronus.policy:Chronus",
    "cornucopia": "stretto.policies.cornucopia.policy:Cornucopia",
    "drl": "stretto.policies.drl.policy:LearnedSizes",
    "edf": "stretto.policies.edf:EarliestDeadlineFirst",
    "elasticflow": "stretto.policies.elasticflow:ElasticFlow",
    "fifo": "stretto.policies.fifo:FirstInFirstOut",
    "gandiva": "stretto.policies.gandiva:Gandiva",
    "gavel": "stretto.policies.gavel.policy:Gavel",
    "genie": "stretto.policies.genie:Genie",
    "hydra": "stretto.policies.hydra:Hydra",
    "qssf": "stretto.policies.srtf:QuasiShortestServiceFirst",
    "lyra": "stretto.policies.lyra.policy:Lyra",
    "lyra-tuned": "stretto.policies.lyra.policy:LyraTuned",
    "ones": "stretto.policies.ones.policy:Ones",
    "optimus": "stretto.policies.optimus:Optimus",
    "pollux": "stretto.policies.pollux.policy:Pollux",
    "shockwave": "stretto.policies.shockwave.policy:Shockwave",
    "sia": "stretto.policies.sia.policy:Sia",
    "sjf": "stretto.policies.sjf:ShortestJobFirst",
    "srsf": "stretto.policies.srtf:ShortestRemainingServiceFirst",
    "stretto": "stretto.policies.stretto.policy:Stretto",
    "srtf": "stretto.policies.srtf:ShortestRemainingTimeFirst",
    "synergy": "stretto.policies.synergy:Synergy",
    "themis": "stretto.policies.themis:Themis",
    "tiresias": "stretto.policies.tiresias:Tiresias",
    "tiresias-gittins": "stretto.policies.tiresias:TiresiasGittins",
    "unisched": "stretto.policies.unisched.policy:UniSched",
}
REGISTRY = Registry(
    kind="policy",
    ours=POLICIES,
    group="stretto.policies",
    space="policy",
    required=("name", "views", "placer", "triggers", "configurations", "allocate"),
)


@dataclass(frozen=True, slots=True)
class PolicyDescription:
    """One policy with its defaults, for people to read."""

    name: str  # under which it is registered
    summary: str  # the first line of its docstring
    views: tuple[str, ...]  # what it needs to know beside requests and what is held
    triggers: tuple[str, ...]  # when it is asked
    placer: str
    paper: str
    starvation: str  # which jobs may be passed over, and for how long
    order: str = ""  # which comes first among jobs of one priority, and what of that is left to fair share


def load_policy(name: str, /, **settings: object) -> Policy:
    """A policy by its registered name, `module:Class` or `path/to/file.py:Class`, with some fields set.

    Settings may be texts, as they come from a command line. Raises InputError for an unknown name or
    setting, a value of the wrong type, and anything that is no policy.
    """
    policy: Policy = REGISTRY.load(name, **settings)
    return policy


def policy_class(name: str) -> type:
    """The dataclass behind a name; InputError where there is none."""
    return REGISTRY.class_of(name)


def policy_names() -> tuple[str, ...]:
    """Every registered name, in alphabetical order; ours win over another package's."""
    return REGISTRY.names()


def describe_policies() -> tuple[PolicyDescription, ...]:
    """A row for each registered policy with its default settings.

    One of another package that cannot be loaded says so in its row; it does not hide the others.
    """
    rows = []
    for name in policy_names():
        try:
            rows.append(describe(name, load_policy(name)))
        except (InputError, ImportError) as error:
            if name in POLICIES:
                raise
            rows.append(PolicyDescription(name, f"cannot be loaded: {error}", (), (), "", "", ""))
    return tuple(rows)


def describe(name: str, policy: Policy) -> PolicyDescription:
    """A policy in words."""
    traits = traits_of(policy)
    triggers = sorted(policy.triggers.on)
    period = f" every {policy.triggers.round_s:g} s" if policy.triggers.round_s is not None else ""
    return PolicyDescription(
        name=name,
        summary=(inspect.getdoc(type(policy)) or "").partition("\n")[0],
        views=tuple(sorted(view.value for view in policy.views)),
        triggers=tuple(f"{on.value}{period if on is Trigger.ROUND else ''}" for on in triggers),
        placer=policy.placer,
        paper=traits.paper,
        starvation=traits.starvation,
        order=traits.order,
    )
