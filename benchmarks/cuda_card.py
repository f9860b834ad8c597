"""The GPU that benchmarks run on; it is imported by those whose names begin with `cuda_`."""

import os
import sys


def card() -> str:
    """The GPU and the versions, or the end where there is none."""
    try:
        import torch
    except ImportError:
        sys.exit("this needs PyTorch with a GPU of NVIDIA: PyTorch is not installed")
    if not torch.cuda.is_available():
        sys.exit("this needs a GPU of NVIDIA that PyTorch sees, and there is none")
    version = sys.version.split()[0]
    name = torch.cuda.get_device_name(0)
    return f"{name}, PyTorch {torch.__version__}, Python {version}, {os.cpu_count()} cores"
