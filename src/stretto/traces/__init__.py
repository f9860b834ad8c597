"""What arrives when: workloads read from files, or made from published statistics."""

from stretto.traces.own import write_trace
from stretto.traces.reading import Format, JobOfRow
from stretto.traces.registry import FORMATS, all_formats, built_in_traces, read_trace
from stretto.traces.sheet import Sheet
from stretto.traces.synthetic import MADE, make_workload
from stretto.traces.workload import Outcome, Truth, Workload, check_against

__all__ = [
    "FORMATS",
    "MADE",
    "Format",
    "JobOfRow",
    "Outcome",
    "Sheet",
    "Truth",
    "Workload",
    "all_formats",
    "built_in_traces",
    "check_against",
    "make_workload",
    "read_trace",
    "write_trace",
]
