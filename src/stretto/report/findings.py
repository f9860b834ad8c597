"""The result in words: which policy won, how sure that is, why, and where others lead."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from stretto.report.content import Comparison
from stretto.report.standings import Pairing, Standings
from stretto.report.statistics import Estimate
from stretto.report.wording import Unit, column_unit, duration, listed, plural, share, times
from stretto.sim.summary import METRICS, RANKED_BY

Tone = Literal["clear", "open", "plain"]
FEW = 3  # metrics named where others lead


@dataclass(frozen=True, slots=True)
class Card:
    """One thing to take away, beside the headline."""

    title: str
    figure: str
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The page's first sentence and the cards under it."""

    winner: str  # empty where no policy completed a job
    colour: int
    claim: str  # follows the winner's name
    rest: str  # against the next best
    cards: tuple[Card, ...]


def verdict(standings: Standings) -> Verdict:
    """Which policy has the lowest mean JCT, by how much, how sure that is, and why."""
    best = standings.best
    mean_s = best.value(RANKED_BY.key)
    if not np.isfinite(mean_s):
        return Verdict("", best.colour, "No policy completed a job.", "", ())
    claim = f"finishes a job in {duration(mean_s)} on average."
    rivals = [pairing for pairing in standings.pairings if np.isfinite(pairing.ratio.value)]
    if not rivals:
        return Verdict(best.policy, best.colour, claim, "", _alone(standings))
    nearest, farthest = rivals[0], rivals[-1]
    rest = f"{nearest.other.policy}, the next best, takes {times(nearest.ratio.value)} as long"
    rest += f"; {farthest.other.policy} takes {times(farthest.ratio.value)}." if len(rivals) > 1 else "."
    cards = (_certainty(nearest), _reason(nearest), _job_by_job(nearest), _where_others_lead(standings))
    return Verdict(best.policy, best.colour, claim, rest, cards)


def interval_words(estimate: Estimate) -> str:
    """'1.49× to 1.66×'."""
    return f"{times(estimate.low)} to {times(estimate.high)}"


def caution(comparison: Comparison, standings: Standings) -> tuple[str, ...]:
    """What a reader must know before believing anything on the page."""
    warnings = []
    made = list(dict.fromkeys(run.trace for run in comparison.runs if run.synthetic))
    if made:
        all_made = len(made) == len({run.trace for run in comparison.runs})
        which = (
            "Every workload here was made"
            if all_made
            else f"{listed(made)} {'was' if len(made) == 1 else 'were'} made"
        )
        warnings.append(
            f"Synthetic data: {which}, not recorded on a real cluster. The figures describe the model, not "
            "users."
        )
    if not standings.same_workloads:
        warnings.append(
            "Not every policy ran on every workload; means are over different runs. The pairs are not "
            "affected."
        )
    unfinished = [
        f"{s.policy} ({sum(int(np.isnan(run.jct_s).sum()) for run in s.runs)})"
        for s in standings.ranked
        if any(np.isnan(run.jct_s).any() for run in s.runs)
    ]
    if unfinished:
        warnings.append(f"Jobs without completion, missing in the mean JCT: {listed(unfinished)}.")
    return tuple(warnings)


def _certainty(pairing: Pairing) -> Card:
    ratio, other = pairing.ratio, pairing.other.policy
    title = "How sure"
    if ratio.basis == "none":
        text = f"Too few jobs or runs for an interval of the ratio to {other}."
        return Card(title, "Unknown", text, "open")
    interval = f"95 % interval of the ratio to {other}: {interval_words(ratio)}"
    if ratio.basis == "jobs":
        text = (
            f"{interval}, by resampling the {plural(ratio.count, 'job')} of this one run. It says nothing "
            "about other traces or seeds."
        )
        return Card(title, "One run only", text, "plain" if pairing.is_settled else "open")
    ahead = f"Ahead on {pairing.ahead} of {plural(pairing.workloads, 'workload')}"
    runs = f"{ahead}. {interval}, over {ratio.count} {ratio.basis}"
    if pairing.is_settled:
        return Card(title, "Clear", f"{runs}.", "clear")
    return Card(title, "Not settled", f"{runs}; it includes 1×.", "open")


def _reason(pairing: Pairing) -> Card:
    waiting, running, saved = pairing.waiting_s, pairing.running_s, pairing.saved_s
    if not np.isfinite([waiting, running]).all():
        return Card("Why", "Unknown", "Waiting and running times of the runs are not known.")
    figure = "Jobs wait less" if waiting >= running else "Jobs run faster"
    if saved <= 0:
        figure = "No gain per job"
    elif min(waiting, running) > 0.35 * saved:
        figure = "Less waiting, faster running"
    parts = f"{_difference(waiting, 'waiting')}, {_difference(running, 'running')}"
    saves = "saves" if saved >= 0 else "loses"
    per_job = f"Per job {pairing.ours.policy} {saves} {duration(abs(saved))}"
    text = f"{per_job} against {pairing.other.policy}: {parts}."
    ours, other = pairing.ours.value("utilization"), pairing.other.value("utilization")
    if np.isfinite([ours, other]).all():
        text += f" GPUs in use: {share(ours)} against {share(other)}."
    return Card("Why", figure, text)


def _difference(saved_s: float, what: str) -> str:
    return f"{duration(abs(saved_s))} {'less' if saved_s >= 0 else 'more'} {what}"


def _job_by_job(pairing: Pairing) -> Card:
    jobs = pairing.jobs
    if not jobs.jobs:
        return Card("Job by job", "Unknown", "No job completed under both.")
    text = (
        f"of {plural(jobs.jobs, 'job')} finish sooner than under {pairing.other.policy}, "
        f"{share(jobs.slower)} later; half of the jobs take at least {times(jobs.median_ratio)} as long "
        "there."
    )
    return Card("Job by job", share(jobs.faster), text)


def _where_others_lead(standings: Standings) -> Card:
    best = standings.best
    title = f"Where {best.policy} does not lead"
    behind = []
    for metric in standings.present([metric for metric in METRICS if metric.main]):
        leaders = standings.leaders(metric)
        if not leaders or best.policy in leaders:
            continue
        leader = next(standing for standing in standings.ranked if standing.policy in leaders)
        ours, theirs = best.value(metric.key), leader.value(metric.key)
        unit = column_unit(metric.quantity, [ours, theirs])
        if np.isfinite(ours):
            behind.append(f"{metric.title} ({leader.policy}: {_in(unit, theirs)}, here {_in(unit, ours)})")
    if not behind:
        return Card(title, "Nowhere", "It has the best value of every figure in the table, or shares it.")
    more = f" and {plural(len(behind) - FEW, 'other figure')}" if len(behind) > FEW else ""
    return Card(title, plural(len(behind), "figure"), f"{'; '.join(behind[:FEW])}{more}.")


def _in(unit: Unit, value: float) -> str:
    return f"{unit.text(value)} {unit.name}".strip()


def _alone(standings: Standings) -> tuple[Card, ...]:
    """With one policy there is nothing to win: its waiting, tail and use stand beside the mean."""
    best = standings.best
    cards = [
        Card(
            metric.title,
            _in(column_unit(metric.quantity, [best.value(metric.key)]), best.value(metric.key)),
            words,
        )
        for metric, words in (
            (m, w)
            for m in standings.present()
            for key, w in (
                ("avg_queue_s", "waited without a GPU, on average"),
                ("p99_jct_s", "99 in 100 jobs take no longer"),
                ("makespan_s", "from the first submission to the last completion"),
                ("utilization", "of the GPUs held by jobs, mean over the run"),
            )
            if m.key == key
        )
    ]
    return tuple(cards)
