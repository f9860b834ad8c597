"""What arrives when: workloads read from files, or made from published statistics."""

from stretto.traces.registry import FORMATS, read_trace
from stretto.traces.workload import Outcome, Truth, Workload
from stretto.traces.write import write_trace

__all__ = ["FORMATS", "Outcome", "Truth", "Workload", "read_trace", "write_trace"]
