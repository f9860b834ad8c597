"""Loaning alone (section 7.3 of Lyra): what reclaiming costs, checkpoints, and how demand is foreseen."""

import numpy as np

from stretto.clusters.demand import made_demand, read_demand
from stretto.experiments.lyra.policies import BASIC, RIGID, inputs, loaning, notes, ratio, run
from stretto.experiments.lyra.runs import SERIES, Scheme
from stretto.experiments.reproduction import Made, Request, Row, data_set
from stretto.lend.forecast import FORECASTS, Last, Oracle, squared_error
from stretto.model import InputError

# Section 7.3 beside figure 10, without scaling: others' preemptions and damage over Lyra's.
FIGURE_10 = {"scf": (1.51, 1.36), "random": (1.68, 1.59)}
# Section 7.3 beside figure 13: preemption ratio, and times that completion is below that without checkpoints.
FIGURE_13 = {0.8: (0.0026, 1.24)}

# Section 6: mean squared error of the LSTM over so many values of five minutes.
FORECAST_ERROR, FORECAST_VALUES = 0.000_48, 1_440


def figure10(request: Request) -> Made:
    """What reclaiming costs: jobs preempted of those running, and GPUs vacated in excess."""
    rules = {"random": "random", "scf": "smallest-count", "lyra": "lyra"}
    schemes = {}
    for name, rule in rules.items():
        schemes[f"{name}, loaning only"] = (loaning(rule),)
        schemes[f"{name}, with scaling"] = (Scheme("lyra", BASIC, rule),)
    figures = run(request, schemes)
    metrics = ("loan_preemption_ratio", "preemption_ratio", "collateral_damage")
    rows = [Row(name, metric, None, figures[name][metric]) for name in schemes for metric in metrics]
    for kind in ("loaning only", "with scaling"):
        for name, (preempted, damage) in FIGURE_10.items():
            published = (preempted, None, damage) if kind == "loaning only" else (None, None, None)
            for metric, figure in zip(metrics, published, strict=True):
                ours = ratio(figures[f"{name}, {kind}"][metric], figures[f"lyra, {kind}"][metric])
                rows.append(Row(f"{name} / lyra, {kind}", metric, figure, ours))
    return inputs(request), rows, notes(request)


def figure13(request: Request) -> Made:
    """Loaning alone where a share of the jobs keeps its progress when it is preempted."""
    shares = (0.0, 0.2, 0.4, 0.6, 0.8)
    schemes = {
        f"{share:.0%}": (Scheme("lyra", f"{RIGID},checkpoints={share}", "lyra", {"policy.scaling": "false"}),)
        for share in shares
    }
    figures = run(request, schemes)
    rows = []
    for share in shares:
        preempted, factor = FIGURE_13.get(share, (None, None))
        ours = figures[f"{share:.0%}"]
        name = f"{share:.0%} with checkpoints"
        rows += [Row(name, metric, None, ours[metric]) for metric in ("avg_queue_s", "avg_jct_s")]
        rows.append(Row(name, "preemption_ratio", preempted, ours["preemption_ratio"]))
        rows.append(
            Row(name, "times below none", factor, ratio(figures["0%"]["avg_jct_s"], ours["avg_jct_s"]))
        )
    note = "the caption says Ideal, the text compares with row 9 of table 5: loaning alone, as here"
    return inputs(request), rows, [note, *notes(request)]


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
