"""All that workers of tests import, imported once. Nothing here may start a thread: it is forked."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import tests.sdk.digits  # noqa: F401
import torch._dynamo  # noqa: F401 - what the first optimiser imports: a second for each worker
