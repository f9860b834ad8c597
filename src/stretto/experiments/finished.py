"""Finished simulations on disk, so that a table that takes hours goes on where it was interrupted."""

import hashlib
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from stretto import __version__
from stretto.clusters import built_in_clusters
from stretto.estimate.registry import ESTIMATORS, MODEL
from stretto.experiments.packing import Damaged, read_values, write_values
from stretto.experiments.spec import RunSpec
from stretto.policies.registry import POLICIES
from stretto.sim.result import Result
from stretto.traces.datasets import data_folder, data_sets_below
from stretto.traces.recipes import base_of
from stretto.traces.synthetic import is_made

PACKAGE = Path(__file__).parents[1]
APART = ("cli", "report", "notebook", "experiments")  # folders of the package on which no simulation depends,
BUT = tuple(f"experiments/{name}.py" for name in ("spec", "lenders", "packing", "finished"))  # but for these
SOLVERS = ("numpy", "scipy", "highspy")  # another version may choose another of two equal optima
SERIES = (".csv", ".csv.gz")  # endings of a demand that is called by its name
PART, STALE_S = ".part", 3_600.0  # a file that is being written, and when it no longer can be


@dataclass(frozen=True, slots=True)
class Finished:
    """A folder of finished simulations, each under a digest of all that it depends on.

    These are the words of the run and the contents of the files that they name. The sources of this package
    and the versions of its solvers count too. A run for which this cannot be told is never kept.
    """

    folder: Path
    since_s: float = 0.0  # what was kept before this moment (seconds since 1970) is not taken

    def take(self, spec: RunSpec) -> tuple[Result, float, float] | None:
        """What a run gave, where it is kept, and the seconds that it and that a core took.

        Damaged where it is unreadable.
        """
        key = key_of(spec)
        path = None if key is None else self.folder / file_name(spec, key)
        if path is None or not path.is_file():
            return None
        read = read_values(path)
        try:
            same, kept_s = read["key"] == key, float(read["kept_s"])
            result, wall_s = read["result"], float(read["wall_s"])
            processor_s = float(read["processor_s"])
        except (TypeError, KeyError, ValueError) as wrong:
            raise Damaged(f"{path}: {type(wrong).__name__}: {wrong}") from None
        if not same or not isinstance(result, Result):
            raise Damaged(f"{path}: not the run that its name says")
        return (result, wall_s, processor_s) if kept_s >= self.since_s else None

    def put(self, spec: RunSpec, key: str, result: Result, wall_s: float, processor_s: float = 0.0) -> None:
        """Keep what a run gave under the key that it had before it ran.

        Raises OSError where the folder cannot be written, TypeError for a result that is more than values.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"run": spec.words, "stretto": __version__, "kept_s": time.time(), "wall_s": wall_s}
        about["processor_s"] = processor_s
        handle, name = tempfile.mkstemp(suffix=PART, dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                write_values(file, {**about, "key": key, "result": result})
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.folder / file_name(spec, key))  # whole or not at all
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def tidy(self) -> None:
        """Remove what was being written when a process was killed."""
        for path in self.folder.glob(f"*{PART}"):
            try:
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()
            except OSError:
                continue  # another process was quicker


def usual_folder() -> Path:
    """Where finished simulations are kept unless another folder is named: in the user's cache."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "stretto" / "finished"
    named = os.environ.get("XDG_CACHE_HOME", "")  # a relative one is to be ignored, says its specification
    cached = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return cached / "stretto" / "finished"


def file_name(spec: RunSpec, key: str) -> str:
    """A name that people can tell apart, too."""
    words = re.sub(r"[^A-Za-z0-9.=_-]+", "-", f"{spec.policy}-{spec.trace.rsplit('/', 1)[-1]}").strip("-")
    return f"{words[:60]}-{key[:24]}.npz"


def key_of(spec: RunSpec) -> str | None:
    """A digest of all on which the result depends, as it is now; None where that cannot be told."""
    try:
        files = _files_of(spec)
        if files is None:
            return None
        contents = {str(path.resolve()): _contents(path) for path in files}
        words = asdict(spec.from_anywhere())
        if spec.constraints:  # a table writes them to a folder of the moment: what counts is what they say
            words["constraints"] = _contents(Path(spec.constraints))
    except OSError:  # the simulation itself will say what it cannot read
        return None
    parts = [words, contents, sources_digest(), _versions()]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=20).hexdigest()


def sources_digest() -> str:
    """Of every file of this package on which a simulation may depend, as it is now."""
    return _digest(PACKAGE, sources())


def sources() -> list[Path]:
    """The files of the package except those that only show or arrange results."""
    paths = []
    for path in sorted(PACKAGE.rglob("*")):
        inside = path.relative_to(PACKAGE)
        counts = inside.parts[0] not in APART or inside.as_posix() in BUT
        if counts and path.is_file() and "__pycache__" not in inside.parts:
            paths.append(path)
    return paths


def _files_of(spec: RunSpec) -> list[Path] | None:
    """The files and folders that a run reads, None where that cannot be told."""
    estimator = spec.of("estimate").get(MODEL, "")
    if estimator and estimator not in ESTIMATORS:
        return None
    if spec.policy not in POLICIES or spec.cluster not in built_in_clusters():
        return None  # somebody's own code may import anything, and a cluster file name further files
    below = data_folder()
    sets = data_sets_below(below)
    base, recipes = base_of(spec.trace)
    if not (is_made(base) or base in sets or Path(base).is_file()):
        return None
    named = [base, spec.profiles, *map(str, spec.settings.values())]
    named += [word for recipe in recipes for word in re.split("[:=,]", recipe)]
    files = []
    for word in filter(None, named):
        if is_made(word):
            continue
        series = [] if below is None else [below / "inference" / f"{word}{end}" for end in SERIES]
        places = [Path(word), *([sets[word]] if word in sets else []), *series]
        files += [place for place in places if place.exists()]
    return files


def _contents(path: Path) -> str:
    """A digest of a file, or of all files in a folder with their names."""
    return _digest(
        path, [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    )


def _digest(root: Path, files: Sequence[Path]) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for file in files:
        about = file.stat()
        content = _of_file(file, about.st_mtime_ns, about.st_size)
        hasher.update(f"{file.relative_to(root).as_posix()}\0{content}\0".encode())
    return hasher.hexdigest()


@cache
def _of_file(path: Path, changed_ns: int, size: int) -> str:
    """A digest of a file's content, read again once its time or size has changed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@cache
def _versions() -> dict[str, str]:
    python = ".".join(map(str, sys.version_info[:2]))
    solvers = {name: version(name) for name in SOLVERS}
    return {"stretto": __version__, "python": python, "machine": platform.machine(), **solvers}
