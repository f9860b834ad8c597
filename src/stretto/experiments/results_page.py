"""The page of all tables, as Markdown."""

from collections import Counter
from collections.abc import Sequence

from stretto.experiments.all_tables import Outcome
from stretto.experiments.causes_page import SIGNS, series_lines
from stretto.experiments.knowledge import knowledge_of
from stretto.experiments.markdown import cell, duration, in_sentences, number, share
from stretto.experiments.markdown import table as table_of
from stretto.experiments.reproduction import Row, Verdict, table_verdict

JUDGED = tuple(verdict for verdict in Verdict if verdict is not Verdict.NOT_COMPARED)
CORES, MOST_S = 2, 1_800.0  # on which a table should be whole within half an hour


def made_by(command: str, made_at: str, scale: float, wall_s: float) -> str:
    """How a page was made whose tables all come from one command."""
    return f"Made by `{command}` on {made_at}, {share(scale)}. It took {duration(wall_s)}."


READ = (
    "Each table was made by `stretto reproduce NAME --json` on the day that stands below it, by the code of "
    "that day."
)


def page_of(outcomes: Sequence[Outcome], about: str) -> str:
    """The page of all tables, as Markdown. about: how they were made."""
    tables = [outcome.table for outcome in outcomes if outcome.table is not None]
    whole = [table for table in tables if table.scale == 1]
    took_s = sum(table.took_s for table in tables)
    counts = Counter(verdict for table in whole for verdict in table.verdicts)
    lines = [
        "# Results: the papers' figures and ours",
        "",
        about,
        "Nothing on this page is typed in. The [rule](reproducing.md#verdicts) of the verdicts came first.",
        f"{len(whole)} tables are whole, and counted here. {len(tables) - len(whole)} were made of a share "
        "of the arrivals, which loads a cluster less. Their verdicts are in brackets, and not counted.",
        f"One simulation after the other, all of them took {duration(took_s)} of a core.",
        *_about_causes(outcomes),
        "",
        *table_of(
            ("rows", "compared", *(str(verdict) for verdict in Verdict)),
            [
                (
                    str(sum(counts.values())),
                    str(sum(counts.values()) - counts[Verdict.NOT_COMPARED]),
                    *(str(counts[verdict]) for verdict in Verdict),
                )
            ],
        ),
        "",
        "## Tables",
        "",
        *table_of(
            (
                "entry",
                "of",
                "verdict",
                *map(str, JUDGED),
                "data",
                "scale",
                "intervals",
                "runs",
                "took",
                "causes",
            ),
            [_summary(outcome) for outcome in outcomes],
        ),
    ]
    for outcome in outcomes:
        lines += ["", *_section(outcome)]
    return "\n".join(lines) + "\n"


def _about_causes(outcomes: Sequence[Outcome]) -> list[str]:
    """How many contradicted tables have a series of switched assumptions."""
    series = [outcome.causes for outcome in outcomes if outcome.causes is not None]
    contradicted = [
        outcome
        for outcome in outcomes
        if outcome.table is not None and Verdict.CONTRADICTED in outcome.table.verdicts
    ]
    if not series:
        return []
    with_series = sum(outcome.causes is not None for outcome in contradicted)
    took = duration(sum(each.took_s for each in series))
    return [
        f"Of {len(contradicted)} tables with a contradicted row, {with_series} show what one assumption "
        f"after the other does to their figures. All series took {took} of a core.",
    ]


def _summary(outcome: Outcome) -> tuple[str, ...]:
    """The line of one entry."""
    name, paper, table = outcome.experiment.name, outcome.experiment.paper, outcome.table
    if table is None:
        state = "failed" if outcome.failed else "not made"
        return (f"[{name}](#{name})", paper, state, *("" for _ in (*JUDGED, 1, 2, 3, 4, 5, 6)))
    verdicts = table.verdicts
    counts = Counter(verdicts)
    kinds = {"real" if source["real"] else "made" for source in table.inputs}
    return (
        f"[{name}](#{name})",
        paper,
        str(table_verdict(verdicts)) if table.scale == 1 else f"({table_verdict(verdicts)})",
        *(str(counts[each]) for each in JUDGED),
        "both" if len(kinds) > 1 else kinds.pop(),
        f"{table.scale:g}",
        "yes" if table.has_intervals else "",
        str(table.simulations),
        duration(table.took_s),
        "" if outcome.causes is None else f"{len(outcome.causes.series.switched) - 1} switched",
    )


def _section(outcome: Outcome) -> list[str]:
    """All that one entry came to."""
    table = outcome.table
    lines = [f"## {outcome.experiment.name}", "", f"{outcome.experiment.paper}.", ""]
    lines += [*_effort(outcome), ""] if _effort(outcome) else []
    if table is None:
        return [*lines, f"{'It failed' if outcome.failed else 'It was not made'}: {cell(outcome.why)}"]
    rows = zip(table.rows, table.verdicts, strict=True)
    lines += table_of(
        ("row", "metric", "paper", "ours", "ratio", "verdict"), [_row(row, verdict) for row, verdict in rows]
    )
    of_code = f" by commit {table.commit}" if table.commit else ", by a commit that was not recorded"
    lines += ["", f"- On {table.made_on}{of_code}, {share(table.scale)}."]
    if table.private:
        lines.append(f"- The paper never published {table.private}: what differs contradicts nothing.")
    lines += [
        f"- {'Real' if each['real'] else 'Made'}: {each['what']} ({in_sentences(each['note'])})"
        for each in table.inputs
    ]
    lines += [f"- {in_sentences(note)}" for note in table.notes]
    for policy, words in sorted(table.shown.items()):
        told = knowledge_of(outcome.experiment.name, policy)
        lines.append(f"- Shown to `{policy}`: {_shown(words)}." + (f" {told}." if told else ""))
    if outcome.why:
        state = "failed" if outcome.failed else "was not made"
        lines.append(f"- Its series of switched assumptions {state}: {cell(outcome.why)}")
    return [*lines, "", *series_lines(outcome.causes)] if outcome.causes else lines


def _effort(outcome: Outcome) -> list[str]:
    """Why a table is not whole, or does not fit half an hour on two cores, and what it takes."""
    table, why = outcome.table, outcome.experiment.not_whole
    if table is None or table.scale == 1:
        reasons = [f"Not made whole within half an hour: {why}."] if why else []
        if table is not None and table.took_s > CORES * MOST_S:
            reasons.append(
                f"It takes {duration(table.took_s / CORES)} on {CORES} cores, more than half an hour."
            )
        return reasons
    least_s = table.took_s / table.scale
    return [
        f"Not made whole: {why or 'nobody has had the time for it'}.",
        f"This share took {duration(table.took_s)} of a core, so all of it takes {duration(least_s)} or "
        f"more, and {duration(least_s / CORES)} on {CORES}. Longer queues make each simulated hour dearer.",
    ]


def _shown(words: str) -> str:
    """What a policy was shown and what was set for it: each way of setting it is a piece of code."""
    views, _, ways = words.partition("; set: ")
    return views + (". Set: " + ", ".join(f"`{way}`" for way in ways.split(" or ")) if ways else "")


def _row(row: Row, verdict: Verdict) -> tuple[str, ...]:
    paper = "" if row.paper is None else SIGNS[row.bound] + number(row.paper)
    said = "" if verdict is Verdict.NOT_COMPARED else str(verdict)
    return (row.row, row.metric, paper, number(row.ours), number(row.ratio), said)
