"""How fast would this job run on that? One performance model per file.

`fit`, `efficiency` and `throughput` are both files and functions; import the functions from there.
"""

from stretto.estimate.efficiency import (
    GradientNoise,
    gain,
    noise_of_gradients,
    noise_of_successive,
    noise_scale,
    smoothed,
)
from stretto.estimate.fit import fit_many
from stretto.estimate.goodput import (
    BatchChoices,
    BatchLimits,
    best_batch,
    best_batches,
    fixed_batches,
)
from stretto.estimate.learning_rate import RULES, Scaling, rule_named
from stretto.estimate.throughput import (
    Choice,
    Known,
    Mode,
    Parameters,
    Source,
    ThroughputModel,
    grad_s,
    hybrid_iteration_s,
    hybrid_throughput,
    iteration_s,
    pipeline_s,
    replicas_of,
    source_of,
    step_s,
    sync_s,
)

__all__ = [
    "RULES",
    "BatchChoices",
    "BatchLimits",
    "Choice",
    "GradientNoise",
    "Known",
    "Mode",
    "Parameters",
    "Scaling",
    "Source",
    "ThroughputModel",
    "best_batch",
    "best_batches",
    "fit_many",
    "fixed_batches",
    "gain",
    "grad_s",
    "hybrid_iteration_s",
    "hybrid_throughput",
    "iteration_s",
    "noise_of_gradients",
    "noise_of_successive",
    "noise_scale",
    "pipeline_s",
    "replicas_of",
    "rule_named",
    "smoothed",
    "source_of",
    "step_s",
    "sync_s",
]
