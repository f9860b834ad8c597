"""How the figures of the page were obtained, as far as the report itself made them."""

from stretto.report.content import Comparison, Note
from stretto.report.standings import Standings

INTERVALS = {
    "traces": "A mean is over runs. Its ± is Student's 95 % interval over traces; seeds of one trace are "
    "averaged first, because they share its jobs.",
    "seeds": "A mean is over runs. Its ± is Student's 95 % interval over seeds of the one trace: it says how "
    "much chance within this trace matters, nothing about other traces.",
    "jobs": "There is one run per policy. The ranges under mean JCT and mean queuing are 95 % bootstrap "
    "intervals: the run's jobs are drawn again with replacement. Jobs of one run influence one another, so "
    "the true uncertainty is larger, and nothing is said about other traces or seeds.",
    "none": "",
}
RATIOS = {
    "jobs": "The ratio is that of the mean JCTs of the jobs that completed under both; its interval is a "
    "bootstrap over these jobs, kept in pairs.",
    "runs": "The ratio is that of the two mean JCTs over these workloads; its interval is Student's for a "
    "ratio of two means, so that what makes a workload hard for both does not blur it.",
}


def notes(comparison: Comparison, standings: Standings) -> tuple[Note, ...]:
    """The report's own method first, then what the caller adds."""
    own = (
        Note(
            "Ranking",
            "By mean job completion time over all runs. Colours follow the order in which policies were "
            "given.",
        ),
        Note("Intervals", INTERVALS[standings.basis]),
        Note(
            "Pairs",
            "The policy with the lowest mean JCT is compared with each other one on the workloads that both "
            f"ran. {RATIOS['jobs' if standings.basis == 'jobs' else 'runs']}",
        ),
        Note(
            "Jobs sooner or later",
            "A job is sooner when its completion time is smaller under the best policy; within a millionth "
            "it counts as alike. p is the one-sided Wilcoxon signed-rank test that the best policy's times "
            "are smaller; it takes jobs as independent, which they are not quite.",
        ),
        Note(
            "Distributions",
            "Over all submitted jobs, all runs pooled; a job that never completed keeps its curve below "
            "100 %.",
        ),
        Note(
            "Over time",
            "Means over equal stretches of the time axis, weighted by time. The workload shown first is the "
            "one on which the best policy's mean JCT is nearest to its median over workloads.",
        ),
        Note(
            "Waiting and running",
            "Waiting is time without any GPU, running is the rest of the completion time, restarts included; "
            "jobs that completed, all runs pooled.",
        ),
    )
    return (*own, *comparison.notes)
