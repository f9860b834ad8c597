"""A batch script with `#SBATCH` lines, read as sbatch reads it: up to the first command."""

import re
import shlex
from collections.abc import Mapping
from datetime import datetime

from stretto.errors import InputError
from stretto.jobfile.parts import (
    LONGEST_NAME,
    NAME,
    NOT_IN_NAMES,
    Accelerators,
    After,
    Array,
    Dependency,
    Resources,
    Restart,
    When,
    plain,
    shown,
)
from stretto.jobfile.quantities import array, memory_gb, whole
from stretto.jobfile.spec import OF_SLURM, JobSpec

SHORT = {
    "-J": "job-name", "-G": "gpus", "-N": "nodes", "-n": "ntasks", "-t": "time", "-p": "partition",
    "-o": "output", "-e": "error", "-a": "array", "-d": "dependency", "-b": "begin", "-c": "cpus-per-task",
    "-D": "chdir", "-A": "account", "-q": "qos", "-C": "constraint", "-x": "exclude", "-w": "nodelist",
    "-L": "licenses", "-m": "distribution", "-i": "input", "-M": "clusters",
}  # fmt: skip
SHORT_FLAGS = {
    "-H": "hold", "-O": "overcommit", "-Q": "quiet", "-s": "oversubscribe", "-v": "verbose", "-W": "wait",
    "-k": "no-kill",
}  # fmt: skip
FLAGS = {
    *(
        "requeue",
        "no-requeue",
        "exclusive",
        "contiguous",
        "spread-job",
        "use-min-nodes",
        "reboot",
        "parsable",
    ),
    *SHORT_FLAGS.values(),
}
CONTAINER_IMAGE = "container-image"  # as pyxis calls it
UNDERSTOOD = {
    *(
        "job-name",
        "gres",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "nodes",
        "ntasks",
        "ntasks-per-node",
        "time",
    ),
    *(
        "partition",
        "output",
        "error",
        "requeue",
        "no-requeue",
        "hold",
        "array",
        "dependency",
        "begin",
        "signal",
        "chdir",
        "export",
        CONTAINER_IMAGE,
    ),
    *("cpus-per-task", "cpus-per-gpu", "mem", "mem-per-gpu", "mem-per-cpu"),
    *OF_SLURM,
}

SHELLS = re.compile(
    r"#!\s*(?:/usr/bin/env\s+(?:-S\s+)?)?(?P<shell>(?:\S*/)?(?:ba|da|z|k)?sh)(?P<options>[^\S\n][^\n]*)?(?:\n|$)"
)
LAUNCHER = re.compile(r"^[ \t]*(?:exec[ \t]+)?(srun|mpirun|mpiexec)\b", re.MULTILINE)
VARIABLE = re.compile(r"\bSLURM_(?!ARRAY_(?:JOB_ID|TASK_ID|TASK_COUNT)\b)\w+")  # what is set everywhere
TIME = re.compile(r"(?:(?P<days>\d{1,6})-)?(?P<a>\d{1,9})(?::(?P<b>\d{1,9}))?(?::(?P<c>\d{1,9}))?", re.ASCII)
SIGNAL = re.compile(r"(?:(?:R|B|RB|BR):)?(?:SIG)?(?P<name>[A-Z0-9+-]+)(?:@(?P<before>\d{1,9}))?", re.ASCII)
NOW = re.compile(r"now(?:\+(?P<count>\d{1,9})(?P<unit>seconds?|minutes?|hours?|days?|weeks?)?)?", re.ASCII)
OF_REGISTRY = re.compile(r"(--container-image[=\s]\s*[^\s#\"'\\]+)#")  # where it begins no comment
GRES = re.compile(
    r"(?:gres[:/])?gpu(?:[:/](?P<type>[A-Za-z][\w.-]*))?(?:[:=](?P<count>\d{1,9}))?(?:\(.*\))?", re.ASCII
)
TYPED = re.compile(r"(?:(?P<type>[A-Za-z][\w.-]*):)?(?P<count>\d{1,9})", re.ASCII)
UNIT_S = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
DEPENDENCIES = {
    "after": After.STARTED, "afterok": After.SUCCEEDED, "afterany": After.ENDED, "afternotok": After.FAILED
}  # fmt: skip
LEAST_GRACE_S = 30.0
LONGEST_LINE = 4096  # with #SBATCH; the time to split one grows with its square


def spec_of_script(text: str, where: str, default_name: str) -> tuple[JobSpec, tuple[str, ...]]:
    """The job of a batch script, and what of it means nothing here. Raises InputError."""
    first = text.split("\n", 1)[0]
    if first.startswith("#!") and not SHELLS.match(first):
        raise InputError(f"{where} line 1: a batch script must be for a shell, got {shown(first)}")
    options, warnings = _options(text, where)
    resources = _resources(options, where, warnings)
    grace_s = _grace_s(options, where, warnings)
    begin = options.get("begin")
    slurm = {key: options[key] for key in OF_SLURM if key in options}
    if others := [f"--{key}" for key in slurm if key != "partition"]:
        warnings.append(f"{', '.join(others)}: heeded only where the service runs on Slurm")
    if "output" in options or "error" in options:
        warnings.append("output and error: Stretto keeps what a job prints itself")
    for launcher in sorted({matched[1] for matched in LAUNCHER.finditer(text)}):
        warnings.append(f"{launcher}: Stretto starts the script once for each worker itself")
    if names := sorted(set(VARIABLE.findall(text))):
        warnings.append(f"{', '.join(names[:5])}: set only where the service runs on Slurm")
    try:
        spec = JobSpec(
            run=text,
            name=_name(options, default_name, warnings),
            queue=options.get("partition", "").split(",")[0],
            workdir=options.get("chdir", ""),
            image=_image(options.get(CONTAINER_IMAGE, "")),
            envs=_exported(options, warnings),
            resources=resources,
            preemptible="requeue" in options,  # it need not be able to go on, unless it says so
            grace_period_s=grace_s,
            max_time_s=_time_s(options["time"], where) if "time" in options else None,
            hold="hold" in options,
            start_after=None if begin is None else _begin(begin, where, warnings),
            array=_array(options["array"], where) if "array" in options else None,
            depends_on=_dependencies(options.get("dependency", ""), where, warnings),
            restart=Restart(),
            slurm=slurm,
        )
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(where) else f"{where}: {text}") from None
    return spec, tuple(warnings)


def shell_of(text: str) -> tuple[str, ...]:
    """What a text is for, in words: the shell of its first line with its options, else /bin/sh."""
    found = SHELLS.match(text)
    return (found["shell"], *(found["options"] or "").split()) if found else ("/bin/sh",)


def _options(text: str, where: str) -> tuple[dict[str, str], list[str]]:
    """Options by their long name, the last one of each, and warnings."""
    options: dict[str, str] = {}
    warnings: list[str] = []
    commands = False
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.startswith("#SBATCH"):
            commands = commands or bool(line.strip() and not line.lstrip().startswith("#"))
            continue
        if commands:
            warnings.append(f"line {number}: #SBATCH behind the first command is not read")
            continue
        if len(line) > LONGEST_LINE:
            raise InputError(f"{where} line {number}: expected at most {LONGEST_LINE} characters")
        try:
            words = shlex.split(OF_REGISTRY.sub(r"\1\#", line.removeprefix("#SBATCH")), comments=True)
        except ValueError as error:
            raise InputError(f"{where} line {number}: {error}, got {shown(line)}") from None
        for name, value in _pairs(words, f"{where} line {number}"):
            if name in UNDERSTOOD:
                options[name] = value
            else:
                warnings.append(f"line {number}: --{name} means nothing here")
    return options, warnings


def _pairs(words: list[str], where: str) -> list[tuple[str, str]]:
    pairs = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in FLAGS and rest and not rest[0].startswith("-"):
                value = rest.pop(0)
        elif word[:2] in SHORT_FLAGS:
            name, value = SHORT_FLAGS[word[:2]], ""
        elif word[:2] in SHORT:
            name, value = SHORT[word[:2]], word[2:] or (rest.pop(0) if rest else "")
        else:
            raise InputError(f"{where}: expected an option of sbatch, got {shown(word)}")
        if name in UNDERSTOOD - FLAGS and not value:
            raise InputError(f"{where}: --{name} must have a value, got none")
        pairs.append((name, value))
    return pairs


def _name(options: Mapping[str, str], default_name: str, warnings: list[str]) -> str:
    """Its name, without what Slurm allows in one and we do not, such as spaces."""
    asked = options.get("job-name", default_name)
    if NAME.fullmatch(asked):
        return asked
    name = NOT_IN_NAMES.sub("-", asked).strip("-")[:LONGEST_NAME] or default_name
    warnings.append(f"--job-name={plain(asked)}: it is called {name}")
    return name


def _image(said: str) -> str:
    """An image in words that every backend takes: pyxis has REGISTRY#IMAGE for one of a registry."""
    return said.removeprefix("docker://").replace("#", "/", 1)


def _exported(options: Mapping[str, str], warnings: list[str]) -> dict[str, str]:
    """Variables that `--export` sets; which others are passed on is not for a script to say here."""
    pairs = [part.partition("=") for part in options.get("export", "").split(",") if part]
    if others := [name for name, equals, _ in pairs if not equals]:
        warnings.append(f"--export={','.join(others)} means nothing here: a job finds what the service has")
    return {name: value for name, equals, value in pairs if equals}


def _resources(options: Mapping[str, str], where: str, warnings: list[str]) -> Resources:
    nodes = _nodes(options, where, warnings)
    per_node = _count(options, "ntasks-per-node", where, 0)
    tasks = _count(options, "ntasks", where, per_node * nodes or nodes)
    gpu_type, gpus = _gres(options, where, warnings)
    gpus *= nodes
    if "gpus" in options:
        gpu_type, gpus = _typed(options, "gpus", where)
    elif "gpus-per-node" in options:
        gpu_type, gpus = _typed(options, "gpus-per-node", where)
        gpus *= nodes
    elif "gpus-per-task" in options:
        gpu_type, gpus = _typed(options, "gpus-per-task", where)
        gpus *= tasks
    if gpus == 0:
        warnings.append("no GPUs asked for: it gets one")
        gpus = tasks = 1
    each = gpus // tasks if gpus % tasks == 0 else 1
    if gpus % tasks:
        warnings.append(f"{gpus} GPUs do not divide among {tasks} tasks: each worker gets one")
    cpus = (
        _count(options, "cpus-per-task", where, 0) * tasks or _count(options, "cpus-per-gpu", where, 0) * gpus
    )
    memory = {"mem": nodes, "mem-per-gpu": gpus, "mem-per-cpu": cpus or 1}
    sizes = [_memory_gb(options, key, where) * times for key, times in memory.items() if key in options]
    try:
        return Resources((Accelerators(gpu_type, gpus),), each, float(cpus) or None, sum(sizes) or None)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _gres(options: Mapping[str, str], where: str, warnings: list[str]) -> tuple[str, int]:
    gpus = ("", 0)
    for part in options.get("gres", "").split(","):
        if matched := GRES.fullmatch(part):
            if gpus[1]:
                raise _wrong(where, "gres", "GPUs of one type", options["gres"])
            gpus = matched["type"] or "", int(matched["count"] or 1)
        elif part:
            warnings.append(f"--gres={part} means nothing here")
    return gpus


def _typed(options: Mapping[str, str], key: str, where: str) -> tuple[str, int]:
    matched = TYPED.fullmatch(options[key])
    if not matched or not int(matched["count"]):
        raise _wrong(where, key, "a count of GPUs, with or without one type, like a100:8", options[key])
    return matched["type"] or "", int(matched["count"])


def _nodes(options: Mapping[str, str], where: str, warnings: list[str]) -> int:
    least, dash, _ = options.get("nodes", "1").partition("-")
    if dash:
        warnings.append(f"--nodes={options['nodes']}: taken as {least}; elastic in a job file gives a range")
    return _count({"nodes": least}, "nodes", where, 1)


def _count(options: Mapping[str, str], key: str, where: str, default: int) -> int:
    if key not in options:
        return default
    try:
        count = whole(options[key])
    except ValueError:
        count = 0
    if not 1 <= count <= 1_000_000:
        raise _wrong(where, key, "a whole number from 1 to 1000000", options[key])
    return count


def _memory_gb(options: Mapping[str, str], key: str, where: str) -> float:
    try:
        return memory_gb(options[key], bare="mb")
    except ValueError:
        raise _wrong(where, key, "a size like 64G", options[key]) from None


def _time_s(text: str, where: str) -> float | None:
    """Minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, and so on."""
    if text.upper() in {"UNLIMITED", "INFINITE", "0"}:
        return None
    matched = TIME.fullmatch(text)
    if not matched:
        raise _wrong(where, "time", "a time of Slurm like 30, 4:00:00 or 2-12", text)
    a, b, c = (int(matched[name] or 0) for name in "abc")
    if matched["days"] is not None:
        return int(matched["days"]) * 86_400.0 + a * 3_600.0 + b * 60.0 + c
    if matched["c"] is not None:
        return a * 3_600.0 + b * 60.0 + c
    return a * 60.0 + b


def _begin(text: str, where: str, warnings: list[str]) -> When:
    if matched := NOW.fullmatch(text):
        unit = (matched["unit"] or "second").removesuffix("s")
        return When(after_s=float(matched["count"] or 0) * UNIT_S[unit])
    try:
        parsed = datetime.fromisoformat(text)
        local = parsed.astimezone()  # sbatch means the time where it runs
        at_s = local.timestamp()
    except (ValueError, OverflowError, OSError):
        raise _wrong(where, "begin", "now+2hours or a date like 2030-01-31T18:00:00", text) from None
    if parsed.tzinfo is None:
        warnings.append(f"--begin={text}: taken as {local.isoformat()}")
    return When(at_unix_s=at_s)


def _array(text: str, where: str) -> Array:
    try:
        return array(text if not text.isdecimal() else f"{text}-{text}")  # there `4` is the task 4
    except ValueError:
        raise _wrong(where, "array", "indices like 0-9 or 1,3%2, at most 10000", text) from None


def _dependencies(text: str, where: str, warnings: list[str]) -> tuple[Dependency, ...]:
    dependencies: dict[Dependency, None] = {}
    if "?" in text:
        raise _wrong(where, "dependency", "jobs that must all have come first", text)
    for part in text.split(",") if text else []:
        kind, *jobs = part.split(":")
        if kind not in DEPENDENCIES:
            warnings.append(f"--dependency={part} means nothing here")
            continue
        if not jobs:
            raise _wrong(where, "dependency", f"{kind}:JOB", part)
        for job in jobs:
            dependencies[Dependency(job.split("+")[0], DEPENDENCIES[kind])] = None
    return tuple(dependencies)


def _grace_s(options: Mapping[str, str], where: str, warnings: list[str]) -> float:
    if "signal" not in options:
        return LEAST_GRACE_S
    matched = SIGNAL.fullmatch(options["signal"])
    if not matched:
        raise _wrong(where, "signal", "a signal and seconds like B:TERM@60", options["signal"])
    if matched["name"] not in {"TERM", "15"}:
        warnings.append(f"--signal={options['signal']}: a job is asked to stop with SIGTERM")
    return float(matched["before"] or 60)  # Slurm's own default


def _wrong(where: str, key: str, expected: str, value: str) -> InputError:
    return InputError(f"{where}: --{key} must be {expected}, got {shown(value)}")
