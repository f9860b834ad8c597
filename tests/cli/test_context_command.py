"""Services by name: made, chosen, listed and deleted, and what a shell completes."""

import stat
from pathlib import Path

import pytest

from stretto.cli import completion

from .ran import Stretto

pytestmark = pytest.mark.processes

TOKEN = "stretto-token-of-the-lab"
NOBODY = "http://127.0.0.1:9"  # the port of `discard`: nobody listens


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STRETTO_URL", "STRETTO_TOKEN", "STRETTO_TOKEN_FILE", "STRETTO_CA_FILE", "STRETTO_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config.yaml"
    monkeypatch.setenv("STRETTO_CONFIG", str(path))
    (tmp_path / "token").write_text(TOKEN)
    return path


def test_the_first_context_is_the_current_one_until_another_is_used(file: Path, stretto: Stretto) -> None:
    assert stretto("context").table == [["", "name", "url", "token"]]
    made = stretto("context", "set", "lab", "--url", NOBODY, "--token-file", file.parent / "token")
    assert (made.status, made.out) == (0, f"lab: {NOBODY}\n")
    other = stretto("context", "set", "home", "--url", "http://a:1, http://b:2")
    assert "the current context stays lab" in other.err
    assert stretto("context", "list").table == [
        ["", "name", "url", "token"],
        ["", "home", "http://a:1, http://b:2", "-"],
        ["*", "lab", NOBODY, str(file.parent / "token")],
    ]
    assert stretto("context", "use", "home").out == "home: http://a:1, http://b:2\n"
    shown = stretto("context", "--json").json
    assert (shown["current"], shown["contexts"]["lab"]["has_token"]) == ("home", True)
    assert stretto("context", "delete", "home").status == 0
    assert stretto("context", "--json").json["current"] is None


def test_commands_ask_the_current_context_or_the_one_that_is_named(file: Path, stretto: Stretto) -> None:
    stretto("context", "set", "lab", "--url", NOBODY)
    stretto("context", "set", "other", "--url", "http://127.0.0.1:1")
    assert f"no service answers at {NOBODY}" in stretto("list").err
    assert "no service answers at http://127.0.0.1:1" in stretto("list", "--context", "other").err
    wrong = stretto("nodes", "list", "--context", "othr")
    assert (wrong.status, wrong.err) == (
        2,
        "stretto: --context othr: no context has this name; did you mean 'other'?\n",
    )
    both = stretto("list", "--context", "lab", "--url", NOBODY)
    assert (both.status, both.err) == (2, "stretto: --context lab: expected it without --url\n")


def test_a_context_that_is_named_counts_before_the_environment(
    file: Path, stretto: Stretto, monkeypatch: pytest.MonkeyPatch
) -> None:
    stretto("context", "set", "lab", "--url", NOBODY)
    monkeypatch.setenv("STRETTO_URL", "http://127.0.0.1:1")
    assert "no service answers at http://127.0.0.1:1" in stretto("list").err
    assert f"no service answers at {NOBODY}" in stretto("list", "--context", "lab").err


def test_a_token_comes_in_by_standard_input_and_is_shown_nowhere(
    file: Path, stretto: Stretto, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (file.parent / "token").open() as typed:
        monkeypatch.setattr("sys.stdin", typed)
        made = stretto("context", "set", "lab", "--url", NOBODY, "--token-file", "-")
    assert made.status == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert TOKEN in file.read_text()
    listed = stretto("context"), stretto("context", "--json")
    assert TOKEN not in "".join(each.out + each.err for each in (made, *listed))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set", "lab"], "context lab: expected --url, the address of its service"),
        (["set", "lab", "--url", "lab:8700"], "--url lab:8700: expected the address of a service"),
        (["set", " lab", "--url", NOBODY], "expected a name for a context, got ' lab'"),
        (
            ["set", "lab", "--url", NOBODY, "--token-file", "none"],
            "--token-file none: expected a file with a",
        ),
        (["set", "lab", "--url", NOBODY, "--ca-file", "none"], "--ca-file none: cannot be read"),
        (["use", "lab"], "context use lab: no context has this name"),
        (["delete", "lab"], "context delete lab: no context has this name"),
    ],
)
def test_what_makes_no_context_is_one_line_and_writes_nothing(
    file: Path, stretto: Stretto, words: list[str], said: str
) -> None:
    ran = stretto("context", *words)
    assert ran.status == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert not file.exists()


def test_a_shell_completes_names_of_contexts_and_is_told_nothing_of_errors(
    file: Path, stretto: Stretto
) -> None:
    stretto("context", "set", "lab", "--url", NOBODY)
    stretto("context", "set", "laptop", "--url", NOBODY)
    stretto("context", "set", "home", "--url", NOBODY)
    assert completion.contexts("la") == ["lab", "laptop"]
    assert [*completion.jobs("1"), *completion.nodes(""), *completion.queues("")] == []
    file.write_text("[")
    assert [*completion.contexts("la"), *completion.jobs("")] == []
