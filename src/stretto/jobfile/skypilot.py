"""A task file of SkyPilot: the parts that say what to run and on how many GPUs."""

from stretto.errors import InputError
from stretto.jobfile.parts import Accelerators, Resources, Restart
from stretto.jobfile.quantities import memory_gb, number, whole
from stretto.jobfile.spec import JobSpec
from stretto.jobfile.stretto_file import WHOLE, alternatives, located
from stretto.jobfile.yaml_tree import Entry, Section, Tree, as_mapping

TAKEN = ("name", "resources", "num_nodes", "workdir", "setup", "run", "envs")
TAKEN_RESOURCES = ("accelerators", "cpus", "memory", "any_of", "ordered", "job_recovery")

# What only its files have; the rest of its keys are also ours.
TOP_SIGNS = {
    *(
        "num_nodes",
        "file_mounts",
        "service",
        "config",
        "event_callback",
        "inputs",
        "outputs",
        "volumes",
    ),
    *("pool", "file_mounts_mapping", "experimental"),
}
RESOURCE_SIGNS = {
    *("cloud", "infra", "region", "zone", "use_spot", "spot_recovery", "job_recovery", "instance_type"),
    *("disk_size", "disk_tier", "network_tier", "ports", "image_id", "any_of", "ordered", "accelerator_args"),
    *("autostop", "local_disk"),
}


def is_skypilot(tree: Tree) -> bool:
    """Whether a document has a key, or an open-ended size, that a job file of ours has not."""
    top = as_mapping(tree)
    resources = as_mapping(top.get("resources"))
    at_least = any(
        isinstance(value, str) and value.endswith(("+", "x"))
        for value in (resources.get("cpus"), resources.get("memory"))
    )
    return bool(TOP_SIGNS & set(top) or RESOURCE_SIGNS & set(resources) or at_least)


def spec_of_task(entry: Entry, default_name: str) -> tuple[JobSpec, tuple[str, ...]]:
    """The job of a task file, and what of it means nothing here. Raises InputError."""
    warnings = [f"{key}: means nothing here" for key in entry.section.values if key not in TAKEN]
    nodes = entry.read("num_nodes", whole, WHOLE, 1)
    if not 1 <= nodes <= 1_000_000:
        raise entry.wrong("num_nodes", "a whole number from 1 to 1000000", str(nodes))
    run = entry.text("run")
    if not run:
        raise InputError(f"{entry.where}: missing run, the command to run")
    if "SKYPILOT_" in run or "SKYPILOT_" in entry.text("setup"):
        warnings.append("SKYPILOT_…: variables of SkyPilot are not set; those of torchrun are")
    envs = entry.texts("envs")
    unset = [key for key, value in as_mapping(entry.tree("envs")).items() if value is None]
    if unset:
        warnings.append(f"envs: no value for {', '.join(unset)}, left empty")

    def build() -> JobSpec:
        return JobSpec(
            run=run,
            name=entry.text("name", default_name),
            setup=entry.text("setup"),
            workdir=_workdir(entry, warnings),
            envs=envs,
            resources=_resources(entry, nodes, warnings),
            preemptible=_recovers(entry),
            restart=Restart(_restarts(entry)),
        )

    return located(entry.where, build), tuple(warnings)


def _workdir(entry: Entry, warnings: list[str]) -> str:
    if isinstance(entry.tree("workdir"), Section):
        warnings.append("workdir: a repository means nothing here")
        return ""
    path = entry.text("workdir")
    return "" if path == "." else path


def _resources(entry: Entry, nodes: int, warnings: list[str]) -> Resources:
    inner = entry.entry("resources")
    if inner is None:
        warnings.append("no GPUs asked for: it gets one on each node")
        return Resources((Accelerators("", nodes),))
    warnings += [
        f"resources.{key}: means nothing here" for key in inner.section.values if key not in TAKEN_RESOURCES
    ]
    choices = list(alternatives(inner))
    for key in ("any_of", "ordered"):
        for item in inner.items(key):
            if not isinstance(item, Section):
                raise inner.wrong(key, "a list of keys and values", item)
            choices += alternatives(Entry(entry.where, item, f"resources.{key}"))
    if not choices:
        warnings.append("no GPUs asked for: it gets one on each node")
    counts = {choice.gpus or 1 for choice in choices} or {1}
    if len(counts) > 1:
        names = " or ".join(map(str, choices))
        raise InputError(
            f"{entry.where}: resources.accelerators must ask for as many GPUs of every type, got {names}"
        )
    each = counts.pop()
    unique = dict.fromkeys(Accelerators(choice.gpu_type, each * nodes) for choice in choices)
    cpus = inner.read("cpus", lambda text: number(text.rstrip("+")), 'a number or "8+"', None)
    memory = _memory_gb(inner, cpus, warnings)
    return Resources(
        accelerators=tuple(unique) or (Accelerators("", each * nodes),),
        gpus_per_worker=each,  # `run` is for each node there
        cpus=None if cpus is None else cpus * nodes,
        memory_gb=None if memory is None else memory * nodes,
    )


def _memory_gb(entry: Entry, cpus: float | None, warnings: list[str]) -> float | None:
    text = entry.text("memory").rstrip("+")
    if text.endswith("x"):  # so many times the cores
        if cpus is None:
            warnings.append(f"resources.memory: {text} of unknown cores means nothing here")
            return None
        return entry.read("memory", lambda said: number(said.rstrip("+x")), "a size", 0.0) * cpus
    return entry.read("memory", lambda said: memory_gb(said.rstrip("+")), 'a size like "32" or "32+"', None)


def _recovers(entry: Entry) -> bool:
    """Whether the task says what is to happen when it is stopped."""
    resources = entry.entry("resources")
    return resources is not None and (resources.has("job_recovery") or resources.has("use_spot"))


def _restarts(entry: Entry) -> int:
    resources = entry.entry("resources")
    if resources is None or not isinstance(resources.tree("job_recovery"), Section):
        return 0
    recovery = resources.entry("job_recovery")
    return recovery.read("max_restarts_on_errors", whole, WHOLE, 0) if recovery else 0
