"""`stretto simulate`: one workload under one policy."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from stretto import defaults
from stretto.cli import options
from stretto.cli.printing import job_bar, say, show_json, show_line, show_report, show_table


def simulate(
    context: typer.Context,
    cluster: options.Cluster = "",
    trace: options.Trace = "",
    policy: options.Policy = defaults.POLICY,
    profiles: options.Profiles = "",
    seed: options.Seed = 0,
    settings: options.Set = [],  # noqa: B006  (typer wants a plain default)
    out: Annotated[Path | None, typer.Option(help="Write the summary, jobs and decisions here.")] = None,
    from_log: Annotated[
        str,
        typer.Option(
            help="Decide again, and compare, what a run written with --out decided, or a service: "
            "its state directory, or the URL of its store.",
            metavar="DIR|URL",
        ),
    ] = "",
    decision: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --from-log of a service: make this one decision again, and say what it saw and why.",
            metavar="NUMBER",
            show_default=False,
        ),
    ] = None,
    constraints: options.Constraints = "",
    skip_bad: options.SkipBad = False,
    fairness: options.Fairness = False,
    bounds: options.Bounds = False,
    as_json: options.Json = False,
) -> None:
    """Simulate a trace on a cluster and print the summary."""
    from stretto.errors import InputError
    from stretto.experiments.bounds import with_bounds
    from stretto.experiments.log import LogWriter
    from stretto.experiments.present import run_series
    from stretto.experiments.spec import RunSpec, parse_settings, run_spec
    from stretto.report import run_summary

    if decision is not None and not from_log:
        raise InputError(f"--decision {decision}: expected --from-log with the log of a service beside it")
    if from_log:
        _refuse_beside_a_log(context)
        if decision is not None:
            _one_again(from_log, decision, policy if _is_given(context, "policy") else "", as_json)
            return
        _again(from_log, policy if _is_given(context, "policy") else "", as_json)
        return
    if not cluster or not trace:
        missing = "--trace" if cluster else "--cluster"
        raise InputError(f"missing option {missing}: expected a file or a built-in name")
    spec = RunSpec(
        *(cluster, trace, policy, profiles, seed, parse_settings(settings), skip_bad, fairness),
        constraints=constraints,
    )
    with LogWriter(out, spec) if out is not None else nullcontext() as log:
        with job_bar(f"{policy} · {trace}") as progress:
            record, begin = (log.record, log.begin) if log is not None else (None, None)
            result = run_spec(spec, progress, record, begin)
        if bounds:
            (result,) = with_bounds([result], [spec])
        if log is not None:
            log.finish(result)
    for skipped in result.skipped:
        say(f"skipped {skipped}")
    if as_json:
        show_json(result.summary())
        return
    show_report(run_summary(run_series(result)))
    say(f"settings: {' '.join(f'{name}={value}' for name, value in result.settings.items())}")
    if out is not None:
        say(f"written to {out}")


def _refuse_beside_a_log(context: typer.Context) -> None:
    """A log says all about its run; another word about it would be ignored.

    But for the policy: its code may lie elsewhere than it did, and must not run unless the user says so.
    """
    from stretto.errors import InputError

    for name, value in context.params.items():
        if _is_given(context, name) and name not in ("from_log", "as_json", "policy", "decision"):
            option = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
            raise InputError(f"--from-log takes its run from the log: expected no {option}, got {value}")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _again(source: str, trusted: str, as_json: bool) -> None:
    """Of a run or of a service; status 1 where a decision does not come out as it was.

    trusted: the policy outside the registry whose code may run, as FILE.py:Class; "" = none.
    """
    if (store := _store_of(source)) is not None:
        figures, different, left_out = _of_a_service(source, store, trusted)
    else:
        figures, different, left_out = _of_a_run(Path(source), trusted)
    for line in (*different[:MOST_SHOWN], *left_out):
        say(line)
    if as_json:
        show_json({**figures, "differences": len(different)})
    else:
        print(f"{figures['decisions']} decisions made again, {len(different)} differ")
    if different:
        raise typer.Exit(1)


def _one_again(source: str, seq: int, trusted: str, as_json: bool) -> None:
    """One decision of a service; status 1 where it does not come out as it was."""
    from dataclasses import replace

    from stretto.errors import InputError

    if (address := _store_of(source)) is None:
        raise InputError(f"--decision {seq}: expected --from-log with the log of a service, got {source}")
    try:
        from stretto.service.eventlog import open_store
        from stretto.service.one_decision import decision_again
        from stretto.service.scheduling.scheduler import scheduler_of
    except ModuleNotFoundError as missing:
        raise InputError(f"--from-log {source}: {missing.name} is needed: install stretto[serve]") from None
    with open_store(address, upgrade=False) as store, job_bar(f"again · {source}") as progress:
        again = decision_again(
            store,
            seq,
            lambda setup: scheduler_of(replace(setup, policy=_to_load(setup.policy, trusted))),
            progress=progress,
        )
    shown = again.to_json()
    show_json(shown) if as_json else _show_decision(shown)
    if not shown["same"]:
        raise typer.Exit(1)


def _show_decision(shown: Mapping[str, Any]) -> None:
    """What a decision saw, changed, and left waiting."""
    from stretto.service.state.messages import gpus_of

    def held(what: Mapping[str, Any]) -> str:
        return gpus_of(what["gpus"], what["gpu_type"]) if what["gpus"] else "nothing"

    because = ", ".join(shown["because"]) or "nothing was due"
    show_line(f"decision {shown['seq']} by {shown['policy']}, since {because}")
    types = [
        f"{each['gpu_type']}: {each['free']} of {each['gpus']} GPUs free"
        + ("" if each["price"] is None else f", one more is worth {each['price']:.4g}")
        for each in shown["types"]
    ]
    show_line(f"it saw {shown['jobs']} jobs; {'; '.join(types)}")
    changes = [
        [each["job"], each["name"], each["verb"], held(each["before"]), held(each["after"])]
        for each in shown["changes"]
    ]
    show_table("changes", ("job", "name", "what", "before", "after"), changes, none="nothing changed")
    waits = [[each["job"], each["name"], each["why"]] for each in shown["waits"]]
    show_table("jobs that wait", ("job", "name", "why"), waits, tight="name", none="no job waits")
    if shown["waiting"] > len(waits):
        show_line(f"and {shown['waiting'] - len(waits)} more")
    show_line("it comes out as it was written" if shown["same"] else shown["difference"])


def _to_load(named: str, trusted: str) -> str:
    """Which policy to load where a log names one. Raises InputError for code that was not allowed to run."""
    from stretto.errors import InputError
    from stretto.policies.registry import policy_names

    if named in policy_names():
        return named
    if trusted and _file_and_class(named) == _file_and_class(trusted):
        return trusted
    raise InputError(
        f"the log names policy {named!r}, which is not installed: to run its code, "
        f"say --policy FILE.py:{_file_and_class(named)[1]}"
    )


def _file_and_class(policy: str) -> tuple[str, str]:
    where, _, name = policy.rpartition(":")
    return Path(where).name, name


def _of_a_run(directory: Path, trusted: str) -> tuple[dict[str, Any], list[str], list[str]]:
    from stretto.experiments.log import decide_again

    with job_bar(f"again · {directory}") as progress:
        result, decisions, different = decide_again(
            directory, progress, to_load=lambda named: _to_load(named, trusted)
        )
    return {**result.summary(), "decisions": decisions}, different, []


def _store_of(source: str) -> str | None:
    """Where the log of a service is; None: the source is not one of a service."""
    if "://" in source:
        return source
    path = Path(source)
    if path.is_file():
        return str(path)
    return str(path / STORE) if (path / STORE).is_file() else None


def _of_a_service(source: str, address: str, trusted: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """Figures, decisions that differ, and why others cannot be repeated."""
    from dataclasses import replace

    from stretto.errors import InputError

    try:
        from stretto.service.eventlog import open_store
        from stretto.service.scheduling.replay import decided_again
        from stretto.service.scheduling.scheduler import scheduler_of
    except ModuleNotFoundError as missing:
        raise InputError(f"--from-log {source}: {missing.name} is needed: install stretto[serve]") from None
    # Somebody may be writing to it just now: a schema is left as it is, and one that is not ours is refused.
    with open_store(address, upgrade=False) as store, job_bar(f"again · {source}") as progress:
        replay = decided_again(
            store,
            progress,
            lambda setup: scheduler_of(replace(setup, policy=_to_load(setup.policy, trusted))),
        )
        admitted = store.gaps()
        changed = [gap for gap in store.damage() if not any(other.covers(gap) for other in admitted)]
    state = replay.state
    figures = {
        "policy": state.configured.policy,
        "events": state.seq,
        "jobs": state.submitted,
        "now_s": state.at_s,
        "decisions": replay.decisions,
        "not_repeated": replay.not_repeated.total(),
        "skipped": state.skips,
    }
    left_out = [
        f"event {skipped.seq} ({skipped.kind} of {skipped.subject!r}) is left out: {skipped.why}"
        for skipped in state.skipped[:MOST_SHOWN]
    ]
    left_out += [
        f"{count} decision{'s' if count > 1 else ''} not made again: {why}"
        for why, count in replay.not_repeated.items()
    ]
    different = [difference.words for difference in replay.differences]
    different += [f"{gap.words} of the log: not what was written" for gap in changed]
    return figures, different, left_out


STORE = "stretto.db"  # in the state directory of a service, unless that keeps its log elsewhere
MOST_SHOWN = 10  # chosen: differing decisions to print; after the first, others often follow from it
