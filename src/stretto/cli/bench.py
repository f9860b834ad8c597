"""`stretto bench`: how fast, and how near to the best, are solver and decisions here?"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto import defaults
from stretto.cli import options
from stretto.cli.printing import say, show_json, show_table

if TYPE_CHECKING:
    from stretto.experiments.steady.policy_times import PolicyTimes

STEADY_SPACES = ("policy", "estimate", "place")  # whose settings there are in a steady state

app = typer.Typer(help="Measure the solver, or whole decisions.", no_args_is_help=True)


@app.command()
def solver(
    jobs: Annotated[int, typer.Option(min=1, help="Rows of the program.")],
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of all types together.")],
    types: Annotated[int, typer.Option(min=1, help="GPU types.")] = 3,
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Solve one program of a fixed seeded family, fast and exactly, side by side."""
    from stretto.experiments.bench import bench_solver

    figures = bench_solver(jobs, gpus, types, seed)
    if as_json:
        show_json(figures)
        return
    rows = [[name, _word(value)] for name, value in figures.items()]
    show_table(f"{jobs} jobs, {gpus} GPUs of {types} types", ["figure", "value"], rows)


@app.command()
def decide(
    cluster: options.Cluster = "",
    trace: options.Trace = "",
    policy: options.Policy = defaults.POLICY,
    profiles: options.Profiles = "",
    seed: options.Seed = 0,
    settings: options.Set = [],  # noqa: B006  (typer wants a plain default)
    most: Annotated[int, typer.Option(min=1, help="Decisions to measure, from the first.")] = 500,
    jobs: Annotated[int, typer.Option(min=0, help="Instead of a trace: a steady state of so many jobs.")] = 0,
    gpus: Annotated[int, typer.Option(min=0, help="Instead of a cluster: about so many GPUs.")] = 0,
    types: Annotated[int, typer.Option(min=1, help="GPU types of a steady state.")] = 4,
    churn: Annotated[
        str, typer.Option(help="Between its decisions: usual, or one arrival or end in turn.")
    ] = "usual",
    share: Annotated[str, typer.Option(help="Whose speeds its jobs know: job or model.")] = "job",
    rounds: Annotated[int, typer.Option(min=6, help="Its decisions; the first 5 only bring it about.")] = 25,
    policies: Annotated[
        str, typer.Option(help="Instead of one policy: several, separated by commas, or all.")
    ] = "",
    limit: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a decision of several policies may take.")
    ] = 60.0,
    as_json: options.Json = False,
) -> None:
    """Measure the steps of decisions, in milliseconds: of a simulation, or of a steady state.

    A steady state is made after published statistics. Every job has shown speeds, and jobs come and go.
    """
    if jobs or gpus or policies:
        state = {"jobs": jobs, "gpus": gpus, "types": types, "churn": churn, "share": share, "rounds": rounds}
        state["seed"] = seed
        _refuse_half_a_state(state, bool(cluster or trace or profiles))
        if policies:
            _decide_by_policy(state, policies, policy, limit, settings, as_json)
        else:
            _decide_steadily(state, policy, settings, as_json)
        return
    from stretto.errors import InputError
    from stretto.experiments.bench import decision_times
    from stretto.experiments.spec import RunSpec, parse_settings

    if not (cluster and trace):
        raise InputError(
            "expected --cluster and --trace, or --jobs and --gpus,"
            f" got --cluster {cluster!r} and --trace {trace!r}"
        )
    spec = RunSpec(cluster, trace, policy, profiles, seed, parse_settings(settings))
    steps, decisions = decision_times(spec, most)
    if as_json:
        show_json({"policy": policy, "trace": trace, "cluster": cluster, "decisions": decisions, **steps})
        return
    _show_steps(f"{decisions} decisions of {policy} on {cluster}", steps)


def _refuse_half_a_state(state: Mapping[str, Any], is_of_trace: bool) -> None:
    from stretto.errors import InputError

    if is_of_trace or not (state["jobs"] and state["gpus"]):
        raise InputError(
            f"expected --cluster and --trace, or --jobs and --gpus, got --jobs {state['jobs']} and"
            f" --gpus {state['gpus']}" + " beside a trace" * is_of_trace
        )


def _decide_steadily(state: Mapping[str, Any], policy: str, words: list[str], as_json: bool) -> None:
    from stretto.experiments.spec import parse_settings
    from stretto.experiments.steady.measure import PLAIN, figures_of, steady_times
    from stretto.experiments.steady.world import Steady

    figures = figures_of(steady_times(Steady.of(state), policy, parse_settings(words, STEADY_SPACES)))
    if as_json:
        show_json({"policy": policy, **state, **figures})
        return
    _show_steps(
        f"{figures['decisions']} decisions of {policy} about {state['jobs']} jobs on {state['gpus']} GPUs",
        {name: times for name, times in figures.items() if isinstance(times, dict)},
    )
    show_table("", ["figure", "value"], [[name, _word(figures[name])] for name in PLAIN])


def _decide_by_policy(
    state: Mapping[str, Any], policies: str, policy: str, limit_s: float, words: list[str], as_json: bool
) -> None:
    """One policy after the other; a row goes to stderr as soon as it is there."""
    from stretto.errors import InputError
    from stretto.experiments.steady.policy_times import times_of_policies
    from stretto.experiments.steady.world import Steady
    from stretto.policies.registry import policy_class, policy_names

    if words or policy != defaults.POLICY:
        given = f"--set {words[0]}" if words else f"--policy {policy}"
        raise InputError(f"expected --policies with neither --policy nor --set, got {given}")
    names = [name.strip() for name in policies.split(",") if name.strip()]
    names = list(policy_names()) if names == ["all"] else names
    for name in names:
        policy_class(name)  # refuses a name that there is not, before anything is measured
    steady = Steady.of(state)

    def tell(row: "PolicyTimes") -> None:
        say(f"{row.policy}: {_remark(row, limit_s) or _figure(row.p50_ms) + ' ms'}")

    rows = times_of_policies(steady, names, limit_s, tell)
    if as_json:
        show_json({**state, "limit_s": limit_s, "policies": [asdict(row) for row in rows]})
        return
    header = ["policy", "decisions", "first_ms", "p50_ms", "max_ms", "peak_mb", "remark"]
    show_table(
        f"Decisions about {state['jobs']} jobs on {state['gpus']} GPUs",
        header,
        [
            [row.policy, *(_figure(getattr(row, name)) for name in header[1:-1]), _remark(row, limit_s)]
            for row in rows
        ],
    )


def _remark(row: "PolicyTimes", limit_s: float) -> str:
    """What a policy falls short of, if of anything."""
    if row.exceeds:
        most = f"{row.most_jobs} jobs at most" if row.most_jobs else "also with fewer jobs"
        return f"more than {limit_s:g} s; {most}"
    return row.error


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _show_steps(title: str, steps: Mapping[str, Mapping[str, float]]) -> None:
    header = ["step", "p50_ms", "p95_ms", "max_ms"]
    rows = [[step, *(f"{times[name]:.3f}" for name in header[1:])] for step, times in steps.items()]
    show_table(title, header, rows)


def _word(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)
