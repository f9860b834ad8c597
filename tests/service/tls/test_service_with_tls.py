"""A service with TLS and all that speaks with it: clients, streams, workers, and whoever should not."""

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.running import PROGRAM
from tests.service.tls.authority import Authority
from tests.service.tls.secure import Secure

from stretto.client import Client, ServiceError, Untrusted
from stretto.demo.own_service import until

pytestmark = [pytest.mark.processes, pytest.mark.large]

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    service = Secure(tmp_path_factory.mktemp("tls"), "--backend", "emulated", "--cluster", "sia-hetero-64")
    try:
        service.begin()
        yield service
    finally:
        service.end()


def stretto(secure: Secure, *words: str, ca_file: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """A command of ours, told where the service is."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")}
    options = ["--ca-file", ca_file] if ca_file else []
    return subprocess.run(
        [sys.executable, *PROGRAM, *words, "--url", secure.url, *options],
        env={**usual, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def serial_of(secure: Secure) -> int:
    """Of the certificate that a new connection sees."""
    from cryptography import x509

    return x509.load_pem_x509_certificate(
        ssl.get_server_certificate((secure.host, secure.port)).encode()
    ).serial_number


def test_the_command_line_trusts_the_authorities_of_a_file_and_no_others(
    secure: Secure, tmp_path: Path
) -> None:
    own, other = str(secure.authority.file), str(Authority(tmp_path, "other").file)
    assert stretto(secure, "nodes", "list", ca_file=own).returncode == 0
    assert stretto(secure, "nodes", "list", STRETTO_CA_FILE=own).returncode == 0
    for asked in (
        stretto(secure, "nodes", "list"),
        stretto(secure, "nodes", "list", ca_file=other),
        stretto(secure, "events", "-f", ca_file=other),  # which outlasts outages
        stretto(secure, "nodes", "list", ca_file=other, STRETTO_CA_FILE=own),  # the option comes first
    ):
        assert asked.returncode == 2, asked
        assert len(asked.stderr.strip().splitlines()) == 1, asked.stderr
        assert "certificate is not trusted: unable to get local issuer certificate" in asked.stderr
        assert "--ca-file or STRETTO_CA_FILE" in asked.stderr


def test_a_name_that_the_certificate_does_not_have_is_refused(secure: Secure) -> None:
    with (
        Client(f"https://0.0.0.0:{secure.port}", None, ca_file=str(secure.authority.file)) as client,
        pytest.raises(Untrusted, match=r"IP address mismatch.*0\.0\.0\.0"),
    ):
        list(client.nodes())


def test_plain_http_gets_no_answer_and_a_hint(secure: Secure) -> None:
    with (
        Client(secure.url.replace("https", "http"), None) as client,
        pytest.raises(ServiceError, match="one with TLS has a URL with https://"),
    ):
        list(client.nodes())


def test_sessions_are_for_https_alone(secure: Secure) -> None:
    with secure.client() as client:
        token = client.ask("POST", "/api/v1/tokens", json={"name": "ada", "user": "ada"})["token"]
        headers = {"sec-fetch-site": "same-origin"}
        answer = client.http.post("/login", json={"token": token}, headers=headers)
        assert answer.status_code == 200
        assert "; HttpOnly; SameSite=Strict; Secure" in answer.headers["set-cookie"]


def test_a_renewed_certificate_is_used_and_no_connection_is_lost(secure: Secure) -> None:
    with secure.client() as client, client.http.stream("GET", "/api/v1/overview?follow=true") as stream:
        lines = stream.iter_lines()
        next(lines)
        before = serial_of(secure)
        secure.authority.issue()
        until(lambda: serial_of(secure) != before, 60.0, "new connections see the new one")
        after = serial_of(secure)
        secure.files.certificate.write_text("-----BEGIN CERTIFICATE-----\n", encoding="ascii")
        log = secure.state / "service.log"
        until(lambda: "the certificate before it stays in use" in log.read_text(), 60.0, "the log says so")
        assert serial_of(secure) == after
        client.submit("run: sleep 1")
        assert any("sleep" in line or "data:" in line for line in lines), "the stream goes on"
        secure.authority.issue()


def test_connections_that_never_shake_hands_are_counted_and_closed(secure: Secure) -> None:
    def connections() -> int:
        with secure.client() as client:
            lines = client.http.get("/metrics").text.splitlines()
        return int(float(next(one for one in lines if one.startswith("stretto_connections ")).split()[1]))

    before = connections()
    silent = [socket.create_connection((secure.host, secure.port)) for _ in range(20)]
    try:
        until(lambda: connections() >= before + 20, 10.0, "they are counted")
        silent[0].sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        silent[0].settimeout(60)
        assert b"HTTP/" not in silent[0].recv(1000)
        until(lambda: connections() <= before, 60.0, "all are closed after their time")
    finally:
        for each in silent:
            each.close()


@pytest.mark.long  # trainings without TLS, and TLS without a training, are tried each time
@pytest.mark.torch
def test_a_real_training_is_resized_in_place_over_tls(tmp_path: Path) -> None:
    secure = Secure(tmp_path, "--slots", "2", "--gpu-type", "cpu", "--policy", "afs")
    secure.begin()
    try:
        with secure.client() as client:
            job = {
                "name": "grows",
                "run": f"{sys.executable} digits_cnn.py --epochs 100000 --seen {tmp_path / 'seen'}",
                "workdir": str(EXAMPLES),
                "resources": {"accelerators": 1},
                "elastic": {"min": 1, "max": 1},
                "grace_period": "5s",
                "envs": {"OMP_NUM_THREADS": "1"},
            }
            name = str(client.submit(json.dumps(job))["id"])
            until(lambda: client.describe(name)["progress"].get("step", 0) > 0, 300.0, "it reports over TLS")
            client.change(name, "scale", min_gpus=2, max_gpus=2)
            until(lambda: client.describe(name)["training_gpus"] == 2, 300.0, "two workers train together")
            assert client.describe(name)["attempt"] == 1, "in place"
            kept = secure.state / "checkpoints" / name / f".ca-{name}"
            assert kept.read_text() == secure.authority.file.read_text()
            client.change(name, "cancel")
            until(lambda: client.describe(name)["ended_s"], what="it ends")
            followed = stretto(secure, "logs", "-f", name, ca_file=str(secure.authority.file))
            assert followed.returncode == 0
            assert "epoch" in followed.stdout
    finally:
        secure.end()


def test_a_service_says_at_its_start_what_its_workers_would_not_trust(tmp_path: Path) -> None:
    by = Authority(tmp_path)
    files = by.issue(host="stretto.example.org")
    options = ("--tls-certificate", str(files.certificate), "--tls-key", str(files.key))
    usual = [sys.executable, *PROGRAM, "serve", "--state", str(tmp_path / "state"), "--listen", "127.0.0.1:0"]
    asked = subprocess.run(
        [*usual, *options, "--url", "http://stretto.example.org:8700"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 2
    assert "--url http://stretto.example.org:8700: expected https:// beside --tls-certificate" in asked.stderr
    process = subprocess.Popen(
        [*usual, *options, "--ca-file", str(by.file), "--backend", "emulated", "--cluster", "sia-hetero-64"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "workers would not trust https://127.0.0.1:" in said
        assert "mismatch" in said
    finally:
        process.terminate()
        process.communicate(timeout=60)
    for one, other in (options[:2], options[2:]), (options[2:], options[:2]):
        asked = subprocess.run([*usual, *one], capture_output=True, text=True, check=False)
        assert (asked.returncode, asked.stderr.count("\n")) == (2, 1)
        assert f"{one[0]}: expected {other[0]} beside it" in asked.stderr
