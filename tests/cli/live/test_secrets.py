"""Secrets on the command line: values come by standard input or a file, and are never shown."""

import io
from pathlib import Path

import pytest

from ..ran import Stretto

pytestmark = pytest.mark.processes

VALUE = "hf_Zq7WmT3kXv9RbN2s"


class Typed(io.TextIOWrapper):
    """What somebody pipes in."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))


def test_a_secret_is_set_listed_used_and_deleted_and_never_shown(
    verbs: Stretto, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", Typed(f"{VALUE}\n".encode()))
    said = verbs("secret", "set", "hub")
    assert (said.status, said.out, said.err) == (0, "secret hub: set\n", "")
    (tmp_path / "key").write_text(f"{VALUE}\n")
    kept = verbs("secret", "set", "ssh", "--from-file", "key", "--json")
    assert (kept.status, kept.json["name"], kept.json["jobs"]) == (0, "ssh", []), kept.err
    (tmp_path / "job.yaml").write_text("run: sleep 600\nsecrets: {HF_TOKEN: hub}\n")
    job = verbs("submit", "job.yaml", "--json").json["id"]
    listed = verbs("secret")
    header, *rows = listed.table
    assert header == ["name", "user", "set", "open jobs"]
    assert [[row[0], row[3]] for row in rows] == [["hub", job], ["ssh", "none"]]
    described = verbs("describe", job)
    for name in ("hub", "ssh"):
        assert verbs("secret", "delete", name).out == f"secret {name}: deleted\n"
    gone = verbs("secret", "delete", "hub")
    assert (gone.status, gone.err) == (2, "stretto: no secret 'hub'\n")
    refused = verbs("submit", "job.yaml")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "secrets: expected one of yours, got 'hub'" in refused.err
    assert verbs("secret", "list", "--json").json == {"secrets": []}
    shown = "".join(each.out + each.err for each in (said, kept, listed, described, gone, refused))
    assert VALUE not in shown


@pytest.mark.parametrize(
    ("words", "content", "says"),
    [
        (("a b",), b"x", "NAME must be the name of a secret: 1 to 64 letters, digits"),
        (("hub",), b"", "value: String should have at least 1 character"),
        (("hub",), b"\xff", "standard input: expected UTF-8 text"),
        (("hub",), b"x" * 70_000, "value: String should have at most 65536 characters"),
        (("hub", "--from-file", "none"), b"", "--from-file none: cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_a_secret_is_one_line(
    verbs: Stretto,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    content: bytes,
    says: str,
) -> None:
    monkeypatch.setattr("sys.stdin", Typed(content))
    refused = verbs("secret", "set", *words)
    assert (refused.status, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert says in refused.err
