"""Elastic scaling alone (section 7.4 of Lyra)."""

from stretto.experiments.lyra.policies import BASE, BASELINE, SCALING, inputs, notes, ratio, run
from stretto.experiments.lyra.runs import Scheme
from stretto.experiments.reproduction import Made, Request, Row


def figure14(request: Request) -> Made:
    """Elastic scaling alone as more jobs are elastic: queuing (figure 14) and completion (figure 15)."""
    shares = (0.2, 0.4, 0.6, 0.8, 1.0)
    schemes = dict(BASE)
    for share in shares:
        for name, scheme in SCALING.items():
            schemes[f"{name}, {share:.0%}"] = (
                Scheme(scheme.policy, f"elastic={share}", "", scheme.settings),
            )
    figures = run(request, schemes)
    rows = [
        Row(f"baseline / {name}", metric, None, ratio(figures[BASELINE][metric], figures[name][metric]))
        for name in schemes
        if name != BASELINE
        for metric in ("avg_queue_s", "avg_jct_s")
    ]
    note = "the figure has no numbers; in it, Lyra reduces queuing most at every share"
    return inputs(request), rows, [note, *notes(request)]
