"""Services by name in a file of the user's: which one is meant, and what a file may say."""

import os
import stat
from pathlib import Path

import pytest

from stretto.client import Client, contexts
from stretto.client.contexts import Context, Contexts
from stretto.model import InputError

pytestmark = pytest.mark.processes

TOKEN = "stretto-token-of-the-lab"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where contexts are, in an environment that says nothing of services."""
    for name in ("STRETTO_URL", "STRETTO_TOKEN", "STRETTO_TOKEN_FILE", "STRETTO_CA_FILE", "STRETTO_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "below" / "config.yaml"
    monkeypatch.setenv("STRETTO_CONFIG", str(path))
    return path


def lab_and_home() -> Contexts:
    lab = Context(("http://lab:8700",), token=TOKEN)
    return (
        Contexts().with_context("lab", lab).with_context("home", Context(("http://home:1", "http://home:2")))
    )


def test_what_is_written_is_read_again_and_is_for_its_user_alone(file: Path) -> None:
    assert contexts.write(lab_and_home()) == file
    assert contexts.read() == lab_and_home()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_client_takes_url_and_token_of_the_current_context(file: Path) -> None:
    contexts.write(lab_and_home())
    with Client() as client:
        assert client.url == "http://lab:8700"
        assert client.http.headers["authorization"] == f"Bearer {TOKEN}"


def test_a_token_of_a_context_goes_to_no_other_service(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts.write(lab_and_home())
    with Client("http://elsewhere:8700") as client:
        assert "authorization" not in client.http.headers
    monkeypatch.setenv("STRETTO_URL", "http://elsewhere:8700")
    with Client() as client:
        assert client.url == "http://elsewhere:8700"
        assert "authorization" not in client.http.headers


def test_the_environment_names_a_context_and_its_token_counts_before_the_context(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts.write(lab_and_home())
    monkeypatch.setenv("STRETTO_CONTEXT", "home")
    with Client() as client:
        assert client.url == "http://home:1,http://home:2"
    monkeypatch.setenv("STRETTO_CONTEXT", "lab")
    monkeypatch.setenv("STRETTO_TOKEN", "another")
    with Client() as client:
        assert client.http.headers["authorization"] == "Bearer another"
    monkeypatch.setenv("STRETTO_CONTEXT", "labb")
    with pytest.raises(
        InputError, match=r"STRETTO_CONTEXT labb: no context has this name; did you mean 'lab'"
    ):
        Client()


def test_without_a_file_a_client_asks_this_machine(file: Path) -> None:
    assert contexts.read() == Contexts()
    with Client() as client:
        assert client.url == "http://127.0.0.1:8700"


def test_a_token_may_be_in_a_file_of_its_own(file: Path, tmp_path: Path) -> None:
    kept = tmp_path / "token"
    kept.write_text(TOKEN + "\n")
    contexts.write(Contexts().with_context("lab", Context(("http://lab:1",), token_file=str(kept))))
    with Client() as client:
        assert client.http.headers["authorization"] == f"Bearer {TOKEN}"
    kept.unlink()
    with pytest.raises(InputError, match="expected a file with a token"):
        Client()


def test_what_is_deleted_is_not_current_any_more() -> None:
    both = lab_and_home()
    assert both.current == "lab"
    assert both.without("lab").current == ""
    assert both.without("home").current == "lab"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("current: lab", "current: lab: no context has this name"),
        ("contexts: [lab]", "contexts: expected keys and values"),
        ("contexts: {lab: {}}", "context lab: url: expected the address"),
        ("contexts: {lab: {url: [3]}}", "context lab: url: expected the address"),
        ("contexts: {lab: {url: x, tokens: y}}", "context lab: tokens is no key; did you mean 'token'"),
        ("contexts: {lab: {url: x, token: 7}}", "context lab: token: expected a text, got 7"),
        ("contexts: {' lab': {url: x}}", "expected a name for a context, got ' lab'"),
        ("[", "expected YAML"),
        ("7", "the file: expected keys and values"),
        ("contexts: {1: {url: x}}", "contexts: expected keys and values"),
    ],
)
def test_what_is_no_file_of_contexts_is_refused_with_its_name(file: Path, text: str, said: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        contexts.read()
    assert str(file) in str(refused.value)
    assert said in str(refused.value)


def test_the_file_lies_where_programs_keep_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRETTO_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/settings")
    assert contexts.file() == Path("/settings/stretto/config.yaml")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/ada")
    assert contexts.file() == Path("/ada/.config/stretto/config.yaml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_line(file: Path) -> None:
    file.parent.mkdir(mode=0o500)
    with pytest.raises(InputError, match="cannot be written"):
        contexts.write(lab_and_home())
