"""A manifest of an upload says what it holds, and cannot say anything that leads out of its tree."""

from hashlib import sha256
from typing import Any

import pytest

from stretto.client.upload_manifest import (
    MOST_ENTRIES,
    PART_BYTES,
    UploadEntry,
    UploadManifest,
    check_sizes,
    manifest_in,
)
from stretto.errors import InputError

DIGEST = sha256(b"x").hexdigest()
A_FILE = {"path": "a", "bytes": 1, "parts": [DIGEST]}


def link(path: str, target: str) -> dict[str, Any]:
    return {"path": path, "target": target}


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([], "expected 1 to 10000 files, got 0"),
        ([{**A_FILE, "path": "/etc/passwd"}], "expected a path within the tree"),
        ([{**A_FILE, "path": "../a"}], "expected a path within the tree"),
        ([{**A_FILE, "path": "a/../../b"}], "expected a path within the tree"),
        ([{**A_FILE, "path": "a//b"}], "expected a path within the tree"),
        ([{**A_FILE, "path": "a/"}], "expected a path within the tree"),
        ([{**A_FILE, "path": "./a"}], "expected a path within the tree"),
        ([{**A_FILE, "path": "a\0b"}], "expected a path within the tree"),
        ([{**A_FILE, "path": "a\nb"}], "expected a path within the tree"),
        ([{**A_FILE, "path": "a\udcff"}], "expected a path within the tree"),
        ([{**A_FILE, "path": "x" * 256}], "expected names of at most 255 bytes"),
        ([{**A_FILE, "path": "x/" * 600 + "y"}], "expected a path within the tree"),
        ([A_FILE, A_FILE], "expected every path once"),
        ([A_FILE, {**A_FILE, "path": "a/b"}], "expected a folder around it, got a"),
        ([link("a", "b"), {**A_FILE, "path": "a/b"}], "expected a folder around it, got a"),
        ([link("a", "/etc")], "expected a link within the tree"),
        ([link("a", "..")], "expected a link within the tree"),
        ([link("a/b", "../../c")], "expected a link within the tree"),
        # By itself each of these stays inside; one by way of the other does not.
        ([link("p/q/d", "../.."), link("p/q/x", "d/../y")], "expected a link within the tree"),
        ([link("a", "b"), link("b", "a")], "expected a link within the tree"),
        ([{"path": "a", "bytes": 1, "parts": []}], "expected a part for each MiB"),
        ([{"path": "a", "bytes": 0, "parts": [DIGEST]}], "expected a part for each MiB"),
        ([{"path": "a", "bytes": 1, "parts": ["../../key"]}], "expected parts by their SHA-256"),
        ([{"path": "a", "bytes": -1, "parts": []}], "expected a number of bytes"),
        ([{"path": "a", "bytes": True, "parts": []}], "expected a number of bytes"),
        ([A_FILE, {"path": "b", "bytes": 2, "parts": [DIGEST]}], "has two sizes"),
        ([{**A_FILE, "target": "b"}], "expected a file, a link or a folder"),
        ([{"path": "a", "folder": True, "target": "b"}], "expected a file, a link or a folder"),
        ([{"path": "a", "mode": 0o4755}], "unknown key 'mode'"),
        ([{"path": "a", "device": "1:3"}], "unknown key 'device'"),
        (["a"], "expected entries with a path"),
    ],
)
def test_what_leads_out_of_the_tree_or_makes_no_sense_is_one_line(entries: list[Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as refused:
        manifest_in({"entries": entries})
    assert len(str(refused.value)) < 500


def test_links_within_the_tree_may_be_and_may_lead_nowhere() -> None:
    entries = [A_FILE, link("p/up", ".."), link("p/x", "up/a"), link("nowhere", "p/none")]
    assert len(manifest_in({"entries": entries}).entries) == 4


def test_too_many_files_are_refused() -> None:
    with pytest.raises(InputError, match="expected 1 to 10000 files, got 10001"):
        UploadManifest(tuple(UploadEntry(f"f{index}") for index in range(MOST_ENTRIES + 1)))


def test_the_digest_follows_from_the_tree_alone() -> None:
    script = {**A_FILE, "path": "run.sh", "executable": True}
    one = manifest_in({"entries": [A_FILE, script]})
    other = manifest_in({"entries": [{"executable": True, **script}, {"folder": False, **A_FILE}]})
    assert one.digest == other.digest == sha256(one.content).hexdigest()
    assert manifest_in({"entries": [A_FILE, {**script, "executable": False}]}).digest != one.digest
    assert (len(one.files), one.bytes) == (2, 2)


def test_the_last_part_of_a_file_is_what_is_left() -> None:
    entry = UploadEntry("a", PART_BYTES + 5, (DIGEST, sha256(b"y").hexdigest()))
    assert UploadManifest((entry,)).sizes == {DIGEST: PART_BYTES, sha256(b"y").hexdigest(): 5}


def test_a_line_about_size_names_the_biggest_files() -> None:
    files = [("small", 10), ("data/train.bin", 900), ("data/test.bin", 300), ("b", 20)]
    check_sizes(files, 1230, 900)
    with pytest.raises(InputError) as refused:
        check_sizes(files, 1229, 900)
    line = str(refused.value)
    assert "expected at most 1.23 kB, got 1.23 kB in 4 files" in line
    assert "the biggest are data/train.bin (900 bytes), data/test.bin (300 bytes), b (20 bytes)" in line
    with pytest.raises(InputError, match=r"files of at most 899 bytes; the biggest are data/train\.bin"):
        check_sizes(files, 5000, 899)
