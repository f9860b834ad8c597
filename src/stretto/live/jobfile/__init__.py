"""What do people submit? A job file, or one of a neighbouring system, becomes one checked specification."""

from stretto.live.jobfile.parts import (
    Accelerators,
    After,
    Array,
    Batch,
    BatchPolicy,
    Checkpoint,
    Dependency,
    Elastic,
    Moment,
    Notice,
    Resources,
    Restart,
    Stop,
    When,
    Worth,
)
from stretto.live.jobfile.spec import JobSpec

__all__ = [
    "Accelerators",
    "After",
    "Array",
    "Batch",
    "BatchPolicy",
    "Checkpoint",
    "Dependency",
    "Elastic",
    "JobSpec",
    "Moment",
    "Notice",
    "Resources",
    "Restart",
    "Stop",
    "When",
    "Worth",
]
