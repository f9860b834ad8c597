"""Several runs side by side, with the verdict, the intervals and the pictures of `stretto compare`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from stretto.errors import InputError
from stretto.experiments.present import comparison
from stretto.notebook.frame import frame_of
from stretto.notebook.run import Run, write_figures
from stretto.report import Comparison, write_report
from stretto.report.comparison_figures import policy_columns
from stretto.report.fragment import comparison_fragment
from stretto.report.standings import Standings, standings_of


@dataclass(frozen=True, eq=False, repr=False)
class Runs:
    """Runs on one cluster, compared. The best mean completion time comes first where they are ranked."""

    runs: tuple[Run, ...]

    @cached_property
    def summary(self) -> Any:
        """A row for each run, with every figure of its summary."""
        summaries = [{**run.summary} for run in self.runs]
        names = [name for name in summaries[0] if name != "settings"]
        columns = {}
        for name in names:
            values = [summary[name] for summary in summaries]
            is_text = any(isinstance(value, str) for value in values)
            column = np.empty(len(values), dtype=np.object_ if is_text else np.float64)
            column[:] = [np.nan if value is None else value for value in values]
            columns[name] = column
        return frame_of(columns)

    @cached_property
    def policies(self) -> Any:
        """A row for each policy, the best first: means over its runs, and their 95 % intervals."""
        return frame_of(
            {
                name: np.array(values, dtype=np.object_ if name == "policy" else None)
                for name, values in policy_columns(self.standings).items()
            }
        )

    @cached_property
    def content(self) -> Comparison:
        """What reports are made of."""
        results = [run.result for run in self.runs]
        policies = ", ".join(dict.fromkeys(result.policy for result in results))
        traces = ", ".join(dict.fromkeys(result.trace for result in results))
        return comparison(f"{policies} on {traces}", results, "", "")

    @cached_property
    def standings(self) -> Standings:
        """The policies ranked, and the best beside each other one."""
        return standings_of(self.content)

    def write(self, path: str | Path) -> None:
        """Write the report of `stretto compare`, one self-contained page."""
        try:
            write_report(self.content, Path(path))
        except OSError as wrong:
            raise InputError(f"{path}: cannot be written: {wrong.strerror}") from None

    def write_figures(self, folder: str | Path) -> None:
        """Write the figures as SVG and PNG, and their data as CSV. A warning says where there is no PNG."""
        write_figures(self.content, [run.result for run in self.runs], folder)

    def __repr__(self) -> str:
        """One line: what is compared."""
        return f"<stretto comparison: {self.content.title}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: no script, and nothing is fetched."""
        return comparison_fragment(self.content)


def compare(runs: Sequence[Run]) -> Runs:
    """Runs side by side. They differ in policy (or `name`), trace or seed, and share one cluster.

    Raises InputError where they cannot be compared.
    """
    runs = [*runs]
    if not runs:
        raise InputError("compare: expected at least one run, got none")
    for run in runs:
        if not isinstance(run, Run):
            raise InputError(f"compare: expected runs of stretto.simulate, got {run!r}")
    names = {run.result.cluster.name for run in runs}
    if any(run.result.cluster != runs[0].result.cluster for run in runs):
        raise InputError(f"compare: expected runs on one cluster, got {', '.join(sorted(names))}")
    compared = Runs(tuple(runs))
    _ = compared.content  # which finds out whether two of them cannot be told apart
    return compared
