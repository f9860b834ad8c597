"""Which estimators are there, and which one serves a policy?

An estimator of this package is one line in ESTIMATORS. One of another package is an entry point of the group
`stretto.estimators`. Files are not loaded by name: a user of a service may name settings in a what-if.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from stretto.components import Registry
from stretto.model import Configurations, InputError, Policy, Snapshot, Speeds, View, traits_of

ESTIMATORS: dict[str, str] = {
    "goodput": "stretto.estimate.estimators:OnlineGoodput",
    "none": "stretto.estimate.estimators:NoEstimate",
    "tables": "stretto.estimate.estimators:MeasuredTables",
}
REGISTRY = Registry(
    kind="estimator",
    ours=ESTIMATORS,
    group="stretto.estimators",
    space="estimate",
    required=("views", "estimate"),
    installed_only=True,
)
MODEL = "model"  # the setting that names an estimator; the others are fields of the one in use


class Estimator(Protocol):
    """How fast would each job run on each configuration? A frozen dataclass of its settings."""

    views: ClassVar[frozenset[View]]  # what it reads beside requests and what is held now

    def estimate(self, snapshot: Snapshot, configurations: Configurations) -> Speeds:
        """One row for each job of the snapshot, one column for each configuration."""


def estimator_for(policy: Policy, settings: Mapping[str, Any]) -> Estimator:
    """The estimator that the setting `model` names, or else the one that serves the policy's views.

    The other settings are those of the estimator. Where none is named they are those of `goodput`. To
    policies that look at no goodput they make no difference, so several policies can be run with the same
    ones. InputError for unknown names and values, and for an estimator that reads what the policy does not
    declare. A snapshot shows that to neither.
    """
    given = dict(settings)
    # The one that is named, if the policy declares what it reads.
    name = str(given.pop(MODEL, ""))
    if name:
        estimator: Estimator = REGISTRY.load(name, **given)
        if lacks := sorted(view.value for view in estimator.views - policy.views):
            raise InputError(
                f"estimate.{MODEL}={name} needs the views {', '.join(lacks)}, "
                f"which policy {policy.name} does not declare"
            )
        return estimator
    # Else by what the policy declares; wrong settings are found out whichever it is.
    goodput: Estimator = REGISTRY.load("goodput", **given)
    if View.GOODPUT_MODEL in policy.views:
        return goodput
    looked_up = View.THROUGHPUT_TABLE in policy.views and not traits_of(policy).tables_only
    served: Estimator = REGISTRY.load("tables" if looked_up else "none")
    return served
