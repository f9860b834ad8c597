"""How Lyra's evaluation schedules its jobs: scenarios, schemes, and what all of its tables share."""

from collections.abc import Mapping, Sequence
from math import isfinite

from stretto.experiments.draws import draws_words, merged, missing_words
from stretto.experiments.lyra.runs import ROUND_S, SERIES, Scheme, figures, least_scale, run_schemes
from stretto.experiments.reproduction import Input, Made, Request, Row

Figures = Mapping[str, Mapping[str, float]]  # what is reported of each scheme, by its name

BASELINE = "1 baseline"
GENERATIONS = 20  # of Pollux every five minutes; chosen, for time: the paper runs 250
EIGHTH = "12 scaling: pollux"
LARGEST_GPUS = 256  # of a job of the made trace

BASIC, ADVANCED, HETEROGENEOUS = "", "heterogeneous=0.1", "fungible=0,heterogeneous=0.1"
IDEAL = "fungible=1,elastic=1,heterogeneous=1"
TUNED = "tuned=true"  # section 7.4: elastic jobs choose their batch sizes
RIGID = "elastic=0"  # section 7.3: without elastic scaling
FULL_SPEED = {"sim.mixing": "1"}  # in Ideal
LENT_FIRST = {"policy.fungible_first": "lent"}  # see docs/decisions/0006-lyra.md
LOSS = {"sim.scaling_loss": "0.2"}  # each further worker brings a fifth less (section 7.2)
ON_LOAN_USAGE = 0.92  # of every day, at least; section 7.3 and figure 9
PASSING = {"policy.skip": "true", "policy.round_s": ROUND_S}  # chosen for all that go first in, first out
FIFO = PASSING | {"place.rule": "relaxed"}  # what fits by number has a place, as under all other schemes
BASE = {BASELINE: (Scheme("fifo", BASIC, settings=FIFO),)}


def loaning(rule: str) -> Scheme:
    """Lyra's schedule without elastic scaling, servers reclaimed by a rule."""
    return Scheme("lyra", RIGID, rule, {"policy.scaling": "false"})


SCALING = {
    "gandiva": Scheme("gandiva", BASIC, "", PASSING),
    "afs": Scheme("afs", BASIC, "", {"policy.variant": "lyra", "policy.round_s": ROUND_S}),
    "lyra": Scheme("lyra", BASIC),
}
POLLUX = Scheme(
    "pollux",
    TUNED,
    "",
    {
        "policy.generations": str(GENERATIONS),
        "policy.round_s": "300",
        "policy.most_gpus": str(LARGEST_GPUS),  # jobs that ask for more would never start
    },
    share=0.125,
)
FIFO_EIGHTH = Scheme("fifo", BASIC, settings=FIFO, share=0.125)
EIGHTH_BASE = "1 baseline, an eighth"
OPPORTUNITY = (  # jobs that may run on lent servers queue there alone, the others as before
    Scheme("fifo", f"{RIGID},keep=others", settings=FIFO),
    Scheme("fifo", f"{RIGID},keep=fungible,checkpoints=1", "least-busy", FIFO, stand_ins=False),
)
TABLE_5_SCHEMES: Mapping[str, Sequence[Scheme]] = {
    **BASE,
    "2 lyra, basic": (Scheme("lyra", BASIC, "lyra"),),
    "3 lyra, advanced": (Scheme("lyra", ADVANCED, "lyra"),),
    "4 lyra, heterogeneous": (Scheme("lyra", HETEROGENEOUS, "lyra"),),
    "5 lyra, ideal": (Scheme("lyra", IDEAL, "lyra", FULL_SPEED),),
    "6 loaning: opportunity": OPPORTUNITY,
    "7 loaning: random": (loaning("random"),),
    "8 loaning: scf": (loaning("smallest-count"),),
    "9 loaning: lyra": (loaning("lyra"),),
    "10 scaling: gandiva": (SCALING["gandiva"],),
    "11 scaling: afs": (SCALING["afs"],),
    "13 scaling: lyra": (SCALING["lyra"],),
    "14 scaling: lyra+tuned": (Scheme("lyra-tuned", TUNED),),
}


def run(
    request: Request, schemes: Mapping[str, Sequence[Scheme]], seeds: Sequence[int] = ()
) -> list[Figures]:
    """For each seed of the made trace, the figures of each scheme, by name."""
    return [
        {name: figures(request, parts) for name, parts in results.items()}
        for results in run_schemes(request, schemes, seeds)
    ]


def table_of(request: Request, drawn: Sequence[Sequence[Row]], remarks: Sequence[str] = ()) -> Made:
    """A table of the rows that each draw of the trace gave, in the order of the seeds."""
    remarks = [draws_words(len(drawn)), *missing_words(drawn), *remarks, *notes(request)]
    return inputs(request, len(drawn)), merged(drawn), remarks


def ratio(over: float | None, under: float | None) -> float | None:
    """The first over the second, None where either is missing or nought."""
    return known(over / under) if over is not None and under else None


def known(figure: float) -> float | None:
    """A figure, None where it is not a number."""
    return figure if isfinite(figure) else None


def inputs(request: Request, draws: int = 1) -> list[Input]:
    """What the simulations read; draws: how many traces were drawn."""
    real = request.data is not None
    demand = (
        Input(
            f"inference demand: {SERIES}",
            True,
            "public requests, bent to the range of Lyra's figure 1; the same series beside every trace",
        )
        if real
        else Input("inference demand", False, "made with the seed of the trace, in the range of figure 1")
    )
    trace = Input(
        f"{draws} traces of 50,390 jobs of 15 days" if draws > 1 else "50,390 jobs of 15 days",
        False,
        "made; calibrated to row 1, so that row 1 confirms nothing",
    )
    return [trace, demand]


def notes(request: Request) -> list[str]:
    """The scale of what is run, where it is not the whole."""
    if request.scale == 1:
        return []
    scale = least_scale(request.scale)
    return [f"a cluster of the same proportions and a trace, both at a scale of {scale:.3g}"]
