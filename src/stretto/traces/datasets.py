"""Names for public data sets that lie under a data folder, and where their owners publish them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DATA_VARIABLE = "STRETTO_DATA"  # the environment variable that names the data folder


@dataclass(frozen=True, slots=True)
class DataSet:
    """One file or a family of them; a `*` in the path is what the name ends in."""

    name: str
    path: str  # below the data folder
    owner: str  # where its owners publish it


DATA_SETS = (
    DataSet("philly", "philly/philly.csv.gz", "github.com/siasosp23/artifacts"),
    DataSet("philly-published", "philly/cluster_job_log*", "github.com/msr-fiddle/philly-traces"),
    DataSet("helios-*", "helios/*/cluster_log.csv", "github.com/S-Lab-System-Group/HeliosData"),
    DataSet("sia-philly-*", "sia/workloads/philly/workload-*.csv", "github.com/siasosp23/artifacts"),
    DataSet("sia-helios-*", "sia/workloads/helios/workload-*.csv", "github.com/siasosp23/artifacts"),
    DataSet("sia-newtrace-*", "sia/workloads/newtrace/workload-*.csv", "github.com/siasosp23/artifacts"),
    DataSet("sia-scale-*", "sia/workloads/scale/scale_*/workload-1.csv", "github.com/siasosp23/artifacts"),
    DataSet(
        "chronus-*", "chronus/trace_job_Philly_*.csv.gz", "github.com/S-Lab-System-Group/ChronusArtifact"
    ),
    DataSet("alibaba-*", "alibaba-pai/openb_pod_list_*.csv.gz", "github.com/alibaba/clusterdata"),
    DataSet("tiresias-*", "tiresias/*_job.csv", "github.com/SymbioticLab/Tiresias"),
    DataSet("shockwave-*", "shockwave/dynamic_*.tsv", "github.com/uw-mad-dash/shockwave"),
    DataSet("elasticflow-philly", "elasticflow/philly_103959.csv", "github.com/pkusys/ElasticFlow"),
    DataSet("elasticflow-pollux", "elasticflow/elasticVpollux_e.csv", "github.com/pkusys/ElasticFlow"),
    DataSet("elasticflow-cifar10", "elasticflow/resnet_cifar_trace.csv", "github.com/pkusys/ElasticFlow"),
)


def data_folder(data: Path | str | None = None) -> Path | None:
    """The data folder: the one given, else the one that the environment names, else None."""
    chosen = data if data is not None else os.environ.get(DATA_VARIABLE)
    return Path(chosen) if chosen else None


def data_sets_below(folder: Path | None) -> Mapping[str, Path]:
    """The data sets that are there, by name."""
    found: dict[str, Path] = {}
    if folder is not None:
        for data_set in DATA_SETS:
            for path in sorted(folder.glob(data_set.path)):
                found[_name(data_set, path.relative_to(folder).as_posix())] = path
    return found


def publisher_of(name: str) -> DataSet | None:
    """The data set that a name belongs to, whether it is there or not."""
    for data_set in DATA_SETS:
        start, star, _ = data_set.name.partition("*")
        if name == data_set.name or (star and name.startswith(start) and len(name) > len(start)):
            return data_set
    return None


def _name(data_set: DataSet, path: str) -> str:
    start, star, end = data_set.path.partition("*")
    if not star or "*" not in data_set.name:
        return data_set.name
    middle = path[len(start) : len(path) - len(end)]
    return data_set.name.replace("*", middle.lower().replace("_", "-"))
