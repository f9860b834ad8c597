"""A file is there whole, or as it was."""

import os
import stat
from pathlib import Path

import pytest

from stretto.whole_files import write_whole


def test_text_and_bytes_take_the_place_of_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "fünf\n")
    assert path.read_bytes() == "fünf\n".encode()
    write_whole(path, b"\x00six")
    assert path.read_bytes() == b"\x00six"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_what_cannot_be_written_to_its_end_leaves_the_former_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "former")

    def full(part: Path, data: bytes) -> int:
        with part.open("wb") as file:
            file.write(data[:3])
        raise OSError(28, "No space left on device", str(part))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left") as failed:
        write_whole(path, "latter")
    assert failed.value.filename == str(path)
    assert path.read_text(encoding="utf-8") == "former"
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_who_may_read_it_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "secret")
    path.chmod(0o600)
    write_whole(path, "secret again")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("former", encoding="utf-8")
    link.symlink_to(file)
    write_whole(link, "latter")
    assert link.is_symlink()
    assert file.read_text(encoding="utf-8") == "latter"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(path, "through it")
        assert os.read(reader, 100) == b"through it"
    finally:
        os.close(reader)


@pytest.mark.parametrize("name", ["absent/a.txt", "."])
def test_a_folder_that_is_not_there_and_one_that_is_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"No such file|Is a directory"):
        write_whole(tmp_path / name, "x")
