"""One simulation as a few words: names, paths and settings, which can be sent to another process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any

from stretto.clusters import built_in_clusters, read_cluster_file
from stretto.experiments.lenders import lending_of
from stretto.model import Cluster, InputError, Policy, traits_of
from stretto.policies.registry import load_policy, policy_class
from stretto.settings import settings_of
from stretto.sim.constraints import NOTHING_SAID, constrained, read_constraints
from stretto.sim.fairness import with_fairness
from stretto.sim.result import Result
from stretto.sim.run import Record, Setup, scheduler_of, simulate, world_of
from stretto.sim.settings import Fidelity, SimSettings
from stretto.sim.truth.profiles import read_profiles
from stretto.suggestions import did_you_mean
from stretto.traces import Workload, check_against, make_workload, read_trace
from stretto.traces.recipes import MARK, base_of, read_prepared
from stretto.traces.synthetic import is_made

DEMAND = "lend.demand"  # the only setting that may be a path
SPACES = ("sim", "policy", "estimate", "place", "lend")


@dataclass(frozen=True)
class RunSpec:
    """What `stretto simulate` is told."""

    cluster: str  # a file or a built-in name
    trace: str
    policy: str
    profiles: str = ""  # a directory of measured profiles; "" = none
    seed: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)  # SPACE.KEY -> value, as typed
    skip_bad: bool = False
    fairness: bool = False
    window: float = 1.0  # keep the jobs submitted in this first share of the arrivals
    constraints: str = ""  # a file of queues, reservations, sizes and priority classes; "" = none
    former: bool = False  # settings that were not there yet when the run was logged mean what it did then

    @property
    def words(self) -> str:
        """The run in a few words, for messages."""
        return f"{self.policy} on {self.trace}, seed {self.seed}"

    def from_anywhere(self) -> "RunSpec":
        """The same run, in words that mean the same in every directory: paths of files are absolute."""

        def absolute(name: str) -> str:
            return str(Path(name).resolve()) if name and Path(name).exists() else name

        file, colon, attribute = self.policy.rpartition(":")
        base, recipes = base_of(self.trace)
        return replace(
            self,
            cluster=self.cluster if self.cluster in built_in_clusters() else absolute(self.cluster),
            trace=MARK.join((absolute(base), *recipes)),
            policy=absolute(file) + colon + attribute,
            profiles=absolute(self.profiles),
            constraints=absolute(self.constraints),
            settings={
                key: absolute(value) if key == DEMAND else value for key, value in self.settings.items()
            },
        )

    def of(self, space: str) -> dict[str, str]:
        """The settings of one space, by key."""
        prefix = f"{space}."
        return {key[len(prefix) :]: value for key, value in self.settings.items() if key.startswith(prefix)}


def parse_settings(words: list[str], spaces: Sequence[str] = SPACES, called: str = "--set") -> dict[str, str]:
    """SPACE.KEY=VALUE words as a mapping; InputError for anything else. called: where the words stand."""
    settings: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        space, dot, name = key.partition(".")
        if not equals or not dot or not name:
            raise InputError(
                f"{called} {word}: expected SPACE.KEY=VALUE with SPACE one of {', '.join(spaces)}"
            )
        if space not in spaces:
            raise InputError(f"{called} {word}: unknown space {space!r}, {did_you_mean(space, spaces)}")
        if key in settings:
            raise InputError(f"{called} {word}: {key} is set twice, first to {settings[key]!r}")
        settings[key] = value
    return settings


def set_up(spec: RunSpec) -> tuple[Workload, Setup]:
    """The workload and everything around it; raises InputError for whatever is wrong with the words."""
    setup = setup_of(spec)
    workload = check_against(_workload(spec), _within_reach(setup), spec.skip_bad)
    if spec.skip_bad:
        workload = _trainable(workload, setup)
    file = NOTHING_SAID
    if spec.constraints:
        file = read_constraints(Path(spec.constraints), setup.cluster)
    workload, constraints = constrained(workload, file, spec.constraints)
    return _first_arrivals(workload, spec.window), replace(setup, constraints=constraints)


def setup_of(spec: RunSpec) -> Setup:
    """Everything around the workload, which is quick to read; raises InputError as `set_up` does."""
    sim = _sim_settings(spec)
    policy = _policy(spec, sim)
    place = spec.of("place")
    file = read_cluster_file(spec.cluster)
    beside = Path(spec.cluster).parent  # where a cluster file's own words are looked for
    lending, lenders = lending_of(spec.of("lend"), file, spec.seed, beside, spec.former)
    setup = Setup(
        cluster=file.cluster,
        policy=policy,
        sim=sim,
        profiles=read_profiles(Path(spec.profiles)) if spec.profiles else None,
        placer=place.pop("rule", ""),
        placer_settings=place,
        estimate_settings=spec.of("estimate"),
        seed=spec.seed,
        lending=lending,
        lenders=lenders,
    )
    scheduler_of(setup)  # what is wrong with a placer, an estimator or a period is said now, not later
    _ = policy.triggers
    return setup


def run_spec(
    spec: RunSpec,
    progress: Callable[[int, int], None] | None = None,
    record: Record | None = None,
    begin: Callable[[Setup], None] | None = None,
) -> Result:
    """Simulate what the words say.

    begin: is given what the words come to, once all input has been read and found good.
    """
    workload, setup = set_up(spec)
    if begin is not None:
        begin(setup)
    result = simulate(workload, setup, progress, record)
    return with_fairness(result, workload, setup) if spec.fairness else result


def _workload(spec: RunSpec) -> Workload:
    """The trace after its recipes; a made one that names no seed of its own has the seed of the run."""

    def read(base: str) -> Workload:
        if is_made(base) and "seed=" not in base:
            return make_workload(base, seed=spec.seed)
        return read_trace(base, skip_bad=spec.skip_bad)

    return read_prepared(spec.trace, read)


def _within_reach(setup: Setup) -> Cluster:
    """The cluster without lent nodes where no lender lends them."""
    cluster = setup.cluster
    own = tuple(node for node in cluster.nodes if not node.lender)
    if setup.lending is not None or len(own) == len(cluster.nodes):
        return cluster
    if not own:
        raise InputError(f"cluster {cluster.name}: all nodes are lent: expected a setting of lend")
    return replace(cluster, nodes=own)


def _trainable(workload: Workload, setup: Setup) -> Workload:
    """Without the jobs whose model has no known speed, or none on the types that they accept."""
    why: dict[tuple[object, ...], str] = {}  # equal jobs are looked at once
    rows, skipped = [], []
    for row, (job, truth) in enumerate(zip(workload.jobs, workload.truths, strict=True)):
        how = (job.adaptivity, job.heterogeneous, isnan(truth.duration_s))
        key = (job.model, job.batch_size, job.gpus, job.gpu_types, *how)
        if key not in why:
            try:
                world_of(replace(workload, jobs=(job,), truths=(truth,)), setup)
                why[key] = ""
            except InputError as bad:
                why[key] = str(bad).removeprefix(f"job {job.id}: ")
        if why[key]:
            skipped.append(f"job {job.id}: {why[key]}")
        else:
            rows.append(row)
    if not rows:
        raise InputError(f"{workload.name}: no job can run on cluster {setup.cluster.name}: {skipped[0]}")
    return replace(
        workload,
        jobs=[workload.jobs[row] for row in rows],
        truths=[workload.truths[row] for row in rows],
        skipped=(*workload.skipped, *skipped),
    )


def _first_arrivals(workload: Workload, share: float) -> Workload:
    """The jobs submitted in the first share of the time between the first and the last submission."""
    if share >= 1:
        return workload
    first_s, last_s = workload.jobs[0].submitted_s, workload.jobs[-1].submitted_s
    kept = sum(job.submitted_s <= first_s + share * (last_s - first_s) for job in workload.jobs)
    return replace(workload, jobs=workload.jobs[:kept], truths=workload.truths[:kept])


def _sim_settings(spec: RunSpec) -> SimSettings:
    blank = SimSettings(
        fidelity=Fidelity.ARTIFACT if spec.profiles else Fidelity.PAPER, profiling_trains=not spec.former
    )
    return replace(blank, **settings_of(SimSettings, spec.of("sim"), space="sim"))


def _policy(spec: RunSpec, sim: SimSettings) -> Policy:
    """The policy with its settings; one that was published with a simulator follows it where asked to."""
    traits = traits_of(policy_class(spec.policy))
    defaults: dict[str, Any] = dict(traits.former) if spec.former else {}
    if spec.profiles:
        defaults |= traits.reproducing
    if sim.fidelity is Fidelity.ARTIFACT:
        defaults |= traits.artifact
    return load_policy(spec.policy, **(defaults | spec.of("policy")))
