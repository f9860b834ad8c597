"""Some of the jobs of a snapshot, with other requests: what a policy is shown that may not use everything."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from stretto.model import EndedJobs, IntArray, Job, JobId, JobTable, Placement, Requests

# Columns of requests in which other requests differ.
PER_JOB = ("max_gpus", "gpus", "min_gpus", "allowed_kinds", "fewest_gpus")


def select_jobs(jobs: JobTable, rows: IntArray, changed: Mapping[int, Job], placement: Placement) -> JobTable:
    """These rows of a table, holding what a placement says. changed: other requests, by row of the table."""
    requests = with_requests(jobs.requests, {int(jobs.rows[row]): job for row, job in changed.items()})
    views = {
        column.name: _taken(getattr(jobs, column.name), rows)
        for column in fields(jobs)
        if column.name.startswith("known_")
    }
    gpus, nodes = np.zeros((2, len(rows)), dtype=np.int64)
    kind = np.full(len(rows), -1)
    names: list[JobId] = requests.ids[jobs.rows[rows]].tolist()
    place_of = {name: place for place, name in enumerate(names)}
    for name, allocation in placement.items():
        place = place_of.get(name)
        if place is not None:
            gpus[place], nodes[place], kind[place] = allocation.gpus, len(allocation.nodes), allocation.kind
    return JobTable(requests, jobs.rows[rows], gpus, nodes, kind, **views)


def reorder_jobs(jobs: JobTable, order: IntArray) -> JobTable:
    """The same jobs in another order of rows."""
    columns = {
        one.name: _taken(getattr(jobs, one.name), order) for one in fields(jobs) if one.name != "requests"
    }
    return replace(jobs, **columns)


def with_requests(requests: Requests, changed: Mapping[int, Job]) -> Requests:
    """The same requests but for some; columns that were computed are kept."""
    if not changed:
        return requests
    jobs = list(requests.jobs)
    for place, job in changed.items():
        jobs[place] = job
    new, places = Requests(jobs, requests.cluster), np.array(list(changed), dtype=np.int64)
    tail = Requests(list(changed.values()), requests.cluster)
    for name, column in list(vars(requests).items()):
        if not isinstance(column, np.ndarray):
            continue
        if name in PER_JOB:
            column = column.copy()
            column[places] = getattr(tail, name)
            column.setflags(write=False)
        vars(new)[name] = column
    return new


def _taken(column: Any, rows: IntArray) -> Any:
    """Rows of a column, of a list, or of every column of a group."""
    if column is None or isinstance(column, EndedJobs):  # what is known beside the rows stays
        return column
    if isinstance(column, np.ndarray):
        return column[rows]
    if is_dataclass(column) and not isinstance(column, type):
        return replace(
            column, **{entry.name: _taken(getattr(column, entry.name), rows) for entry in fields(column)}
        )
    assert isinstance(column, Sequence)
    return [column[row] for row in rows.tolist()]
