"""Why a table differs from its paper: one assumption after the other is switched, and figures made again.

A table declares which of its figures are asked after, and which assumptions are switched. Each is switched
alone: everything else is as in the table. What it explains is how far it moves the figures.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from stretto.errors import InputError
from stretto.experiments.reproduction import (
    PLUS_MINUS,
    Bound,
    Experiment,
    Request,
    Row,
    Tally,
    Verdict,
    commit_of_code,
    rows_over_seeds,
    verdicts_of,
)
from stretto.experiments.spec import RunSpec
from stretto.sim.result import Result
from stretto.traces.recipes import MARK, base_of

NOTHING = "nothing: as in the table"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a table of which the cause is sought."""

    row: str
    metric: str
    paper: float | None  # None: not published, and shown for what it explains
    bound: Bound = ""


@dataclass(frozen=True, slots=True)
class Value:
    """What came out, where an assumption is switched."""

    ours: float | None  # None: it does not apply
    half: float = 0.0  # of Student's 95 % interval over made traces; 0: one value alone


@dataclass(frozen=True, slots=True)
class Switched:
    """One row of a series."""

    what: str  # the assumption, as it is in this row
    how: str  # the same as it is set, in words of a command; "": it is no setting
    values: tuple[Value, ...]  # by figure


@dataclass(frozen=True, slots=True)
class Series:
    """Figures with one assumption after the other switched; the first row has none."""

    figures: tuple[Figure, ...]
    switched: tuple[Switched, ...]

    def verdict(self, row: Switched, column: int) -> Verdict:
        """Whether this row's figure would be called reproduced, by the rule of the tables."""
        figure, value = self.figures[column], row.values[column]
        of_table = Row(figure.row, figure.metric, figure.paper, value.ours, figure.bound)
        half = Row(figure.row, f"{figure.metric}{PLUS_MINUS}", None, value.half)
        return verdicts_of([of_table, half])[0]


@dataclass(frozen=True, slots=True)
class Causes:
    """A series that was run, and how."""

    name: str  # of the table
    series: Series
    simulations: int
    took_s: float  # of a core, for one simulation after the other; where there is none, for all of it
    scale: float
    made_on: str
    commit: str = ""

    def as_json(self) -> dict[str, Any]:
        """The object that `reproduce NAME --causes --json` prints."""
        return {
            "name": self.name,
            "figures": [asdict(figure) for figure in self.series.figures],
            "switched": [
                {
                    "what": row.what,
                    "how": row.how or None,
                    "values": [
                        asdict(value) | {"verdict": self.series.verdict(row, column)}
                        for column, value in enumerate(row.values)
                    ],
                }
                for row in self.series.switched
            ],
            "simulations": self.simulations,
            "took_s": self.took_s,
            "scale": self.scale,
            "made_on": self.made_on,
            "commit": self.commit or None,
        }

    @classmethod
    def of_json(cls, entries: Mapping[str, Any]) -> "Causes":
        """Read one; its verdicts are judged anew. Raises KeyError, TypeError, ValueError."""
        return cls(
            name=entries["name"],
            series=Series(
                figures=tuple(Figure(**figure) for figure in entries["figures"]),
                switched=tuple(
                    Switched(
                        row["what"],
                        row["how"] or "",
                        tuple(Value(value["ours"], value["half"]) for value in row["values"]),
                    )
                    for row in entries["switched"]
                ),
            ),
            simulations=int(entries["simulations"]),
            took_s=float(entries["took_s"]),
            scale=float(entries["scale"]),
            made_on=str(entries["made_on"]),
            commit=str(entries.get("commit") or ""),
        )


def make_causes(experiment: Experiment, request: Request) -> Causes:
    """Run the series of a table; InputError where it declares none."""
    if experiment.causes is None:
        raise InputError(
            f"--causes {experiment.name}: expected a table with a series of switched assumptions"
        )
    request = replace(request, tally=Tally())
    began_s = time.process_time()
    series = experiment.causes(request)
    worked_s = time.process_time() - began_s
    return Causes(
        experiment.name,
        series,
        request.tally.simulations,
        request.tally.processor_s or worked_s,
        request.scale,
        datetime.now(UTC).date().isoformat(),
        commit_of_code(),
    )


# ── series of simulations ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Switch:
    """An assumption of simulations that is changed, in words and as it is set."""

    what: str
    settings: Mapping[str, str] = field(default_factory=dict)  # SPACE.KEY -> value
    made: str = ""  # another made trace, with the same parameters
    trace: Mapping[str, str] = field(default_factory=dict)  # parameters of the made trace
    recipe: Mapping[str, str] = field(default_factory=dict)  # parameters of the trace's last recipe
    policy: str = ""  # another one in the place of the table's
    only: str = ""  # the settings are for runs of this policy alone
    having: Mapping[str, str] = field(default_factory=dict)  # and for runs that have these
    cluster: str = ""  # likewise

    @property
    def how(self) -> str:
        """What differs, in words of a command."""
        others = {"policy": self.policy, "cluster": self.cluster, "trace": self.made}
        named = [f"{what}={name}" for what, name in others.items() if name]
        changed = {**self.trace, **self.recipe, **self.settings}
        words = " ".join([*named, *(f"{key}={value}" for key, value in changed.items())])
        where = [self.only] * bool(self.only) + [f"{key}={value}" for key, value in self.having.items()]
        return words + (f" where {' '.join(where)}" if where else "")

    def of(self, spec: RunSpec) -> RunSpec:
        """The run with this assumption changed."""
        base, recipes = base_of(spec.trace)
        if self.made:
            base = self.made + base[base.index(":") :]
        if self.trace:
            base = _with_parameters(base, self.trace)
        if self.recipe:
            recipes = [*recipes[:-1], _with_parameters(recipes[-1], self.recipe)]
        return replace(
            spec,
            trace=MARK.join((base, *recipes)),
            policy=self.policy or spec.policy,
            cluster=self.cluster or spec.cluster,
            settings={**spec.settings, **(self.settings if self._is_for(spec) else {})},
        )

    def _is_for(self, spec: RunSpec) -> bool:
        """Whether its settings are for this run."""
        has = all(spec.settings.get(key) == value for key, value in self.having.items())
        return has and self.only in ("", spec.policy)


Measure = Callable[[Sequence[Result]], Sequence[Value]]


def switched_runs(
    request: Request, specs: Sequence[RunSpec], switches: Sequence[Switch], measure: Measure
) -> list[Switched]:
    """The table's own runs, and those with each assumption switched.

    measure: from the results of all specs, in their order, to the value of each figure.
    """
    all_switches = [Switch(NOTHING), *switches]
    wanted = [switch.of(spec) for switch in all_switches for spec in specs]
    different = list({repr(spec): spec for spec in wanted}.values())
    results = dict(zip(map(repr, different), request.run(different), strict=True))
    rows = []
    for place, switch in enumerate(all_switches):
        of_switch = wanted[place * len(specs) : (place + 1) * len(specs)]
        values = measure([results[repr(spec)] for spec in of_switch])
        rows.append(Switched(switch.what, switch.how, tuple(values)))
    return rows


def value_of(values: Sequence[float]) -> Value:
    """The mean over made traces, and half of its interval."""
    mean, *half = rows_over_seeds("", "", None, values)
    return Value(mean.ours, half[0].ours or 0.0 if half else 0.0)


def _with_parameters(words: str, changed: Mapping[str, str]) -> str:
    """NAME:KEY=VALUE,… with some values changed or added."""
    name, _, rest = words.partition(":")
    pairs = {**dict(re.findall(r"([^=,]+)=([^,]*)", rest)), **changed}
    return f"{name}:{','.join(f'{key}={value}' for key, value in pairs.items())}"
