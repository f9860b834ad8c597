"""What is known of common models: how fast a step is on which GPU, and how far a larger batch helps."""

from stretto.catalogue.models import (
    CatalogueGpu,
    CatalogueModel,
    OnGpu,
    find_model,
    has_nearest,
    nearest_model,
    read_catalogue,
    read_gpus,
    runtimes_s,
)

__all__ = [
    "CatalogueGpu",
    "CatalogueModel",
    "OnGpu",
    "find_model",
    "has_nearest",
    "nearest_model",
    "read_catalogue",
    "read_gpus",
    "runtimes_s",
]
