"""A fetcher of uploads against a server that lies: one line, nothing outside, no copy under its name."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stretto.agent import supervisor, upload_fetcher
from stretto.client.upload_manifest import PART_BYTES, manifest_in
from stretto.service.reconcile.worker_env import FETCH, FETCHER, SETUP_DIR

pytestmark = [pytest.mark.sockets, pytest.mark.processes]

BIG = bytes(range(256)) * 5_000  # more than one part
SMALL = b"print('trained')\n"
PROGRAM = Path(upload_fetcher.__file__).read_text(encoding="utf-8")
Answer = Callable[[BaseHTTPRequestHandler], None]


def a_file(path: str, content: bytes = SMALL, **more: Any) -> dict[str, Any]:
    parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)]
    digests = [hashlib.sha256(part).hexdigest() for part in parts]
    return {"path": path, "bytes": len(content), "parts": digests, **more}


TREE = [a_file("big.bin", BIG), a_file("src/train.py", executable=True), {"path": "link", "target": "src"}]
TREE_BYTES = BIG + SMALL


class Lying:
    """A server on loopback that answers as it is told. manifest, content: all bytes that it sends."""

    def __init__(self, entries: Any, content: bytes = TREE_BYTES) -> None:
        self.manifest = json.dumps({"entries": entries}).encode()
        self.content = content
        self.answers: dict[str, Answer] = {}  # by path, instead of the truth
        self.asked: list[str] = []
        lying = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                lying.asked.append(self.path)
                with suppress(ConnectionError):
                    what = self.path.partition("?")[0].rpartition("/worker/")[2]
                    lying.answers.get(what, lying.honest)(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def honest(self, handler: BaseHTTPRequestHandler) -> None:
        offset = int(handler.path.partition("offset=")[2] or 0)
        is_content = "upload/content" in handler.path
        send(handler, self.content[offset:] if is_content else self.manifest)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.manifest).hexdigest()


def send(handler: BaseHTTPRequestHandler, body: bytes, code: int = 200, **headers: str) -> None:
    handler.send_response(code)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


@pytest.fixture
def lying(request: pytest.FixtureRequest) -> Iterator[Callable[..., Lying]]:
    servers: list[Lying] = []

    def begin(entries: Any = TREE, content: bytes = TREE_BYTES) -> Lying:
        servers.append(Lying(entries, content))
        return servers[-1]

    yield begin
    for each in servers:
        each.server.shutdown()
        each.server.server_close()


def fetched(server: Lying, place: Path, patience_s: float = 600.0) -> subprocess.CompletedProcess[str]:
    """The fetcher as a worker's shell runs it, in a directory of its own."""
    place.mkdir(parents=True, exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "STRETTO_URL": server.url,
        "STRETTO_TOKEN": "token",
        "STRETTO_WORKER_ID": "7.1.0",
        "STRETTO_UPLOAD": server.digest,
    }
    program = PROGRAM.replace("PATIENCE_S = 600.0", f"PATIENCE_S = {patience_s}")
    command = [sys.executable, "-I", "-S", "-c", program, str(place / "copy")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def check_refused(server: Lying, tmp_path: Path, says: str, patience_s: float = 600.0) -> None:
    """One line, and no file anywhere but the two that are the fetcher's own."""
    done = fetched(server, tmp_path / "place", patience_s)
    assert done.returncode == upload_fetcher.FAILED, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("stretto: the upload cannot be fetched: ")
    assert says in line
    why = tmp_path / "place" / "7.1.0.why"
    assert why.read_text() == line.removeprefix("stretto: ")
    assert len(why.read_bytes()) <= supervisor.LONGEST_WHY_BYTES
    left = sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*"))
    assert left == ["place", "place/7.1.0.why", "place/copy.lock"]


def test_what_is_true_is_there_byte_for_byte(lying: Callable[..., Lying], tmp_path: Path) -> None:
    assert fetched(lying(), tmp_path / "place").returncode == 0
    copy = tmp_path / "place" / "copy"
    assert (copy / "big.bin").read_bytes() == BIG
    assert (copy / "link" / "train.py").read_bytes() == SMALL
    assert os.access(copy / "src" / "train.py", os.X_OK)
    assert not os.access(copy / "big.bin", os.X_OK)


def test_what_the_service_takes_the_fetcher_takes_too(lying: Callable[..., Lying], tmp_path: Path) -> None:
    entries = [*TREE, {"path": "empty", "folder": True}, a_file("src/none", b"")]
    manifest = manifest_in({"entries": entries})
    server = lying()
    server.manifest = manifest.content
    assert fetched(server, tmp_path / "place").returncode == 0
    assert (tmp_path / "place" / "copy" / "empty").is_dir()
    assert (tmp_path / "place" / "copy" / "src" / "none").read_bytes() == b""


def test_a_connection_that_breaks_off_is_taken_up_where_it_was(
    lying: Callable[..., Lying], tmp_path: Path
) -> None:
    server = lying()

    def cut(handler: BaseHTTPRequestHandler) -> None:
        offset = int(handler.path.partition("offset=")[2])
        if offset:
            server.honest(handler)
        else:
            send(handler, server.content[:700_000], Content_Length=str(len(server.content)))

    server.answers["upload/content"] = cut
    assert fetched(server, tmp_path / "place").returncode == 0
    assert (tmp_path / "place" / "copy" / "big.bin").read_bytes() == BIG
    assert [each for each in server.asked if each.endswith("offset=700000")]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (BIG[:-1] + b"?" + SMALL, "'big.bin' is not what was uploaded"),
        (b"?" + TREE_BYTES[1:], "'big.bin' is not what was uploaded"),
        (BIG + SMALL.upper(), "'src/train.py' is not what was uploaded"),
        (TREE_BYTES[1:] + b"?", "'big.bin' is not what was uploaded"),
        (TREE_BYTES + b"?", "the service sent more than the upload has"),
        (TREE_BYTES + bytes(5_000_000), "the service sent more than the upload has"),
    ],
)
def test_other_bytes_than_were_uploaded_are_refused(
    lying: Callable[..., Lying], tmp_path: Path, content: bytes, says: str
) -> None:
    check_refused(lying(content=content), tmp_path, says)


def test_a_body_that_ends_too_early_again_and_again_is_refused(
    lying: Callable[..., Lying], tmp_path: Path
) -> None:
    check_refused(lying(content=TREE_BYTES[:-1]), tmp_path, "the service ended too early", patience_s=4.0)


def test_another_manifest_than_the_job_has_brought_along_is_refused(
    lying: Callable[..., Lying], tmp_path: Path
) -> None:
    server, other = lying(), lying([a_file("train.py")], SMALL)
    server.answers["upload"] = lambda handler: send(handler, other.manifest)
    check_refused(server, tmp_path, "the service sent another manifest")


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([a_file("../x")], "a path leads out of the upload: '../x'"),
        ([a_file("a/../../x")], "leads out"),
        ([a_file("/etc/x")], "leads out"),
        ([a_file("")], "leads out"),
        ([a_file("a//x")], "leads out"),
        ([a_file("./x")], "leads out"),
        ([a_file("x/")], "leads out"),
        ([a_file("x\0y")], "leads out"),
        ([{"path": "..", "folder": True}], "leads out"),
        ([{"path": "x", "target": "/etc"}], "a link leads out of the upload: 'x'"),
        ([{"path": "x", "target": "../copy.lock"}], "a link leads out"),
        ([{"path": "x", "target": "y/.."}, {"path": "y", "target": "d/e"}, a_file("d/e/f", b"")], ""),
        ([{"path": "d/x", "target": "../y/z"}, {"path": "y", "target": "../.."}], "a link leads out"),
        ([{"path": "x", "target": "."}, a_file("x/y")], "a path leads through what is no folder: 'x/y'"),
        ([{"path": "x", "target": "/etc"}, {"path": "x/y", "target": "z"}], "through what is no folder"),
        ([a_file("x"), a_file("x/y")], "a path leads through what is no folder: 'x/y'"),
        ([a_file("x"), a_file("x")], "names a path twice"),
        ([a_file("x"), {"path": "x", "target": "y"}], "names a path twice"),
        ([{"path": "null", "device": "1:3"}], "'null' is neither a file nor a link nor a folder"),
        ([{"path": "x", "device": "1:3", **a_file("x")}], "neither a file nor a link nor a folder"),
        ([{"path": "x", "fifo": True}], "neither a file nor a link nor a folder"),
        ([{"path": "x"}], "neither a file nor a link nor a folder"),
        ([{**a_file("x"), "target": "y"}], "neither a file nor a link nor a folder"),
        ([{**a_file("x"), "bytes": 10**18}], "has not as many parts as its size asks for"),
        ([{**a_file("x"), "bytes": -1}], "has not as many parts as its size asks for"),
        ([{**a_file("x"), "bytes": 1.5}], "has not as many parts as its size asks for"),
        ([{**a_file("x"), "parts": "0"}], "has not as many parts as its size asks for"),
        ([{**a_file("x"), "parts": [["0"]]}], "'x' is not what was uploaded"),
        ([{"path": "x", "target": 7}], "'x' is a link to nothing"),
        ([{"path": 7, "folder": True}], "leads out"),
        ([a_file("n" * 300)], "File name too long"),
        ([7], "the manifest is none"),
        (7, "the manifest is none"),
        ([{"path": ["x"]}], "the manifest is none"),
    ],
)
def test_a_manifest_that_leads_out_or_makes_no_sense_is_refused(
    lying: Callable[..., Lying], tmp_path: Path, entries: Any, says: str
) -> None:
    server = lying(entries, SMALL)
    if says:
        check_refused(server, tmp_path, says)
    else:  # it seems to lead out, and does not
        server.content = b""
        assert fetched(server, tmp_path / "place").returncode == 0


def test_a_file_larger_than_the_disk_is_refused_before_a_byte_of_it_is_asked_for(
    lying: Callable[..., Lying], tmp_path: Path
) -> None:
    part = hashlib.sha256(bytes(PART_BYTES)).hexdigest()
    count = 8_000  # parts of each file, and as many files as a manifest of 8 MB holds
    entries = [
        {"path": str(index), "bytes": count * PART_BYTES, "parts": [part] * count} for index in range(14)
    ]
    server = lying(entries, b"")
    if os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize > 14 * count * PART_BYTES:
        pytest.skip("this disk has room for 117 GB")
    check_refused(server, tmp_path, "has room for")
    assert len(server.asked) == 1


def test_a_manifest_without_end_is_refused(lying: Callable[..., Lying], tmp_path: Path) -> None:
    server = lying()

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65_536)

    server.answers["upload"] = endless
    check_refused(server, tmp_path, "the service sent another manifest")


def test_json_that_is_nested_without_end_is_refused(lying: Callable[..., Lying], tmp_path: Path) -> None:
    server = lying()
    server.manifest = b"[" * 1_000_000
    check_refused(server, tmp_path, "the manifest is none")


@pytest.mark.parametrize("what", ["upload", "upload/content"])
def test_what_is_compressed_is_refused_and_never_unpacked(
    lying: Callable[..., Lying], tmp_path: Path, what: str
) -> None:
    server = lying()
    bomb = gzip.compress(bytes(50_000_000))
    server.answers[what] = lambda handler: send(handler, bomb, Content_Encoding="gzip")
    check_refused(server, tmp_path, "the service sent something compressed")


@pytest.mark.parametrize("what", ["upload", "upload/content"])
@pytest.mark.parametrize("begins", [b"", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_a_byte_now_and_then_without_end_is_refused_in_time(
    lying: Callable[..., Lying], tmp_path: Path, what: str, begins: bytes
) -> None:
    server = lying()

    def drips(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(begins)
        while True:
            handler.wfile.write(b"x")
            time.sleep(0.05)

    server.answers[what] = drips
    check_refused(server, tmp_path, "nothing whole came from the service for 2 s", patience_s=2.0)


def test_a_redirect_is_not_followed_and_nobody_else_sees_the_token(
    lying: Callable[..., Lying], tmp_path: Path
) -> None:
    server, other = lying(), lying()
    place = f"{other.url}/api/v1/worker/upload"
    server.answers["upload"] = lambda handler: send(handler, b"over there", 307, Location=place)
    check_refused(server, tmp_path, "the service answers 307")
    assert other.asked == []


def test_what_the_service_says_becomes_one_line_without_control_characters(
    lying: Callable[..., Lying], tmp_path: Path
) -> None:
    server = lying()
    said = b"no\nsuch\x1b[2J job" + b"!" * 100_000
    server.answers["upload"] = lambda handler: send(handler, said, 404)
    check_refused(server, tmp_path, "the service answers 404 no such [2J job!!!")


def test_after_one_that_was_refused_the_next_one_has_it_all(
    lying: Callable[..., Lying], tmp_path: Path
) -> None:
    server = lying(content=TREE_BYTES[:-1] + b"?")
    check_refused(server, tmp_path, "is not what was uploaded")
    server.content = TREE_BYTES
    assert fetched(server, tmp_path / "place").returncode == 0
    assert (tmp_path / "place" / "copy" / "big.bin").read_bytes() == BIG


def test_a_supervisor_reads_why_whatever_letters_it_has_and_however_long_it_is(
    lying: Callable[..., Lying], tmp_path: Path
) -> None:
    server = lying([a_file(f"../{'ü€' * 200}")], SMALL)
    done = fetched(server, tmp_path / "place")
    why = tmp_path / "place" / f"7.1.0{supervisor.WHY}"
    assert done.returncode == supervisor.NO_UPLOAD
    assert supervisor.LONGEST_WHY_BYTES - 3 <= len(why.read_bytes()) <= supervisor.LONGEST_WHY_BYTES
    assert supervisor.first_line(why) == why.read_text()
    assert done.stderr == f"stretto: {why.read_text()}\n"
    why.write_text("€" * 400)  # as a user may
    assert supervisor.first_line(why) == "€" * (supervisor.LONGEST_WHY_BYTES // 3)


def test_all_who_know_how_a_worker_without_its_upload_ends_agree(tmp_path: Path) -> None:
    mine = (upload_fetcher.FAILED, upload_fetcher.WHY, upload_fetcher.LONGEST_WHY_BYTES)
    assert mine == (supervisor.NO_UPLOAD, supervisor.WHY, supervisor.LONGEST_WHY_BYTES)
    shell = FETCH.format(
        copy="copy-7.1.n1",
        python="false",  # a node without Python
        workdir="''",
        setups=SETUP_DIR,
        fetcher=FETCHER,
        failed=upload_fetcher.FAILED,
        why=upload_fetcher.WHY,
    )
    environment = {"PATH": os.environ["PATH"], SETUP_DIR: str(tmp_path), "STRETTO_WORKER_ID": "7.1.0"}
    done = subprocess.run(["/bin/sh", "-c", shell], env=environment, capture_output=True, check=False)
    assert done.returncode == supervisor.NO_UPLOAD
    said = supervisor.first_line(tmp_path / f"7.1.0{supervisor.WHY}")
    assert said == "the job cannot begin in its upload: its node lacks python3, or that folder"
