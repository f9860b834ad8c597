"""Which policies are there, and how does one get them by name?

A policy of this package is one line in POLICIES. One of another package is an entry point of the group
`stretto.policies`; one in a file of one's own is named `path/to/file.py:Class`, any other `module:Class`.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib.metadata import entry_points
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from stretto.model import InputError, Policy, Trigger, traits_of
from stretto.model.spelling import did_you_mean
from stretto.settings import settings_of

POLICIES: dict[str, str] = {
    "3sigma": "stretto.policies.three_sigma:ThreeSigma",
    "afs": "stretto.policies.afs:Afs",
    "chronus": "stretto.policies.chronus:Chronus",
    "cornucopia": "stretto.policies.cornucopia:Cornucopia",
    "drl": "stretto.policies.drl:LearnedSizes",
    "edf": "stretto.policies.edf:EarliestDeadlineFirst",
    "elasticflow": "stretto.policies.elasticflow:ElasticFlow",
    "fifo": "stretto.policies.fifo:FirstInFirstOut",
    "gandiva": "stretto.policies.gandiva:Gandiva",
    "gavel": "stretto.policies.gavel:Gavel",
    "genie": "stretto.policies.genie:Genie",
    "hydra": "stretto.policies.hydra:Hydra",
    "qssf": "stretto.policies.srtf:QuasiShortestServiceFirst",
    "lyra": "stretto.policies.lyra:Lyra",
    "lyra-tuned": "stretto.policies.lyra:LyraTuned",
    "ones": "stretto.policies.ones:Ones",
    "optimus": "stretto.policies.optimus:Optimus",
    "pollux": "stretto.policies.pollux:Pollux",
    "shockwave": "stretto.policies.shockwave:Shockwave",
    "sia": "stretto.policies.sia:Sia",
    "sjf": "stretto.policies.sjf:ShortestJobFirst",
    "srsf": "stretto.policies.srtf:ShortestRemainingServiceFirst",
    "srtf": "stretto.policies.srtf:ShortestRemainingTimeFirst",
    "synergy": "stretto.policies.synergy:Synergy",
    "themis": "stretto.policies.themis:Themis",
    "tiresias": "stretto.policies.tiresias:Tiresias",
    "tiresias-gittins": "stretto.policies.tiresias:TiresiasGittins",
    "unisched": "stretto.policies.unisched:UniSched",
}
GROUP = "stretto.policies"
REQUIRED = ("name", "views", "placer", "triggers", "configurations", "allocate")


@dataclass(frozen=True, slots=True)
class PolicyDescription:
    """One policy with its defaults, for people to read."""

    name: str  # under which it is registered
    summary: str  # the first line of its docstring
    views: tuple[str, ...]  # what it needs to know beside requests and what is held
    triggers: tuple[str, ...]  # when it is asked
    placer: str
    paper: str
    starvation: str  # who may be passed over, and for how long
    order: str = ""  # who comes first among jobs of one priority, and what of that is left to fair share


def load_policy(name: str, **settings: object) -> Policy:
    """A policy by its registered name, `module:Class` or `path/to/file.py:Class`, with some fields set.

    Settings may be texts, as they come from a command line. Raises InputError for an unknown name or
    setting, a value of the wrong type, and anything that is no policy.
    """
    component = policy_class(name)
    given = settings_of(component, settings, space="policy")
    for entry in fields(component):
        if entry.init and entry.default is entry.default_factory is MISSING and entry.name not in given:
            raise InputError(f"policy {name!r} has no default for policy.{entry.name}: it must be set")
    policy: Policy = component(**given)
    return policy


def policy_class(name: str) -> type:
    """The dataclass behind a name; InputError where there is none."""
    target = POLICIES.get(name) or _from_entry_points().get(name) or name
    if ":" not in target:
        known = policy_names()
        hint = did_you_mean(name, known)
        listed = "" if hint.startswith("expected") else f"; there are {', '.join(known)}"
        raise InputError(
            f"unknown policy {name!r}, {hint}{listed}, and module:Class or path/to/file.py:Class"
        )
    where, _, attribute = target.rpartition(":")
    component = getattr(_module(where), attribute, None)
    if not (inspect.isclass(component) and is_dataclass(component)):
        raise InputError(f"policy {name!r}: expected a dataclass {attribute!r} in {where}")
    lacks = [part for part in REQUIRED if not hasattr(component, part)]
    if lacks:
        raise InputError(f"{name!r} is no policy: {attribute} has no {', '.join(lacks)}")
    return component


def policy_names() -> tuple[str, ...]:
    """Every registered name, in alphabetical order; ours win over another package's."""
    return tuple(sorted({**_from_entry_points(), **POLICIES}))


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


def _from_entry_points() -> dict[str, str]:
    """`module:Class` by name, as installed packages announce them."""
    return {point.name: point.value for point in entry_points(group=GROUP)}


def _module(where: str) -> ModuleType:
    if where.endswith(".py"):
        return _module_in_file(Path(where))
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise InputError(f"policy module {where!r} cannot be imported: {error}") from error


def _module_in_file(path: Path) -> ModuleType:
    """The module in a file; the same one as long as the file's content stays the same."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"policy file {path} cannot be read: {error.strerror}") from error
    name = f"stretto_policy_{path.stem}_{hashlib.blake2b(content, digest_size=8).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"policy file {path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == spec.origin]
        at = f" (line {lines[-1]})" if lines else ""
        raise InputError(
            f"policy file {path} cannot be imported: {type(error).__name__}: {error}{at}"
        ) from error
    return module
