"""Trace formats, one line each, and reading a trace by path or by name."""

import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

from stretto.errors import InputError
from stretto.suggestions import did_you_mean
from stretto.traces.alibaba import ALIBABA
from stretto.traces.chronus import CHRONUS
from stretto.traces.datasets import DATA_VARIABLE, data_folder, data_sets_below, publisher_of
from stretto.traces.elasticflow import ELASTICFLOW
from stretto.traces.helios import HELIOS
from stretto.traces.own import OWN
from stretto.traces.philly import PHILLY_DERIVED, PHILLY_PUBLISHED
from stretto.traces.reading import Format, workload_of
from stretto.traces.sheet import Sheet
from stretto.traces.shockwave import GAVEL_TSV, SHOCKWAVE_TSV
from stretto.traces.sia import SIA
from stretto.traces.synthetic import MADE, is_made, make_workload
from stretto.traces.table import Table, read_table
from stretto.traces.tiresias import TIRESIAS
from stretto.traces.workload import Workload

GROUP = "stretto.trace_formats"  # entry points of installed packages, each a `Format`
FORMAT = "format"  # what a file says of itself before its header: "# format: NAME"
FORMATS: tuple[Format, ...] = (
    OWN,
    SIA,
    CHRONUS,
    PHILLY_DERIVED,
    PHILLY_PUBLISHED,
    HELIOS,
    ALIBABA,
    TIRESIAS,
    ELASTICFLOW,
    SHOCKWAVE_TSV,
    GAVEL_TSV,
)


def read_trace(source: Path | str, skip_bad: bool = False, data: Path | str | None = None) -> Workload:
    """The workload in a file of any known format, or by a built-in name (`built_in_traces`).

    skip_bad: leave bad rows out, and list them in `skipped`, instead of refusing the file. data: the folder
    with public data sets, else the one in the environment. Raises InputError.
    """
    path, name = Path(source), str(source)
    if path.is_file():
        return _read_file(path, _name_of(path), skip_bad)
    if is_made(name):
        return make_workload(name)
    data_sets = data_sets_below(data_folder(data))
    if name in data_sets:
        return _read_file(data_sets[name], name, skip_bad)
    raise InputError(_unknown(name, data_sets))


def built_in_traces(data: Path | str | None = None) -> Mapping[str, str]:
    """What there is by name, with a line about each: made workloads, then data sets that are there."""
    made = {name: kind.about for name, kind in MADE.items()}
    return made | {name: str(path) for name, path in data_sets_below(data_folder(data)).items()}


def all_formats() -> tuple[Format, ...]:
    """Those of Stretto and of installed packages. Raises InputError for a package whose format is none."""
    formats = list(FORMATS)
    for point in sorted(entry_points(group=GROUP), key=lambda point_of_entry: point_of_entry.name):
        named = f"trace format {point.name!r} ({point.value})"
        try:
            loaded = point.load()
        except (ImportError, AttributeError) as error:
            raise InputError(f"{named} cannot be loaded: {error}") from None
        if not isinstance(loaded, Format):
            raise InputError(f"{named}: expected a stretto.traces.Format, got {type(loaded).__name__}")
        if any(loaded.name == other.name for other in formats):
            raise InputError(f"{named}: expected a name of its own, but there is a format {loaded.name!r}")
        formats.append(loaded)
    return tuple(formats)


def format_of(table: Table) -> Format:
    """The format that the file names, else the one whose columns it has.

    Raises InputError where none fits, or several of which none is declared to be meant instead of the others.
    """
    columns, formats = set(table.columns), all_formats()
    if FORMAT in table.about:
        return _named_format(table, formats)
    fitting = [kind for kind in formats if kind.columns <= columns]
    others = frozenset[str]().union(*(kind.instead_of for kind in fitting))
    meant = [kind for kind in fitting if kind.name not in others]
    if len(meant) == 1:
        return meant[0]
    if fitting:
        names = " and ".join(repr(kind.name) for kind in meant or fitting)
        raise InputError(
            f"{table.path}: its columns fit the formats {names}; "
            f"expected those of one, or a first line like '# {FORMAT}: {fitting[0].name}'"
        )
    closest = max(formats, key=lambda kind: len(kind.columns & columns) / len(kind.columns))
    missing = sorted(closest.columns - columns)
    if len(missing) <= len(closest.columns) / 2:
        raise InputError(
            f"{table.path}: missing column {', '.join(missing)}: "
            f"its columns look like {closest.about}, which has {', '.join(sorted(closest.columns))}"
        )
    names = ", ".join(kind.name for kind in formats)
    raise InputError(
        f"{table.path}: unknown format with the columns {', '.join(table.columns)}; expected one of {names}"
    )


def _named_format(table: Table, formats: Sequence[Format]) -> Format:
    """The format that a file says that it has."""
    by_name, name = {kind.name: kind for kind in formats}, table.about[FORMAT]
    if name not in by_name:
        raise InputError(f"{table.path}: unknown format {name!r}, {did_you_mean(name, by_name)}")
    missing = sorted(by_name[name].columns - set(table.columns))
    if missing:
        raise InputError(
            f"{table.path}: missing column {', '.join(missing)} of format {name!r}, which it names"
        )
    return by_name[name]


def _read_file(path: Path, name: str, skip_bad: bool) -> Workload:
    with _no_garbage_collection():
        table = read_table(path)
        return workload_of(Sheet(table), format_of(table), name, skip_bad)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Rows and jobs hold no cycles, but looking for them in 100,000 takes longer than reading those."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _name_of(path: Path) -> str:
    return re.sub(r"\.(csv|tsv|json|parquet)$", "", path.name.removesuffix(".gz"))


def _unknown(name: str, found: Mapping[str, Path]) -> str:
    owner = publisher_of(name)
    if owner is not None:
        return (
            f"trace {name!r}: expected the data set at {owner.path} below the data folder "
            f"(--data or ${DATA_VARIABLE}); its owners publish it at {owner.owner}"
        )
    return f"no trace file and no built-in trace is called {name!r}, {did_you_mean(name, (*MADE, *found))}"
