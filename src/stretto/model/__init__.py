"""What are we talking about? The nouns, as frozen values: job, cluster, snapshot, speeds, shares, plan."""

from stretto.model.arrays import BoolArray, FloatArray, IntArray, floats, frozen, ints
from stretto.model.cluster import Cluster, GpuType, Node, NodeId, cluster_of
from stretto.model.configurations import (
    Configurations,
    configurations_from,
    counts_within,
    powers_and_whole_nodes,
    virtual_nodes,
)
from stretto.model.constraints import NO_CONSTRAINTS, Constraints
from stretto.model.errors import BadPlan, InputError, NotDeclared, StrettoError
from stretto.model.fair_share import FairShare, account_of
from stretto.model.job import UNLIMITED_GPUS, Adaptivity, Goal, Job, JobId, Kind, Reward
from stretto.model.knowledge import (
    Durations,
    Evidence,
    Learning,
    MeasuredSpeeds,
    Progress,
    TrainingLimits,
    View,
)
from stretto.model.lending import LenderState, Loans, nodes_of
from stretto.model.memory import Memory, digest
from stretto.model.observations import NOTHING_OBSERVED, Observations, Point
from stretto.model.placement import Allocation, Placement, lowest_gpus, no_placement, shift
from stretto.model.plan import Action, Pinned, Plan, Preemption, Reasons, Shares, Verb, Why, actions_between
from stretto.model.policy import (
    ON_CHANGE,
    BidsForGpus,
    Policy,
    PolicyTraits,
    ProfilesFirst,
    Triggers,
    every,
    on_change,
    traits_of,
)
from stretto.model.priority_class import PriorityClass, with_priority_class
from stretto.model.queue import DEFAULT_QUEUE, Queue
from stretto.model.reservation import Reservation, check_reservation
from stretto.model.snapshot import CapacityNotice, JobTable, Requests, Snapshot, Trigger
from stretto.model.speeds import Speeds, no_speeds
from stretto.model.usage import HALF_LIFE_S, PARTS_OF_A_GPU, Account, UsageLedger, rate_of

__all__ = [
    "DEFAULT_QUEUE",
    "HALF_LIFE_S",
    "NOTHING_OBSERVED",
    "NO_CONSTRAINTS",
    "ON_CHANGE",
    "PARTS_OF_A_GPU",
    "UNLIMITED_GPUS",
    "Account",
    "Action",
    "Adaptivity",
    "Allocation",
    "BadPlan",
    "BidsForGpus",
    "BoolArray",
    "CapacityNotice",
    "Cluster",
    "Configurations",
    "Constraints",
    "Durations",
    "Evidence",
    "FairShare",
    "FloatArray",
    "Goal",
    "GpuType",
    "InputError",
    "IntArray",
    "Job",
    "JobId",
    "JobTable",
    "Kind",
    "Learning",
    "LenderState",
    "Loans",
    "MeasuredSpeeds",
    "Memory",
    "Node",
    "NodeId",
    "NotDeclared",
    "Observations",
    "Pinned",
    "Placement",
    "Plan",
    "Point",
    "Policy",
    "PolicyTraits",
    "Preemption",
    "PriorityClass",
    "ProfilesFirst",
    "Progress",
    "Queue",
    "Reasons",
    "Requests",
    "Reservation",
    "Reward",
    "Shares",
    "Snapshot",
    "Speeds",
    "StrettoError",
    "TrainingLimits",
    "Trigger",
    "Triggers",
    "UsageLedger",
    "Verb",
    "View",
    "Why",
    "account_of",
    "actions_between",
    "check_reservation",
    "cluster_of",
    "configurations_from",
    "counts_within",
    "digest",
    "every",
    "floats",
    "frozen",
    "ints",
    "lowest_gpus",
    "no_placement",
    "no_speeds",
    "nodes_of",
    "on_change",
    "powers_and_whole_nodes",
    "rate_of",
    "shift",
    "traits_of",
    "virtual_nodes",
    "with_priority_class",
]
