"""What do people submit? A job file, or one of a neighbouring system, becomes one checked specification."""

from stretto.jobfile.parts import (
    Accelerators,
    After,
    Array,
    Batch,
    BatchPolicy,
    Checkpoint,
    Dependency,
    Elastic,
    Resources,
    Restart,
    Serving,
    Stop,
    Webhook,
    WebhookEvent,
    When,
    Worth,
)
from stretto.jobfile.spec import JobSpec
from stretto.jobfile.submission import MOST_BYTES, read_submission
from stretto.jobfile.to_job import accepted_job, check_possible, permitted_gpus, spec_to_job

__all__ = [
    "MOST_BYTES",
    "Accelerators",
    "After",
    "Array",
    "Batch",
    "BatchPolicy",
    "Checkpoint",
    "Dependency",
    "Elastic",
    "JobSpec",
    "Resources",
    "Restart",
    "Serving",
    "Stop",
    "Webhook",
    "WebhookEvent",
    "When",
    "Worth",
    "accepted_job",
    "check_possible",
    "permitted_gpus",
    "read_submission",
    "spec_to_job",
]
