"""Loaning (section 7.3 of Lyra): jobs on loan, what reclaiming costs, and how demand is foreseen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stretto.clusters.demand import made_demand, read_demand
from stretto.errors import InputError
from stretto.experiments.lyra.policies import (
    BASE,
    BASELINE,
    BASIC,
    FULL_SPEED,
    IDEAL,
    LENT_FIRST,
    ON_LOAN_USAGE,
    RIGID,
    Figures,
    inputs,
    known,
    loaning,
    ratio,
    run,
    table_of,
)
from stretto.experiments.lyra.runs import SERIES, Scheme, ran_on_lent, run_schemes, times, usage_on_loan
from stretto.experiments.reproduction import Made, Request, Row, data_set
from stretto.lend.forecast import FORECASTS, Last, Oracle, squared_error
from stretto.sim.result import Result

# Section 7.3 beside figure 10, without scaling: others' preemptions and damage over Lyra's.
FIGURE_10 = {"scf": (1.51, 1.36), "random": (1.68, 1.59)}
# Section 7.3 beside figure 13: preemption ratio, and times that completion is below that without checkpoints.
FIGURE_13 = {0.8: (0.0026, 1.24)}
CHECKPOINTS = (0.0, 0.2, 0.4, 0.6, 0.8)  # shares of the jobs

# Section 6: mean squared error of the LSTM over so many values of five minutes.
FORECAST_ERROR, FORECAST_VALUES = 0.000_48, 1_440
FIRST = "own first, lent first: where fungible jobs of one size go first; see docs/decisions/0006-lyra.md"

# Table 7: mean, median and p95 of queuing and of completion (s), of the jobs that ran on lent servers.
TABLE_7 = {"baseline": (4573, 1283, 23351, 11547, 2122, 60170), "lyra": (1119, 274, 7256, 6887, 1373, 35776)}
DAY_S, DAYS = 86_400.0, 15
# Section 7.2: share of a reclaim that servers without base workers satisfy.
FLEXIBLE = {"basic": 0.535, "ideal": 0.835}
LOANING_LENT_FIRST = replace(loaning("lyra"), settings={**loaning("lyra").settings, **LENT_FIRST})


def table7(request: Request) -> Made:
    """The jobs that ran on lent servers, under loaning alone, and the same jobs without."""
    schemes = {BASELINE: BASE[BASELINE], "own first": (loaning("lyra"),), "lent first": (LOANING_LENT_FIRST,)}
    drawn = run_schemes(request, schemes)
    return table_of(request, [_rows_of_table7(results) for results in drawn], [FIRST])


def _rows_of_table7(results: Mapping[str, Sequence[Result]]) -> list[Row]:
    rows = []
    (base,) = results[BASELINE]
    for where in ("own first", "lent first"):
        (lyra,) = results[where]
        there = ran_on_lent(lyra)
        ours = {
            "baseline": times(base.queue_s[there], base.jct_s[there]),
            "lyra": times(lyra.queue_s[there], lyra.jct_s[there]),
        }
        metrics = ("avg_queue_s", "p50_queue_s", "p95_queue_s", "avg_jct_s", "p50_jct_s", "p95_jct_s")
        for column, metric in enumerate(metrics):
            rows += [
                Row(f"{name}, {where}", metric, TABLE_7[name][column], known(ours[name][metric]))
                for name in TABLE_7
            ]
            theirs = TABLE_7["baseline"][column] / TABLE_7["lyra"][column]
            factor = ratio(ours["baseline"][metric], ours["lyra"][metric])
            rows.append(Row(f"baseline / lyra, {where}", metric, theirs, factor))
        rows.append(Row(f"lyra, {where}", "share_of_jobs_on_loan", None, float(there.mean())))
    return rows


def figure9(request: Request) -> Made:
    """How much of what is on loan is used, day by day, under loaning alone."""
    on_demand = {**LOANING_LENT_FIRST.settings, "lend.on_demand": "true"}
    schemes = {
        "own first": (loaning("lyra"),),
        "lent first": (LOANING_LENT_FIRST,),
        "lent first, on demand": (replace(LOANING_LENT_FIRST, settings=on_demand),),
    }
    drawn = [
        [
            Row(
                f"{name}, day {day + 1}",
                "usage_on_loan",
                ON_LOAN_USAGE,
                known(usage_on_loan(result, day * DAY_S, (day + 1) * DAY_S)),
                "at least",
            )
            for name, (result,) in results.items()
            for day in range(DAYS)
        ]
        for results in run_schemes(request, schemes)
    ]
    return table_of(request, drawn, [FIRST])


def reclaims(request: Request) -> Made:
    """What part of a reclaim servers without base workers satisfy."""
    schemes = {
        "basic": (Scheme("lyra", BASIC, "lyra", LENT_FIRST),),
        "ideal": (Scheme("lyra", IDEAL, "lyra", FULL_SPEED | LENT_FIRST),),
    }
    drawn = [
        [Row(name, "spared_share", FLEXIBLE[name], _spared_share(result)) for name, (result,) in each.items()]
        for each in run_schemes(request, schemes)
    ]
    remark = "a server counts that hosts flexible workers or nothing; the paper does not say of idle ones"
    return table_of(request, drawn, [FIRST, remark])


def _spared_share(result: Result) -> float | None:
    """Mean over the reclaims; None where nothing was asked for."""
    shares = [
        settled.spared_gpus / settled.demanded_gpus
        for settled in result.history.settled
        if settled.demanded_gpus
    ]
    return float(np.mean(shares)) if shares else None


def figure10(request: Request) -> Made:
    """What reclaiming costs: jobs preempted of those running, and GPUs vacated in excess."""
    rules = {"random": "random", "scf": "smallest-count", "lyra": "lyra"}
    schemes = {}
    for name, rule in rules.items():
        schemes[f"{name}, loaning only"] = (loaning(rule),)
        schemes[f"{name}, with scaling"] = (Scheme("lyra", BASIC, rule),)
    return table_of(request, [_rows_of_figure10(figures) for figures in run(request, schemes)])


def _rows_of_figure10(figures: Figures) -> list[Row]:
    metrics = ("loan_preemption_ratio", "preemption_ratio", "collateral_damage")
    rows = [Row(name, metric, None, figures[name][metric]) for name in figures for metric in metrics]
    for kind in ("loaning only", "with scaling"):
        for name, (preempted, damage) in FIGURE_10.items():
            published = (preempted, None, damage) if kind == "loaning only" else (None, None, None)
            for metric, figure in zip(metrics, published, strict=True):
                ours = ratio(figures[f"{name}, {kind}"][metric], figures[f"lyra, {kind}"][metric])
                rows.append(Row(f"{name} / lyra, {kind}", metric, figure, ours))
    return rows


def figure13(request: Request) -> Made:
    """Loaning alone where a share of the jobs keeps its progress when it is preempted."""
    schemes = {
        f"{share:.0%}": (Scheme("lyra", f"{RIGID},checkpoints={share}", "lyra", {"policy.scaling": "false"}),)
        for share in CHECKPOINTS
    }
    note = "the caption says Ideal, the text compares with row 9 of table 5: loaning alone, as here"
    return table_of(request, [_rows_of_figure13(figures) for figures in run(request, schemes)], [note])


def _rows_of_figure13(figures: Figures) -> list[Row]:
    rows = []
    for share in CHECKPOINTS:
        preempted, factor = FIGURE_13.get(share, (None, None))
        ours = figures[f"{share:.0%}"]
        name = f"{share:.0%} with checkpoints"
        rows += [Row(name, metric, None, ours[metric]) for metric in ("avg_queue_s", "avg_jct_s")]
        rows.append(Row(name, "preemption_ratio", preempted, ours["preemption_ratio"]))
        rows.append(
            Row(name, "times below none", factor, ratio(figures["0%"]["avg_jct_s"], ours["avg_jct_s"]))
        )
    return rows


def forecasts(request: Request) -> Made:
    """How far off each forecast of the next five minutes is, on the last five days of the same series."""
    if request.data is None:
        share = made_demand(days=15)
    else:
        _, share = read_demand(data_set(request.data, "inference", SERIES))
    values = max(round(FORECAST_VALUES * request.scale), 2)
    first, error, lacking = len(share) - values, dict[str, float](), list[str]()
    for name, forecast in FORECASTS.items():
        if forecast is Oracle:  # never off
            continue
        try:
            error[name] = squared_error(forecast(), share, first)
        except InputError as refused:
            lacking.append(f"{name}: left out: {refused}")
    rows = [
        Row(name, "squared_error", FORECAST_ERROR if name == "lstm" else None, error[name]) for name in error
    ]
    changes = np.diff(share[first - 1 :])
    remarks = [
        f"the last {values} values; each forecast knows what lies before, and nothing else",
        "the paper's series is private, so that its error compares with none of these",
        f"{Last.name} is off by the mean squared change itself, {np.mean(np.square(changes)):.3g}",
        *lacking,
    ]
    return inputs(request)[1:], rows, remarks
