"""One simulation, as `stretto simulate` makes it: its figures, its frames, and its picture in a notebook."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto import defaults
from stretto.errors import InputError
from stretto.experiments.bounds import with_bounds
from stretto.experiments.figure_export import write_comparison_figures
from stretto.experiments.frames import allocations_of, jobs_of, rounds_of
from stretto.experiments.present import comparison
from stretto.experiments.spec import RunSpec, parse_settings, run_spec
from stretto.notebook.frame import frame_of
from stretto.report.content import Comparison
from stretto.report.fragment import run_fragment
from stretto.report.wording import DASH, duration, plural
from stretto.sim.result import Result

if TYPE_CHECKING:
    from stretto.notebook.comparison import Runs

Progress = Callable[[int, int], None]  # jobs that have ended, all jobs


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """What came of one simulation. Frames are of pandas where it is installed, else NumPy's."""

    result: Result

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Every figure by name, as `stretto simulate --json` prints them; None where one does not apply."""
        return self.result.summary()

    @cached_property
    def jobs(self) -> Any:
        """A row for each job, by submission."""
        return frame_of(jobs_of(self.result))

    @cached_property
    def rounds(self) -> Any:
        """A row for each decision: jobs and GPUs in use after it, and how long it took."""
        return frame_of(rounds_of(self.result))

    @cached_property
    def allocations(self) -> Any:
        """A row for each stretch of time over which the GPUs of a job did not change."""
        return frame_of(allocations_of(self.result))

    @property
    def skipped(self) -> Sequence[str]:
        """Jobs that were left out, and why."""
        return self.result.skipped

    def compare(self, others: "Sequence[Run]") -> "Runs":
        """This run beside others, as `stretto.compare` puts them."""
        from stretto.notebook.comparison import compare

        return compare([self, *others])

    @cached_property
    def content(self) -> Comparison:
        """What reports are made of, for this run alone."""
        return comparison(f"{self.result.policy} on {self.result.trace}", [self.result], "", "")

    def write_figures(self, folder: str | Path) -> None:
        """Write the figures as SVG and PNG, and their data as CSV. A warning says where there is no PNG."""
        write_figures(self.content, [self.result], folder)

    def __repr__(self) -> str:
        """One line: what ran, and its mean completion time."""
        result = self.result
        mean_s = self.summary["avg_jct_s"]
        jobs = plural(len(result.requests.jobs), "job")
        return (
            f"<stretto run: {result.policy} on {result.trace}, {result.cluster.name}, seed {result.seed}: "
            f"{jobs}, mean JCT {DASH if mean_s is None else duration(mean_s)}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: no script, and nothing is fetched."""
        return run_fragment(self.content)


def simulate(
    trace: str | Path,
    *,
    cluster: str | Path,
    policy: str = defaults.POLICY,
    seed: int = 0,
    settings: Mapping[str, object] | None = None,
    profiles: str | Path = "",
    constraints: str | Path = "",
    skip_bad: bool = False,
    fairness: bool = False,
    bounds: bool = False,
    name: str = "",
    progress: Progress | None = None,
) -> Run:
    """One workload under one policy, as `stretto simulate` runs it.

    trace, cluster: a file or a built-in name. policy: a name or FILE.py:Class. settings: values by SPACE.KEY,
    as `--set` takes them. name: what the run is called beside others of the same policy.
    Raises InputError for what is wrong with the words, before anything runs.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed must be a whole number >= 0, got {seed!r}")
    for words, value in (("trace", trace), ("cluster", cluster), ("policy", policy)):
        if not isinstance(value, str | Path) or not str(value):
            raise InputError(f"{words} must be a file or a built-in name, got {value!r}")
    spec = RunSpec(
        cluster=str(cluster),
        trace=str(trace),
        policy=str(policy),
        profiles=str(profiles),
        seed=seed,
        settings=_settings(settings or {}),
        skip_bad=skip_bad,
        fairness=fairness,
        constraints=str(constraints),
    )
    result = run_spec(spec, progress)
    if bounds:
        (result,) = with_bounds([result], [spec])
    return Run(replace(result, policy=name) if name else result)


def write_figures(content: Comparison, results: Sequence[Result], folder: str | Path) -> None:
    """As `--figures` writes them."""
    if no_png := write_comparison_figures(content, results, Path(folder), called="figures"):
        warnings.warn(no_png, stacklevel=3)


def _settings(settings: Mapping[str, object]) -> dict[str, str]:
    if not isinstance(settings, Mapping):
        raise InputError(f"settings must be values by SPACE.KEY, got {settings!r}")
    return parse_settings([f"{key}={_word(value)}" for key, value in settings.items()], called="settings:")


def _word(value: object) -> str:
    """A value as the command line has it."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
