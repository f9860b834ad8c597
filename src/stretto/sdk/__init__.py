"""What a PyTorch script imports: how does a plain loop become elastic?

Names are loaded when they are used, since torch takes seconds to import.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.sdk.batch_inference import InferenceJob, infer
    from stretto.sdk.entry_point import elastic
    from stretto.sdk.job import ElasticJob
    from stretto.sdk.results import read_results
    from stretto.sdk.serving import Leaving, ServingJob, serve
    from stretto.sdk.settings import device, devices

__all__ = [
    "ElasticJob",
    "InferenceJob",
    "Leaving",
    "ServingJob",
    "device",
    "devices",
    "elastic",
    "infer",
    "read_results",
    "serve",
]

# No module has the name of one of these: importing it would put the module in the place of the function.
HOMES = {
    "ElasticJob": "job",
    "InferenceJob": "batch_inference",
    "Leaving": "serving",
    "ServingJob": "serving",
    "device": "settings",
    "devices": "settings",
    "elastic": "entry_point",
    "infer": "batch_inference",
    "read_results": "results",
    "serve": "serving",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
    globals()[name] = value
    return value
