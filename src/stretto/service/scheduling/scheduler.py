"""The scheduler that decides, from the words of its configuration: the same parts as in a simulation."""

from collections.abc import Mapping
from dataclasses import replace

from stretto.estimate.estimators import Share, share_of
from stretto.estimate.registry import estimator_for
from stretto.jobfile import JobSpec
from stretto.lend import CapacityLoaning
from stretto.model import InputError, traits_of
from stretto.place.registry import load_placer
from stretto.policies.registry import POLICIES, load_policy, policy_class
from stretto.scheduler.round import Scheduler
from stretto.service.state.events import Configured
from stretto.settings import resolved_settings, settings_of

SPACES = ("policy", "estimate", "place", "lend")
RULE = "rule"  # the setting of `place` that names a placer; the others are fields of the one in use


def scheduler_of(configured: Configured) -> Scheduler:
    """The policy, its estimator and its placer; InputError for what is wrong with the words."""
    settings = {**configured.resolved, **configured.settings}
    unknown = [key for key in settings if key.partition(".")[0] not in SPACES]
    if unknown:
        raise InputError(f"--set {unknown[0]}: a service has settings of {', '.join(SPACES)} only")
    traits = traits_of(policy_class(configured.policy))
    # A log with every setting of its day lacks those alone that came later: these were not there yet.
    is_former = configured.defaults == "former" or bool(configured.resolved)
    former = traits.former if is_former else {}
    policy = load_policy(configured.policy, **{**former, **_of(settings, "policy")})
    _ = policy.triggers
    place = _of(settings, "place")
    rule = place.pop(RULE, "") or configured.placer or policy.placer
    estimator = estimator_for(policy, _of(settings, "estimate"))
    return Scheduler(estimator, policy, load_placer(rule, **place), _lending(_of(settings, "lend")))


def with_resolved_settings(configured: Configured, scheduler: Scheduler) -> Configured:
    """The same words with every setting of the scheduler that they make.

    So the log is decided again as it was, also when later versions have other defaults.
    """
    parts = {
        "policy": scheduler.policy,
        "estimate": scheduler.estimator,
        "place": scheduler.placer,
        "lend": scheduler.lending,
    }
    rule = {f"place.{RULE}": configured.placer or scheduler.policy.placer}
    return replace(configured, resolved=rule | resolved_settings(parts))


def evidence_that_counts(policy: str, settings: Mapping[str, str]) -> str:
    """Whether jobs of a model share what they show, in the words of `Configured`."""
    share = share_of(policy_class(policy), _of(settings, "estimate"))
    return "model" if share is Share.MODEL else "own"


def check_types(spec: JobSpec, configured: Configured) -> None:
    """Raise InputError for a job that may mix GPU types under a policy that gives it one only."""
    if spec.resources.heterogeneous and not traits_of(policy_class(configured.policy)).mixes_types:
        mixing = ", ".join(name for name in POLICIES if traits_of(policy_class(name)).mixes_types)
        raise InputError(
            f"resources.heterogeneous: policy {configured.policy} gives a job GPUs of one type only, expected"
            f" one of {mixing}"
        )


def _lending(settings: Mapping[str, str]) -> CapacityLoaning | None:
    """The rule for nodes of lenders; None: they are out of reach. Raises InputError."""
    if not settings:
        return None
    if series := {"demand", "repeat"} & set(settings):
        of_what = "a simulation or an emulated cluster" if "demand" in series else "a simulation"
        raise InputError(
            f"lend.{min(series)}: expected of {of_what}; a lender of a service says itself what it needs"
        )
    usual = {"on_demand": "true"}  # nodes that really change hands are not lent to idle
    lending = CapacityLoaning(**settings_of(CapacityLoaning, {**usual, **settings}, space="lend"))
    if lending.foresight:
        raise InputError(
            f"lend.forecast={lending.forecast}: a service does not know what lenders will need, expected "
            "another forecast"
        )
    return lending


def _of(settings: Mapping[str, str], space: str) -> dict[str, str]:
    prefix = f"{space}."
    return {key[len(prefix) :]: value for key, value in settings.items() if key.startswith(prefix)}
