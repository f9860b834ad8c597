"""Which jobs a verb is for: ids, ranges of ids, names, states, or all of one's own."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.printing import say, show_json, show_line
from stretto.cli.service import one_line, service
from stretto.model import InputError

if TYPE_CHECKING:
    from stretto.client import Client

RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
STATES = ("PENDING", "STARTING", "RUNNING", "RESIZING", "PREEMPTING", "SUSPENDED")

Jobs = Annotated[
    list[str] | None,
    typer.Argument(
        help="Ids like 4, ranges like 5-9, or names (your newest job of that name).", metavar="JOB..."
    ),
]
State = Annotated[list[str], typer.Option("--state", help="Jobs in this state; may be given several times.")]
Every = Annotated[bool, typer.Option("--all", help="All jobs that have not ended; asks before.")]
User = Annotated[
    str, typer.Option("--user", help="The user whose jobs ranges, --state and --all mean; for operators.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True)
class Selection:
    """What somebody said of the jobs that are meant."""

    words: Sequence[str]
    states: Sequence[str] = ()
    everything: bool = False
    user: str = ""
    is_sure: bool = False

    def __post_init__(self) -> None:
        """Raise InputError for what names no jobs, or names them twice over."""
        for state in self.states:
            if state.upper() not in STATES:
                raise InputError(f"--state {state}: expected one of {', '.join(STATES)}")
        if self.words and (self.everything or self.states):
            option = "--all" if self.everything else f"--state {self.states[0]}"
            raise InputError(f"{option}: expected no jobs beside it, got {self.words[0]}")
        if not (self.words or self.everything or self.states):
            raise InputError("expected ids, ranges or names of jobs, --state, or --all")

    @property
    def is_one(self) -> bool:
        """Whether one job or array is named."""
        return len(self.words) == 1 and not RANGE.fullmatch(self.words[0])

    def names(self, client: "Client") -> list[str]:
        """Ids and names, in the order in which they were said, each once. Raises InputError."""
        if self.words and not any(map(RANGE.fullmatch, self.words)):
            return list(dict.fromkeys(self.words))
        going = list(client.jobs(user=self.user))
        if not self.words:
            states = {state.upper() for state in self.states}
            return [job["id"] for job in going if not states or job["state"] in states]
        ids = list(dict.fromkeys(job["array"] or job["id"] for job in going))
        found: dict[str, None] = {}
        for word in self.words:
            found |= dict.fromkeys(_within(word, ids))
        return list(found)


def _within(word: str, ids: Sequence[str]) -> list[str]:
    """The ids of jobs that go on which a range covers; a word that is no range stands for itself."""
    bounds = RANGE.fullmatch(word)
    if bounds is None:
        return [word]
    first, last = int(bounds[1]), int(bounds[2])
    if first > last:
        raise InputError(f"{word}: expected a range from the smaller id to the larger one")
    covered = [one for one in ids if one.isdecimal() and first <= int(one) <= last]
    if not covered:
        raise InputError(f"{word}: expected ids of jobs that go on, got none")
    return covered


def change_all(selection: Selection, verb: str, url: str, token: str, as_json: bool, **values: Any) -> None:
    """Ask for a change of every job that is meant, and show each; status 2 where one was refused."""
    with service(url, token) as client:
        names = selection.names(client)
        if selection.is_one:
            _show(client.change(names[0], verb, **values), as_json)
            return
        if not names:
            raise InputError("these jobs have all ended, or there are none: nothing to do")
        if not selection.words and not selection.is_sure:
            _ask(verb, len(names))
        changed, refused = _each(names, lambda name: client.change(name, verb, **values), as_json)
    if as_json:
        show_json({"changed": changed, "refused": refused})
    if refused:
        raise typer.Exit(2)


def _each(
    names: Sequence[str], change: Callable[[str], dict[str, Any]], as_json: bool
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """One after the other; what is refused for one does not keep the others."""
    changed: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    for name in names:
        try:
            changed.append(change(name))
        except InputError as wrong:
            refused.append({"job": name, "detail": str(wrong)})
            say(f"stretto: {wrong}")
            continue
        if not as_json:
            _show(changed[-1], as_json)
    return changed, refused


def _ask(verb: str, jobs: int) -> None:
    """Raise InputError unless somebody at the terminal agrees."""
    if not sys.stdin.isatty():
        raise InputError(f"{verb} of {jobs} jobs: expected --yes, since no terminal is there to ask")
    if not typer.confirm(f"{verb} {jobs} job{'s' * (jobs != 1)}?", err=True):
        raise InputError(f"{verb}: nothing was done")


def _show(job: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(job)
    elif len(job["ids"]) > 1:
        show_line(f"array {job['array']}: {len(job['ids'])} jobs")
    else:
        show_line(one_line(dict(job)))
