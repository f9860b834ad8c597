"""Options that dataclasses declare, and how those of `stretto serve` reach the service."""

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from stretto.cli.app import status_of
from stretto.cli.option_classes import with_option_classes
from stretto.service.config import Config
from stretto.service.http.rate_limits import Limits
from stretto.service.service import OpenJobs


@dataclass(frozen=True)
class Baking:
    """How a cake is baked."""

    heat: Annotated[int, typer.Option(min=50, help="Degrees.")] = 180
    fillings: Annotated[list[str], typer.Option("--filling", help="What is in it.")] = field(
        default_factory=list
    )


def baker() -> tuple[typer.Typer, list[tuple[str, Baking, bool]]]:
    """A command line with the group between two options of the command, and what it was called with."""
    app, calls = typer.Typer(), []

    @app.command()
    @with_option_classes
    def bake(*, name: str = "plain", baking: Baking, slowly: bool = False) -> None:
        calls.append((name, baking, slowly))

    return app, calls


def test_a_group_is_its_fields_as_options_in_their_order() -> None:
    app, _ = baker()
    (command,) = app.registered_commands
    assert command.callback is not None
    assert list(inspect.signature(command.callback).parameters) == ["name", "heat", "fillings", "slowly"]


def test_a_command_gets_the_group_as_one_object_with_defaults_of_its_own() -> None:
    app, calls = baker()
    assert CliRunner().invoke(app, ["--heat", "200", "--filling", "plum", "--filling", "pear"]).exit_code == 0
    assert CliRunner().invoke(app, ["--name", "second", "--slowly"]).exit_code == 0
    assert calls == [
        ("plain", Baking(heat=200, fillings=["plum", "pear"]), False),
        ("second", Baking(heat=180, fillings=[]), True),
    ]


def test_the_range_of_a_field_is_that_of_its_option() -> None:
    app, calls = baker()
    assert CliRunner().invoke(app, ["--heat", "49"]).exit_code == 2
    assert calls == []


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--state", "there"], "state", Path("there").absolute()),
        (["--listen", "[::1]:80"], "host", "::1"),
        (["--listen", "[::1]:80"], "port", 80),
        (["--url", "http://here"], "url", "http://here"),
        (["--shared", "/there"], "shared", Path("/there")),
        (["--policy", "fifo"], "policy", "fifo"),
        (["--set", "policy.round_s=5", "--set", "backend.slots=2"], "settings", {"policy.round_s": "5"}),
        (["--seed", "3"], "seed", 3),
        (["--store", "sqlite:///x"], "store", "sqlite:///x"),
        (["--rounds-only"], "eager", False),
        (["--dead-after", "90s"], "dead_after_s", 90.0),
        (["--dead-after", "0"], "dead_after_s", 0.0),
        (["--fair-share-half-life", "12h"], "fair_share_half_life_s", 43_200.0),
        (["--fair-share-half-life", "off"], "fair_share_half_life_s", 0.0),
        (["--begin-anew"], "begin_anew", True),
        (["--insecure-loopback"], "open_on_loopback", True),
        (["--submit-rate", "2", "--submit-burst", "3"], "limits", Limits(submits_per_s=2.0, submit_burst=3)),
        (["--max-connections", "7"], "limits", Limits(connections=7)),
        (["--max-connections-per-address", "6"], "limits", Limits(connections_per_address=6)),
        (["--max-open-jobs", "9"], "most_open", OpenJobs(total=9)),
        (["--max-open-jobs-per-user", "8"], "most_open", OpenJobs(each=8)),
        (["--notify-allow", "10.0.0.0/8"], "notify_allow", ("10.0.0.0/8",)),
        (["--log-file", "-"], "log_file", "-"),
        (["--log-level", "debug"], "log_level", "debug"),
    ],
)
def test_an_option_of_serve_reaches_the_service(
    started: list[Any], words: list[str], name: str, value: object
) -> None:
    assert status_of(["serve", *words]) == 0
    assert getattr(started[0], name) == value
    assert getattr(Config(Path("stretto-state").absolute()), name) != value


@pytest.mark.parametrize(
    ("option", "text", "name", "seconds"),
    [
        ("--keep-ended", "2h", "ended_s", 7_200.0),
        ("--keep-logs", "1d", "logs_s", 86_400.0),
        ("--keep-checkpoints", "2d", "checkpoints_s", 172_800.0),
    ],
)
def test_how_long_things_are_kept_reaches_the_service(
    started: list[Any], option: str, text: str, name: str, seconds: float
) -> None:
    assert status_of(["serve", option, text]) == 0
    assert getattr(started[0].keep, name) == seconds
