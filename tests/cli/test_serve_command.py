"""What `stretto serve` reads before it begins: who may see what it knows."""

import socket
from pathlib import Path
from typing import Any

import pytest

from stretto.cli.app import status_of

URL = "postgresql+psycopg://ada:secret@db/stretto"


def test_the_url_of_the_store_may_come_from_a_file(tmp_path: Path, started: list[Any]) -> None:
    file = tmp_path / "url"
    file.write_text(f"{URL}\n")
    assert status_of(["serve", "--store-file", str(file)]) == 0
    assert started[0].store == URL


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        pytest.param(b"", (), "expected one line, the URL of a database, got 0", id="empty"),
        pytest.param(b"a\nb\n", (), "expected one line, the URL of a database, got 2", id="two lines"),
        pytest.param(b"\xff\xfe", (), "cannot be read: it is no text", id="no text"),
        pytest.param(None, (), "cannot be read: No such file or directory", id="not there"),
        pytest.param(b"a", ("--store", "b"), "expected instead of --store, not beside it", id="twice"),
    ],
)
def test_a_file_without_one_url_is_refused_in_a_line(
    tmp_path: Path,
    started: list[Any],
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    options: tuple[str, ...],
    said: str,
) -> None:
    file = tmp_path / "url"
    if content is not None:
        file.write_bytes(content)
    assert status_of(["serve", "--store-file", str(file), *options]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1
    assert started == []


def test_names_that_jobs_are_to_inherit_reach_the_service(started: list[Any]) -> None:
    assert status_of(["serve", "--pass-env", "WANDB_*", "--pass-env", "DATASETS"]) == 0
    assert started[0].backend.pass_env == ("WANDB_*", "DATASETS")


@pytest.mark.parametrize("name", ["A=1", "1A", "A B", "", "A,B"])
def test_what_is_no_name_of_a_variable_is_refused_in_a_line(
    started: list[Any], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert status_of(["serve", "--pass-env", name]) == 2
    assert f"--pass-env {name}: expected the name of a variable" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--pass-env", "STRETTO_TOKEN", "variables of STRETTO_* are never passed on"),
        ("--submit-rate", "0", "expected a number of submissions above 0"),
        ("--submit-rate", "-3", "expected a number of submissions above 0"),
        ("--submit-rate", "nan", "expected a number of submissions above 0"),
        ("--submit-rate", "inf", "expected a number of submissions above 0"),
    ],
)
def test_what_would_do_nothing_is_refused_in_a_line_that_names_the_option(
    started: list[Any], capsys: pytest.CaptureFixture[str], option: str, value: str, said: str
) -> None:
    assert status_of(["serve", option, value]) == 2
    said_all = capsys.readouterr().err
    assert said_all.count("\n") == 1
    assert said_all.startswith(f"stretto: {option} ")
    assert said in said_all
    assert started == []


@pytest.mark.sockets
def test_a_port_that_is_taken_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        emulated = ["--backend", "emulated", "--cluster", "gpu8-256", "--policy", "fifo"]
        assert status_of(["serve", "--state", str(tmp_path / "state"), "--listen", place, *emulated]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"stretto: --listen {place}: Address already in use; does a service run there already? "
        "Else name another port\n"
    )


def test_a_service_does_not_begin_in_a_directory_that_everybody_may_write_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    emulated = ["--backend", "emulated", "--cluster", "gpu8-256", "--policy", "fifo"]
    assert status_of(["serve", "--state", str(state), "--listen", "127.0.0.1:0", *emulated]) == 2
    assert "only its owner may write to, such as mode 700, got mode 777" in capsys.readouterr().err
    assert list(state.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "most_bytes"),
    [
        ([], 1 << 30),
        (["--max-log-size", "500MB"], 500_000_000),
        (["--max-log-size", "any"], 0),
        (["--max-log-size", "500MB", "--backend", "slurm"], 500_000_000),
        (["--max-log-size", "500MB", "--backend", "ray"], 500_000_000),
    ],
)
def test_how_much_a_job_may_write_reaches_the_service(
    started: list[Any], options: list[str], most_bytes: int
) -> None:
    assert status_of(["serve", *options]) == 0
    assert started[0].backend.max_log_bytes == most_bytes


@pytest.mark.parametrize("size", ["", "lots", "10kB", "-1GB", "0", "inf"])
def test_what_is_no_size_of_a_log_is_refused_in_a_line(
    started: list[Any], capsys: pytest.CaptureFixture[str], size: str
) -> None:
    assert status_of(["serve", "--max-log-size", size]) == 2
    assert f"--max-log-size {size}: expected 1MiB or more" in capsys.readouterr().err
    assert started == []
