"""Which files of a directory are uploaded, and what is sent of them."""

import os
import random
from pathlib import Path

import pytest

from stretto.client.upload_manifest import PART_BYTES
from stretto.client.upload_tree import LENGTH_BYTES, MOST_BYTES_OF_PACK, upload_tree
from stretto.errors import InputError

LIMITS = {"most_bytes": 50_000_000, "most_file_bytes": 20_000_000}


def write(file: Path, content: str = "x") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def paths(root: Path) -> list[str]:
    return [entry.path for entry in upload_tree(root, LIMITS).manifest.entries]


def parts_in(pack: bytes) -> list[bytes]:
    parts = []
    while pack:
        size = int.from_bytes(pack[:LENGTH_BYTES], "big")
        parts.append(pack[LENGTH_BYTES : LENGTH_BYTES + size])
        pack = pack[LENGTH_BYTES + size :]
    return parts


def test_strettoignore_counts_as_git_reads_its_own_and_gitignore_where_there_is_none(tmp_path: Path) -> None:
    for name in ("train.py", "a.log", "keep.log", "data/x.bin", "src/data/y.bin", "src/only/z", ".git/HEAD"):
        write(tmp_path / name)
    write(tmp_path / ".gitignore", "*.log\n!keep.log\n/data/\n")
    write(tmp_path / "src" / ".gitignore", "# of this folder\n/only\n")
    git = [".gitignore", "keep.log", "src/.gitignore", "src/data/y.bin", "train.py"]
    assert paths(tmp_path) == git
    write(tmp_path / ".strettoignore", "data/\n.gitignore\n")
    assert paths(tmp_path) == [".strettoignore", "a.log", "keep.log", "src/only/z", "train.py"]


def test_a_deeper_ignore_file_has_the_last_word_within_its_folder(tmp_path: Path) -> None:
    for name in ("a/x.bin", "b/x.bin"):
        write(tmp_path / name)
    write(tmp_path / ".strettoignore", "*.bin\n.strettoignore\n")
    write(tmp_path / "b" / ".strettoignore", "!x.bin\n")
    assert paths(tmp_path) == ["a", "b/x.bin"]  # of a folder nothing is left but itself


def test_modes_links_and_empty_folders_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "run.sh", "#!/bin/sh")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("run.sh")
    (tmp_path / "out").mkdir()
    entries = upload_tree(tmp_path, LIMITS).manifest.entries
    assert [(e.path, e.executable, e.target, e.folder) for e in entries] == [
        ("link", False, "run.sh", False),
        ("out", False, "", True),
        ("run.sh", True, "", False),
    ]


def test_what_is_neither_file_nor_folder_nor_link_within_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"upload: pipe: expected a file, a folder or a link.*strettoignore"):
        paths(tmp_path)
    write(tmp_path / ".strettoignore", "pipe\n")
    (tmp_path / "out").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="upload: out: expected a link within the tree"):
        paths(tmp_path)


def test_sizes_are_looked_at_before_anything_is_read(tmp_path: Path) -> None:
    write(tmp_path / "train.py")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)  # to read it would take an hour
    with pytest.raises(InputError, match=r"the biggest are huge \(1.1e\+03 GB\)"):
        paths(tmp_path)


def test_a_changed_tree_sends_only_what_changed(tmp_path: Path) -> None:
    content = random.Random(7).randbytes(3 * PART_BYTES + 17)
    (tmp_path / "big").write_bytes(content)
    write(tmp_path / "train.py", "print(1)")
    before = upload_tree(tmp_path, LIMITS)
    has = set(before.manifest.sizes)
    (tmp_path / "big").write_bytes(content[:-1] + b"!")
    after = upload_tree(tmp_path, LIMITS)
    missing = [part for part in after.manifest.sizes if part not in has]
    sent = [part for pack in after.packs(missing) for part in parts_in(pack)]
    assert sent == [content[3 * PART_BYTES : -1] + b"!"]
    whole = list(before.packs([]))
    assert whole == []


def test_packs_fit_into_a_request_and_hold_each_part_once(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(random.Random(7).randbytes(3 * PART_BYTES))
    for index in range(100):
        write(tmp_path / f"f{index}", str(index))
    write(tmp_path / "twin", "0")
    packed = upload_tree(tmp_path, LIMITS)
    packs = list(packed.packs(list(packed.manifest.sizes)))
    assert max(map(len, packs)) <= MOST_BYTES_OF_PACK
    assert sum(len(parts_in(pack)) for pack in packs) == len(packed.manifest.sizes) == 103


def test_a_file_that_changes_meanwhile_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a", "1")
    packed = upload_tree(tmp_path, LIMITS)
    write(tmp_path / "a", "2")
    with pytest.raises(InputError, match="upload: a: has changed while it was read"):
        list(packed.packs(list(packed.manifest.sizes)))


@pytest.mark.parametrize("what", ["none", "file", "empty"])
def test_what_is_no_tree_is_one_line(tmp_path: Path, what: str) -> None:
    write(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=f"--upload .*{what}: expected a directory"):
        upload_tree(tmp_path / what, LIMITS)
