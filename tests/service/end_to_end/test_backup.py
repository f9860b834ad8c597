"""A service is backed up while it runs, and another goes on from the file, whatever database either has."""

import errno
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from stretto.client.upload_manifest import UploadManifest, manifest_in
from stretto.demo.own_service import until
from stretto.model import InputError
from stretto.service.backup import restore_backup, write_backup
from stretto.service.eventlog import Unrecorded, open_store
from stretto.service.state.events import ArraySubmitted, Ended, Submitted, body_of
from stretto.service.uploads import UploadStore

from ..eventlog.servers import PostgreSQL
from ..running import PROGRAM, Running

pytestmark = [pytest.mark.processes, pytest.mark.sockets]

OPTIONS = ("--slots", "2", "--gpu-type", "cpu", "--policy", "fifo")


def backed_up_and_restored(tmp_path: Path, source: str, target: str) -> None:
    """A job that ended, one that runs and one that waits are known to the service that is restored."""
    archive, there = tmp_path / "backup.tar", tmp_path / "there"
    before = Running(tmp_path / "here", *OPTIONS, store=source)
    before.folder.mkdir()
    try:
        before.begin()
        with before.client() as client:
            done = client.submit("{name: done, run: 'true'}")["id"]
            client.wait(done)
            runs = client.submit("{name: runs, run: sleep 600, resources: {accelerators: 2}}")["id"]
            until(lambda: client.describe(runs)["state"] == "RUNNING", what="it runs")
            waits = client.submit("{name: waits, run: 'true'}")["id"]
            told = command(
                "backup", archive, "--state", before.state, *(("--store", source) if source else ())
            )
            assert "events, each as it was written" in told
            late = client.submit("{name: late, run: 'true'}")["id"]
    finally:
        before.end()
    told = command("restore", archive, "--state", there / "state", *(("--store", target) if target else ()))
    assert "restored to" in told
    after = Running(there, *OPTIONS, store=target)
    try:
        after.begin()
        with after.client() as client:
            listed = {job["name"]: job["id"] for job in client.jobs(ended=True)}
            assert listed == {"done": done, "runs": runs, "waits": waits}
            assert client.describe(done)["state"] == "COMPLETED"
            # The machine of the restored service runs nothing of it: what ran begins again.
            until(lambda: client.describe(runs)["state"] == "RUNNING", what="it begins again")
            assert client.submit("{name: new, run: 'true'}")["id"] not in (late, done, runs, waits)
        assert after.differences()[1] == 0
    finally:
        after.end()


def command(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, *PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.long  # as of ids that are given once, which is tried each time
def test_a_service_goes_on_from_a_backup_in_another_directory(tmp_path: Path) -> None:
    backed_up_and_restored(tmp_path, "", "")


@pytest.mark.postgres
def test_a_service_moves_to_postgresql_by_a_backup(tmp_path: Path, server: PostgreSQL) -> None:
    backed_up_and_restored(tmp_path, "", server.url)


@pytest.mark.postgres
def test_a_service_moves_from_postgresql_by_a_backup(tmp_path: Path, server: PostgreSQL) -> None:
    backed_up_and_restored(tmp_path, server.url, "")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with an empty log."""
    folder = tmp_path / "state"
    folder.mkdir()
    open_store(folder / "stretto.db").engine.dispose()
    (folder / "key").write_bytes(b"k" * 32)
    return folder


def test_a_backup_is_for_its_owner_alone_and_holds_no_more_than_is_needed(
    state: Path, tmp_path: Path
) -> None:
    (state / "service.log").write_text("words")
    archive = tmp_path / "backup.tar"
    manifest = write_backup(state, "", archive)
    assert (manifest.events, stat.S_IMODE(archive.stat().st_mode)) == (0, 0o600)
    with tarfile.open(archive) as opened:
        assert opened.getnames() == ["stretto.db", "key", "backup.json"]
    restore_backup(archive, tmp_path / "again", "")
    again = tmp_path / "again"
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in again.iterdir()} == {
        "stretto.db": 0o600,
        "key": 0o600,
    }
    assert stat.S_IMODE(again.stat().st_mode) == 0o700
    assert sorted(file.name for file in tmp_path.iterdir()) == ["again", "backup.tar", "state"]


def test_what_cannot_be_backed_up_is_one_line_and_leaves_nothing(state: Path, tmp_path: Path) -> None:
    archive = tmp_path / "backup.tar"
    with pytest.raises(InputError, match="expected the state directory of a service"):
        write_backup(tmp_path / "none", "", archive)
    (state / "key").unlink()
    with pytest.raises(InputError, match="expected the file `key`"):
        write_backup(state, "", archive)
    archive.write_text("there")
    with pytest.raises(InputError, match="is there already"):
        write_backup(state, "", archive)
    assert archive.read_text() == "there"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["backup.tar", "state"]


def test_a_restore_overwrites_nothing_and_takes_nothing_else_than_a_backup(
    state: Path, tmp_path: Path
) -> None:
    archive, target = tmp_path / "backup.tar", tmp_path / "there"
    write_backup(state, "", archive)
    with pytest.raises(InputError, match="expected a directory that is empty"):
        restore_backup(archive, state, "")
    with pytest.raises(InputError, match="has a log already"):
        restore_backup(archive, target, str(state / "stretto.db"))
    content = archive.read_bytes()
    for damaged, said in (
        (content.replace(b"k" * 32, b"x" * 32), "key is not what was written"),
        (content[:2_000], "expected a backup of stretto"),
        (b"words", "expected a backup of stretto"),
        (b"", "expected a backup of stretto"),
        (content.replace(b'"form": 2', b'"form": 9'), "expected one that this version knows"),
    ):
        archive.write_bytes(damaged)
        with pytest.raises(InputError, match=said):
            restore_backup(archive, target, "")
    with pytest.raises(InputError, match="cannot be read"):
        restore_backup(tmp_path / "none", target, "")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["backup.tar", "state"]


def test_an_archive_cannot_write_elsewhere(state: Path, tmp_path: Path) -> None:
    archive = tmp_path / "backup.tar"
    write_backup(state, "", archive)
    with tarfile.open(archive) as opened:
        content = opened.extractfile("backup.json")
        assert content is not None
        manifest = json.loads(content.read())
    manifest["digests"]["../evil"] = "0"
    with tarfile.open(archive, "w") as made:
        for name in ("backup.json", "stretto.db", "key", "../evil"):
            text = json.dumps(manifest).encode() if name == "backup.json" else os.urandom(8)
            (tmp_path / "piece").write_bytes(text)
            made.add(tmp_path / "piece", arcname=name)
    with pytest.raises(InputError):
        restore_backup(archive, tmp_path / "there", "")
    assert not (tmp_path.parent / "evil").exists()


# ── uploads ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_job_that_waits_starts_from_its_upload_where_its_service_is_restored(tmp_path: Path) -> None:
    tree, archive, there = tmp_path / "tree", tmp_path / "backup.tar", tmp_path / "there"
    tree.mkdir()
    (tree / "train.py").write_text("print('came along')")
    before = Running(tmp_path / "here", *OPTIONS)
    before.folder.mkdir()
    try:
        before.begin()
        with before.client() as client:
            job = client.submit("{run: python3 train.py, hold: true}", upload=tree)["id"]
            assert "2 files of uploads" in command("backup", archive, "--state", before.state)
    finally:
        before.end()
    shutil.rmtree(tree)
    shutil.rmtree(tmp_path / "here")
    assert "2 files of uploads" in command("restore", archive, "--state", there / "state")
    after = Running(there, *OPTIONS)
    try:
        after.begin()
        with after.client() as client:
            client.change(job, "release")
            assert client.wait(job)["state"] == "COMPLETED", client.describe(job)["evidence"]
            assert "".join(client.log(job)).strip() == "came along"
    finally:
        after.end()


@pytest.fixture
def uploaded(state: Path) -> UploadManifest:
    """An upload of two files, of which each is a part."""
    contents = [b"first", b"second"]
    entries = [
        {"path": each.decode(), "bytes": len(each), "parts": [hashlib.sha256(each).hexdigest()]}
        for each in contents
    ]
    store, manifest = UploadStore(state / "uploads"), manifest_in({"entries": entries})
    store.offer("ada", manifest)
    store.put("ada", manifest.digest, b"".join(len(each).to_bytes(4, "big") + each for each in contents))
    return manifest


def test_uploads_come_back_for_their_owner_alone_and_may_be_left_out(
    state: Path, tmp_path: Path, uploaded: UploadManifest
) -> None:
    with_them, without = tmp_path / "with.tar", tmp_path / "without.tar"
    assert write_backup(state, "", with_them, state / "uploads").upload_files == 3
    assert write_backup(state, "", without).upload_files == 0
    restore_backup(with_them, tmp_path / "again", "")
    again = UploadStore(tmp_path / "again" / "uploads")
    assert again.complete("ada", uploaded.digest)[1] == uploaded
    with pytest.raises(InputError, match="expected one of yours"):
        again.complete("bob", uploaded.digest)
    files = [each for each in again.root.rglob("*") if each.is_file()]
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    restore_backup(without, tmp_path / "bare", "")
    assert not (tmp_path / "bare" / "uploads").exists()


def test_a_part_that_is_damaged_stays_out_and_the_rest_is_restored(
    state: Path, tmp_path: Path, uploaded: UploadManifest
) -> None:
    archive = tmp_path / "backup.tar"
    damaged = next((state / "uploads").glob("*/parts/*/*"))
    damaged.write_bytes(b"FIRST")
    assert write_backup(state, "", archive, state / "uploads").upload_files == 2
    restore_backup(archive, tmp_path / "again", "")
    with pytest.raises(InputError, match="lacks 1 of its parts"):
        UploadStore(tmp_path / "again" / "uploads").complete("ada", uploaded.digest)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (f"uploads/{'a' * 32}/parts/00/{'0' * 64}", b"other", "is not what was written"),
        ("uploads/../../outside", b"", "expected no"),
        (f"uploads/{'a' * 32}/parts/01/{'0' * 64}", b"", "expected no"),
        (
            f"uploads/{'a' * 32}/parts/e3/{hashlib.sha256(b'').hexdigest()}",
            b"",
            "has 4 files of uploads, and not 3",
        ),
    ],
)
def test_an_archive_with_other_uploads_than_were_backed_up_is_refused(
    state: Path, tmp_path: Path, uploaded: UploadManifest, name: str, content: bytes, says: str
) -> None:
    archive = tmp_path / "backup.tar"
    write_backup(state, "", archive, state / "uploads")
    with tarfile.open(archive, mode="a") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    with pytest.raises(InputError, match=says):
        restore_backup(archive, tmp_path / "again", "")
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {"state", "backup.tar"}


def test_a_backup_says_which_open_jobs_name_uploads_that_it_lacks(
    state: Path, tmp_path: Path, uploaded: UploadManifest, caplog: pytest.LogCaptureFixture
) -> None:
    there = {"upload": {"digest": uploaded.digest, "files": 2, "bytes": 11}}
    elsewhere = {"upload": {"digest": "f" * 64, "files": 1, "bytes": 1}}
    events = [
        Submitted("1", there, "ada"),
        Submitted("2", there, "bob"),  # who has none like it
        Submitted("3", elsewhere, "ada"),
        Submitted("4", {}, "ada"),
        Submitted("5", elsewhere, "ada"),
        Ended("5", "COMPLETED"),
        ArraySubmitted("6", elsewhere, ((1, 8),), "ada"),
    ]
    with open_store(state / "stretto.db") as store:
        rows = [Unrecorded(1.0, type(each).__name__, "", body_of(each)) for each in events]
        store.append(rows, 0)
    write_backup(state, "", tmp_path / "without.tar")
    assert not caplog.messages, "nobody wants them"
    write_backup(state, "", tmp_path / "backup.tar", state / "uploads")
    (said,) = caplog.messages
    assert said.startswith("the backup lacks the uploads of jobs 2, 3, 6_1, 6_2, 6_3 and 5 more: ")
    assert str(state / "uploads") in said


def test_what_cannot_be_read_or_written_is_named(
    state: Path, tmp_path: Path, uploaded: UploadManifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, target = tmp_path / "backup.tar", tmp_path / "there"
    part = next((state / "uploads").glob("*/parts/*/*"))
    read = Path.open

    def failing(file: Path, *arguments: Any, **options: Any) -> Any:
        if file == part:
            raise OSError(errno.EIO, "Input/output error")
        return read(file, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing)
        with pytest.raises(InputError) as refused:
            write_backup(state, "", archive, state / "uploads")
    assert str(refused.value) == f"{part}: cannot be read: Input/output error"

    write_backup(state, "", archive, state / "uploads")
    opened = os.open

    def full(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(part.name):
            return opened("/dev/full", os.O_WRONLY)  # whose every write finds no space left
        return opened(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(InputError) as refused:
            restore_backup(archive, target, "")
    name = part.relative_to(state)
    assert str(refused.value) == f"{target / name}: cannot be written: No space left on device"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["backup.tar", "state"]


def test_a_backup_of_many_files_remembers_none_of_them(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [str(number).encode() for number in range(50)]
    shelf = state / "uploads" / ("a" * 32) / "parts"
    for content in contents:
        digest = hashlib.sha256(content).hexdigest()
        (shelf / digest[:2]).mkdir(parents=True, exist_ok=True)
        (shelf / digest[:2] / digest).write_bytes(content)
    remembered: list[int] = []
    for name in ("addfile", "next"):
        whole = getattr(tarfile.TarFile, name)

        def counted(tar: tarfile.TarFile, *arguments: Any, whole: Any = whole) -> Any:
            done = whole(tar, *arguments)
            remembered.append(len(vars(tar)["members"]))
            return done

        monkeypatch.setattr(tarfile.TarFile, name, counted)
    archive = tmp_path / "backup.tar"
    assert write_backup(state, "", archive, state / "uploads").upload_files == 50
    assert restore_backup(archive, tmp_path / "again", "").upload_files == 50
    assert len(remembered) > 150
    assert max(remembered) < 5
