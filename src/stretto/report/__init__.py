"""Which policy won, by how much, how surely, and why? Simulated runs compared, as a page and a table."""

from stretto.report.content import ClusterFacts, Comparison, Intervals, Note, RunSeries
from stretto.report.page import render, write_report
from stretto.report.terminal import comparison_table, run_summary

__all__ = [
    "ClusterFacts",
    "Comparison",
    "Intervals",
    "Note",
    "RunSeries",
    "comparison_table",
    "render",
    "run_summary",
    "write_report",
]
