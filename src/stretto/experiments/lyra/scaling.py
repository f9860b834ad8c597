"""Elastic scaling alone (section 7.4 of Lyra)."""

from collections.abc import Mapping
from dataclasses import replace

from stretto.experiments.draws import SEEDS, seeds_of
from stretto.experiments.lyra.policies import (
    BASE,
    BASELINE,
    EIGHTH,
    EIGHTH_BASE,
    FIFO_EIGHTH,
    LOSS,
    POLLUX,
    SCALING,
    TABLE_5_SCHEMES,
    Figures,
    ratio,
    run,
    table_of,
)
from stretto.experiments.lyra.runs import Scheme
from stretto.experiments.reproduction import Bound, Made, Request, Row

# Table 8: queuing, then completion (s). Its rows of AFS and Pollux have each other's names: in table 5, and
# in the text beside it, these figures are the other's.
TABLE_8: Mapping[str, tuple[float, ...]] = {
    BASELINE: (55, 1892, 8357, 14323, 791, 29163, 82933, 376513),
    "10 scaling: gandiva": (49, 1764, 6632, 11806, 755, 27244, 80567, 323626),
    "11 scaling: afs": (47, 772, 3488, 9031, 686, 20143, 60883, 247435),
    EIGHTH: (58, 1297, 5883, 11124, 721, 12304, 72123, 323513),
    "13 scaling: lyra": (47, 697, 3475, 8731, 602, 12072, 57597, 223815),
    "14 scaling: lyra+tuned": (43, 566, 2749, 7112, 564, 9293, 52458, 194391),
}
PERCENTILES = tuple(f"p{percent}_{name}" for name in ("queue_s", "jct_s") for percent in (50, 75, 95, 99))
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the jobs that are elastic, in figures 14 to 16
# Figure 16, as its text has it: times that completion is above that of linear scaling, at most.
MOST_INFLATION = {0.2: 1.05, 0.4: 1.05, 0.6: 1.09, 0.8: 1.09, 1.0: 1.09}
MOST_QUEUE_INFLATION = 1.07
FIGURE_14_SEEDS = SEEDS[:1]  # of the made trace: its five runs of Pollux take most of half an hour
ALL_ELASTIC = 1.86  # times that completion is below the baseline, all jobs elastic and none linear


def table8(request: Request) -> Made:
    """The distributions of queuing and completion under all schemes of elastic scaling."""
    schemes = {name: TABLE_5_SCHEMES[name] for name in TABLE_8 if name != EIGHTH}
    drawn = run(request, {**schemes, EIGHTH: (POLLUX,), EIGHTH_BASE: (FIFO_EIGHTH,)})
    remarks = [
        "the paper's rows of AFS and Pollux have changed names here, as its table 5 and its text have them",
        f"{EIGHTH}: an eighth of cluster and trace, beside FIFO on the same",
    ]
    return table_of(request, [_rows_of_table8(figures) for figures in drawn], remarks)


def _rows_of_table8(figures: Figures) -> list[Row]:
    rows = [
        Row(name, metric, figure, figures[name][metric])
        for name, paper in TABLE_8.items()
        for metric, figure in zip(PERCENTILES, paper, strict=True)
    ]
    for name, paper in TABLE_8.items():
        if name != BASELINE:
            beside = figures[EIGHTH_BASE if name == EIGHTH else BASELINE]
            rows += [
                Row(
                    f"baseline / {name}", metric, first / figure, ratio(beside[metric], figures[name][metric])
                )
                for metric, first, figure in zip(PERCENTILES, TABLE_8[BASELINE], paper, strict=True)
            ]
    return rows


def figure14(request: Request) -> Made:
    """Elastic scaling alone as more jobs are elastic: queuing (figure 14) and completion (figure 15)."""
    schemes = {**BASE, EIGHTH_BASE: (FIFO_EIGHTH,)}
    for share in SHARES:
        for name, scheme in (*SCALING.items(), ("lyra+tuned", Scheme("lyra-tuned")), ("pollux", POLLUX)):
            tuned = "" if name in SCALING else ",tuned=true"
            schemes[f"{name}, {share:.0%}"] = (replace(scheme, recipe=f"elastic={share}{tuned}"),)
    remarks = [
        "the figures have no numbers; in them, Lyra reduces queuing most at every share",
        "pollux: an eighth of cluster and trace, beside FIFO on the same",
        "of one trace alone, since two of them would take more than half an hour of two cores",
    ]
    drawn = run(request, schemes, seeds_of(request, FIGURE_14_SEEDS))
    return table_of(request, [_rows_of_figure14(figures) for figures in drawn], remarks)


def _rows_of_figure14(figures: Figures) -> list[Row]:
    rows = []
    for name in figures:
        if name not in (BASELINE, EIGHTH_BASE):
            beside = figures[EIGHTH_BASE if name.startswith("pollux") else BASELINE]
            rows += [
                Row(f"baseline / {name}", metric, None, ratio(beside[metric], figures[name][metric]))
                for metric in ("avg_queue_s", "avg_jct_s")
            ]
    return rows


def figure16(request: Request) -> Made:
    """Lyra's scaling where each further worker brings a fifth less, as more jobs are elastic."""
    schemes = dict(BASE)
    for share in SHARES:
        schemes[f"linear, {share:.0%}"] = (Scheme("lyra", f"elastic={share}"),)
        schemes[f"a fifth less, {share:.0%}"] = (Scheme("lyra", f"elastic={share}", "", LOSS),)
    return table_of(request, [_rows_of_figure16(figures) for figures in run(request, schemes)])


def _rows_of_figure16(figures: Figures) -> list[Row]:
    most: Bound = "at most"
    rows = []
    for share in SHARES:
        linear, less = figures[f"linear, {share:.0%}"], figures[f"a fifth less, {share:.0%}"]
        for metric, bound in (("avg_queue_s", MOST_QUEUE_INFLATION), ("avg_jct_s", MOST_INFLATION[share])):
            rows.append(
                Row(
                    f"a fifth less / linear, {share:.0%}",
                    metric,
                    bound,
                    ratio(less[metric], linear[metric]),
                    most,
                )
            )
            factor = ALL_ELASTIC if share == 1.0 and metric == "avg_jct_s" else None
            rows.append(
                Row(
                    f"baseline / a fifth less, {share:.0%}",
                    metric,
                    factor,
                    ratio(figures[BASELINE][metric], less[metric]),
                )
            )
    return rows
