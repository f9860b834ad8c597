"""Uploads are kept by content, whole or not at all, for their owner, as long as they are needed."""

import asyncio
import os
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from stretto.backends.protocol import StartRefused
from stretto.client.upload_manifest import UploadEntry, UploadManifest
from stretto.client.upload_tree import LENGTH_BYTES
from stretto.model import InputError
from stretto.service.retention.upload_gc import UploadGC
from stretto.service.state.state import State
from stretto.service.uploads import UploadLimits, UploadStore, folder_name

LONG_AGO_S = 1_000_000_000.0


def digest_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def manifest_of(**files: bytes) -> UploadManifest:
    """Files of at most a part each."""
    return UploadManifest(
        tuple(UploadEntry(name, len(content), (digest_of(content),)) for name, content in files.items())
    )


def pack_of(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(LENGTH_BYTES, "big") + part for part in parts)


@pytest.fixture
def store(tmp_path: Path) -> UploadStore:
    return UploadStore(tmp_path / "uploads")


def kept(store: UploadStore, owner: str, **files: bytes) -> UploadManifest:
    manifest = manifest_of(**files)
    store.offer(owner, manifest)
    store.put(owner, manifest.digest, pack_of(*files.values()))
    return manifest


def files_in(store: UploadStore) -> list[str]:
    return sorted(file.name for file in store.root.rglob("*") if file.is_file())


def test_only_missing_parts_are_asked_for_and_content_comes_back_from_any_byte_on(store: UploadStore) -> None:
    first = kept(store, "ada", a=b"one", b=b"two")
    second = manifest_of(a=b"one", c=b"three!")
    assert store.offer("ada", second) == [digest_of(b"three!")]
    store.put("ada", second.digest, pack_of(b"three!"))
    upload, _ = store.complete("ada", second.digest)
    assert (upload.digest, upload.files, upload.bytes) == (second.digest, 2, 9)
    for offset in range(10):
        assert b"".join(store.content("ada", second, offset)) == b"onethree!"[offset:]
    assert b"".join(store.content("ada", store.manifest("ada", first.digest), 0)) == b"onetwo"


def test_whoever_knows_a_digest_of_another_user_has_nothing(store: UploadStore) -> None:
    manifest = kept(store, "ada", a=b"mine")
    assert store.offer("bob", manifest) == [digest_of(b"mine")]
    for call in (store.complete, store.manifest):
        if call == store.complete:
            with pytest.raises(InputError, match="lacks 1 of its parts"):
                call("bob", manifest.digest)
        with pytest.raises(InputError, match="expected one of yours"):
            call("eve", manifest.digest)


@pytest.mark.parametrize(
    "pack",
    [
        pack_of(b"tWo"),  # another content
        pack_of(b"one", b"another"),
        pack_of(b"two")[:-1],  # cut
        (1 << 31).to_bytes(LENGTH_BYTES, "big") + b"two",  # says more than it has
        b"\0",
    ],
)
def test_what_the_manifest_does_not_name_is_refused_and_nothing_of_it_is_kept(
    store: UploadStore, pack: bytes
) -> None:
    manifest = manifest_of(a=b"one", b=b"two")
    store.offer("ada", manifest)
    with pytest.raises(InputError, match="expected parts that its manifest names"):
        store.put("ada", manifest.digest, pack)
    assert files_in(store) == [f"{manifest.digest}.json"]


def test_half_an_upload_is_no_upload_and_goes_on_where_it_was(store: UploadStore) -> None:
    manifest = manifest_of(a=b"one", b=b"two")
    store.offer("ada", manifest)
    store.put("ada", manifest.digest, pack_of(b"one"))
    again = UploadStore(store.root)  # as after a crash
    with pytest.raises(InputError, match="lacks 1 of its parts"):
        again.complete("ada", manifest.digest)
    assert again.offer("ada", manifest) == [digest_of(b"two")]
    again.put("ada", manifest.digest, pack_of(b"two"))
    again.complete("ada", manifest.digest)


def test_a_part_that_a_crash_has_cut_is_asked_for_anew(store: UploadStore) -> None:
    manifest = kept(store, "ada", a=b"one", b=b"two")
    (part,) = store.root.rglob(digest_of(b"two"))
    part.write_bytes(b"")
    assert store.offer("ada", manifest) == [digest_of(b"two")]
    store.put("ada", manifest.digest, pack_of(b"two"))
    store.complete("ada", manifest.digest)


def test_two_at_once_that_share_parts_are_both_whole(store: UploadStore) -> None:
    contents = {f"f{index}": bytes([index]) * 1000 for index in range(40)}
    trees = [manifest_of(**contents, last=name) for name in (b"x", b"y")]

    def send(manifest: UploadManifest, last: bytes) -> None:
        store.offer("ada", manifest)
        for content in (*contents.values(), last):
            store.put("ada", manifest.digest, pack_of(content))
            store.collect([])

    threads = [threading.Thread(target=send, args=each) for each in zip(trees, (b"x", b"y"), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for manifest in trees:
        store.complete("ada", manifest.digest)


def test_limits_are_one_line(store: UploadStore) -> None:
    store.limits = UploadLimits(most_bytes=10, most_file_bytes=6, most_user_bytes=12)
    with pytest.raises(InputError, match=r"files of at most 6 bytes; the biggest are a \(7 bytes\)"):
        store.offer("ada", manifest_of(a=b"1234567"))
    with pytest.raises(InputError, match="expected at most 10 bytes, got 11 bytes in 2 files"):
        store.offer("ada", manifest_of(a=b"123456", b=b"54321"))
    kept(store, "ada", a=b"123456", b=b"4321")
    with pytest.raises(InputError, match="at most 12 bytes of one user, whose other uploads have 10 bytes"):
        store.offer("ada", manifest_of(a=b"abc"))
    store.offer("ada", manifest_of(a=b"123456", c=b"z"))  # of which a part is there already
    store.offer("bob", manifest_of(a=b"abc"))


def test_what_no_job_names_goes_after_its_time_and_shared_parts_stay(store: UploadStore) -> None:
    old, used = kept(store, "ada", a=b"one", b=b"two"), kept(store, "ada", a=b"one", c=b"three")
    assert store.collect([]).gone == 0  # both are young
    for file in store.root.rglob("*.json"):
        os.utime(file, (LONG_AGO_S, LONG_AGO_S))
    assert store.collect([("ada", used.digest), ("bob", old.digest)]).gone == 1
    assert files_in(store) == sorted([f"{used.digest}.json", digest_of(b"one"), digest_of(b"three")])
    upload, _ = store.complete("ada", used.digest)
    store.check_start("ada", upload)
    store.root.rename(store.root.with_name("lost"))
    with pytest.raises(StartRefused, match=r"is not in .*uploads any more: submit the job again with it"):
        store.check_start("ada", upload)


def test_time_counts_from_the_last_look_at_which_a_job_named_it(store: UploadStore) -> None:
    manifest = kept(store, "ada", a=b"one")
    (file,) = store.root.rglob("*.json")
    os.utime(file, (LONG_AGO_S, LONG_AGO_S))
    store.collect([("ada", manifest.digest)])
    assert store.collect([]).gone == 0


@pytest.mark.parametrize("damaged", ["ada", "bob"])  # whichever folder comes first
def test_a_folder_that_cannot_be_gone_through_keeps_no_other_waiting(
    store: UploadStore, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept(store, "ada", a=b"one")
    kept(store, "bob", a=b"two")
    (store.root / folder_name(damaged) / "manifests" / "strange.json").mkdir()
    for path in store.root.rglob("*.json"):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    asyncio.run(UploadGC(State(), store).look())
    other = b"two" if damaged == "ada" else b"one"
    assert digest_of(other) not in files_in(store)
    assert "uploads of one owner cannot be deleted" in caplog.text
    assert "strange.json" in caplog.text


def test_files_are_for_the_service_alone(store: UploadStore) -> None:
    kept(store, "ada", a=b"one")
    assert {file.stat().st_mode & 0o077 for file in store.root.rglob("*") if file.is_file()} == {0}


def test_a_manifest_that_was_changed_on_disk_is_no_upload(store: UploadStore) -> None:
    manifest = kept(store, "ada", a=b"one")
    (file,) = store.root.rglob("*.json")
    file.write_bytes(manifest.content.replace(b'"a"', b'"b"'))
    with pytest.raises(InputError, match="is damaged in"):
        store.complete("ada", manifest.digest)
