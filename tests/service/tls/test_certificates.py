"""Certificates are checked before they are used, and a bad file never takes the place of a good one."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.service.tls.authority import Authority

from stretto.client import trust
from stretto.model import InputError
from stretto.service.http.certificates import Certificates, TlsFiles, load, why_distrusted

HOUR = timedelta(hours=1)
CUT = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (lambda by: by.issue("old", lasts=-HOUR), r"--tls-certificate .*old\.crt: expired on 20.*UTC"),
        (lambda by: by.issue("new", began=-HOUR, lasts=2 * HOUR), r"--tls-certificate .*: not valid before"),
        (
            lambda by: TlsFiles(by.issue("a").certificate, by.issue("b").key),
            r"--tls-key .*b\.key: expected the key of --tls-certificate .*a\.crt, got another",
        ),
        (
            lambda by: TlsFiles(by.folder / "none", by.issue().key),
            r"--tls-certificate .*none: cannot be read",
        ),
        (lambda by: TlsFiles(by.issue().certificate, by.folder), r"--tls-key .*: cannot be read: Is a dir"),
        (
            lambda by: TlsFiles(by.issue().key, by.issue().key),
            r"--tls-certificate .*: expected a certificate",
        ),
        (
            lambda by: TlsFiles(by.issue().certificate, by.file),
            r"--tls-key .*authority\.pem: expected a private key in PEM, got something else",
        ),
        (
            lambda by: TlsFiles(written(by.folder / "cut", CUT), by.issue().key),
            r"--tls-certificate .*cut with --tls-key .*: expected what a server can show",
        ),
        (
            lambda by: TlsFiles(
                by.issue().certificate,
                written(by.folder / "locked", "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"),
            ),
            r"--tls-key .*locked: expected a key without a passphrase",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_one_line(
    authority: Authority, made: Callable[[Authority], TlsFiles], line: str
) -> None:
    with pytest.raises(InputError, match=line) as refused:
        load(made(authority))
    assert "\n" not in str(refused.value)


def test_new_files_are_used_and_bad_ones_leave_the_one_before_in_use(authority: Authority) -> None:
    certificates = Certificates(authority.issue())
    first = certificates.context
    assert not certificates.look()
    authority.issue()  # the same names
    assert certificates.look()
    second = certificates.context
    assert second is not first
    authority.issue(lasts=-HOUR)
    assert not certificates.look()
    certificates.files.key.unlink()
    assert not certificates.look()
    assert certificates.context is second
    authority.issue()
    assert certificates.look(), "as soon as they are good again"


def test_a_link_that_moves_is_a_change_as_kubernetes_replaces_its_secrets(authority: Authority) -> None:
    places = [authority.folder / name for name in ("..1", "..2")]
    for place in places:
        place.mkdir()
        issued = authority.issue()
        issued.certificate.rename(place / "tls.crt")
        issued.key.rename(place / "tls.key")
    link = authority.folder / "..data"
    link.symlink_to(places[0])
    certificates = Certificates(TlsFiles(link / "tls.crt", link / "tls.key"))
    moved = authority.folder / "..new"
    moved.symlink_to(places[1])
    os.replace(moved, link)  # noqa: PTH105  # in one step, as the kubelet does
    assert certificates.look()


def test_workers_that_would_not_trust_it_are_foreseen(authority: Authority) -> None:
    context, known = load(authority.issue()).context, authority.file.read_text()
    assert why_distrusted(context, "127.0.0.1", known) == ""
    assert why_distrusted(context, "localhost", known) == ""
    assert "issuer" in why_distrusted(context, "127.0.0.1", "")
    assert "not valid for 'stretto.example.org'" in why_distrusted(context, "stretto.example.org", known)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "cannot be read: No such file"),
        (b"", "expected certificates in PEM"),
        (b"\xff\xfe", "expected certificates in PEM"),
        (b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", "expected certificates in PEM"),
        (b"#" * (trust.MOST_BYTES + 1), "expected at most 96 KiB"),
    ],
)
def test_a_file_of_authorities_that_cannot_be_used_is_refused(
    tmp_path: Path, content: bytes | None, line: str
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=f"--ca-file {file}: {line}"):
        trust.certificates_in(file)
