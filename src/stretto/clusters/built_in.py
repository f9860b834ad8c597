"""Clusters that come with the package: files, and families made of a file by multiplying its nodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from stretto.clusters.entries import read_yaml


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A built-in cluster: a file, and how many times the nodes of that file it has."""

    file: str
    times: float  # the nodes of each entry, rounded
    about: str  # one line for people


def built_in_clusters() -> Mapping[str, BuiltIn]:
    """All built-in clusters by name, in the order in which to list them."""
    sia = "Sia (SOSP 2023), section 4.3"
    clusters = {
        "sia-hetero-64": BuiltIn("sia-hetero", 1, f"{sia}: 24 t4, 16 a100, 24 rtx2080ti"),
        "sia-homo-64": BuiltIn("sia-homo", 1, f"{sia}: 64 t4"),
        "sia-physical-44": BuiltIn("sia-physical", 1, f"{sia}: 24 rtx2080ti, 16 a100, 4 quad"),
    }
    for times in (2, 4, 8, 16, 32):
        about = f"sia-hetero-64 with {times} times the nodes of each type"
        clusters[f"sia-hetero-{64 * times}"] = BuiltIn("sia-hetero", times, about)
    for gpus in (256, 320, 640, 768, 960):
        clusters[f"gpu8-{gpus}"] = BuiltIn("gpu8", gpus // 8, f"{gpus // 8} equal nodes of 8 GPUs")
    for gpus in (16, 32, 48, 64):
        about = f"ONES (SC 2021), section 4.1: {gpus // 4} nodes of 4 v100"
        clusters[f"ones-{gpus}"] = BuiltIn("ones", gpus // 4, about)
    clusters["lyra"] = BuiltIn(
        "lyra", 1, "Lyra (EuroSys 2023): 3,544 v100, and 4,160 t4 of inference servers"
    )
    for gpus, word, share in ((352, "tenth", 0.1), (440, "eighth", 0.125), (888, "quarter", 0.25)):
        clusters[f"lyra-{gpus}"] = BuiltIn("lyra", share, f"lyra with a {word} of its servers of each kind")
    clusters["mixed-64"] = BuiltIn(
        "mixed", 1, "sia-hetero-64, and 32 v100 of an inference service that may be on loan"
    )
    return clusters


def document_of(built_in: BuiltIn) -> Any:
    """The content of its file, with the count of every entry multiplied."""
    name = f"{built_in.file}.yaml"
    document = read_yaml(files(__package__).joinpath("files", name).read_text(encoding="utf-8"), name)
    for key in ("nodes", "lenders"):
        for entry in document.get(key, []):
            entry["count"] = round(entry["count"] * built_in.times)
    return document
