"""Secrets lie sealed in the store, and open for the workers of their owner's jobs only."""

import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.backends.protocol import NotNow, StartRefused, WorkerStart
from stretto.jobfile.parts import LONGEST_SECRET_BYTES
from stretto.model import InputError
from stretto.service.eventlog import Store, open_store
from stretto.service.sealed_secrets import MOST_OF_USER, SECRET_KEY, SealedSecrets, SecretKey

pytestmark = pytest.mark.sqlite

VALUE = "hf_Zq7WmT3kXv9RbN2s"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "log.db") as opened:
        yield opened


@pytest.fixture
def secrets(store: Store, tmp_path: Path) -> SealedSecrets:
    return SealedSecrets(store.secrets, SecretKey(tmp_path / SECRET_KEY))


def test_a_value_opens_for_jobs_of_its_owner_under_the_variable_that_they_name(
    secrets: SealedSecrets,
) -> None:
    secrets.put("ada", "hub", VALUE)
    assert secrets.opened("ada", {"HF_TOKEN": "hub", "TOKEN": "hub"}) == {"HF_TOKEN": VALUE, "TOKEN": VALUE}
    with pytest.raises(InputError, match="expected one of yours, got 'hub'"):
        secrets.check("bob", {"HF_TOKEN": "hub"})
    with pytest.raises(StartRefused, match="secret hub has been deleted"):
        secrets.opened("bob", {"HF_TOKEN": "hub"})


def test_no_file_has_a_value_and_the_key_is_for_its_owner_only(
    secrets: SealedSecrets, tmp_path: Path
) -> None:
    secrets.put("ada", "hub", VALUE)
    assert stat.S_IMODE((tmp_path / SECRET_KEY).stat().st_mode) == 0o600
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) >= 2
    assert [file.name for file in files if VALUE.encode() in file.read_bytes()] == []


def test_a_row_that_is_moved_to_another_owner_or_name_does_not_open(secrets: SealedSecrets) -> None:
    row = secrets.put("ada", "hub", VALUE)
    for moved in (replace(row, owner="bob"), replace(row, owner="bob", name="mine")):
        secrets.table.put(moved)
        with pytest.raises(NotNow):
            secrets.opened("bob", {"TOKEN": moved.name})


def test_a_service_without_the_right_key_says_so_in_one_line_and_starts_no_worker(
    secrets: SealedSecrets, tmp_path: Path
) -> None:
    secrets.put("ada", "hub", VALUE)
    assert secrets.unreadable() == ""
    key = tmp_path / SECRET_KEY
    kept = key.read_bytes()
    key.write_bytes(b"another key of thirty-two bytes.")
    line = secrets.unreadable()
    assert line.startswith("1 of 1 secrets cannot be opened: ")
    assert "not the key that secret hub was sealed with" in line
    with pytest.raises(NotNow, match="not the key that secret hub was sealed with"):
        secrets.opened("ada", {"TOKEN": "hub"})
    key.unlink()
    assert "the key of secrets cannot be read: No such file" in secrets.unreadable()
    with pytest.raises(InputError, match="put its copy there"):  # a new key would lose the others for ever
        secrets.put("ada", "more", VALUE)
    key.write_bytes(kept)
    assert secrets.opened("ada", {"TOKEN": "hub"}) == {"TOKEN": VALUE}


def test_a_key_file_that_is_named_is_never_made_and_has_to_be_one(tmp_path: Path) -> None:
    named = SecretKey(tmp_path / "mine", is_named=True)
    named.make()
    with pytest.raises(InputError, match="mine: the key of secrets cannot be read"):
        named.check()
    named.path.write_bytes(b"short")
    with pytest.raises(InputError, match="expected at least 32 bytes, got 5"):
        named.check()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "expected a text, got nothing"),
        ("a\0b", "without NUL"),
        ("a\ud800", "expected UTF-8"),
        ("ä" * LONGEST_SECRET_BYTES, f"expected at most {LONGEST_SECRET_BYTES} bytes"),
    ],
)
def test_what_cannot_be_kept_is_one_line_that_does_not_repeat_it(
    secrets: SealedSecrets, value: str, says: str
) -> None:
    with pytest.raises(InputError, match=says) as refused:
        secrets.put("ada", "hub", value)
    assert len(str(refused.value)) < 200
    assert secrets.table.count() == 0


def test_setting_again_replaces_and_each_user_may_have_so_many(secrets: SealedSecrets) -> None:
    for index in range(MOST_OF_USER):
        secrets.put("ada", f"s{index}", VALUE)
    secrets.put("ada", "s0", "another")
    secrets.put("bob", "s0", VALUE)
    assert secrets.opened("ada", {"X": "s0"}) == {"X": "another"}
    with pytest.raises(InputError, match=f"at most {MOST_OF_USER} of one user"):
        secrets.put("ada", "one-more", VALUE)


def test_what_a_worker_is_asked_for_names_secrets_and_does_not_show_them() -> None:
    worker = WorkerStart("1.1.0", "1", "n", (), "true", {}, secrets={"TOKEN": VALUE})
    assert worker.request()["secrets"] == ["TOKEN"]
    assert VALUE not in f"{worker}{worker.request()}"
    assert worker.request_with_secrets()["secrets"] == {"TOKEN": VALUE}
