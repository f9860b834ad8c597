"""The certificate of the service and its key: checked before they are used, read again when they change."""

import asyncio
import logging
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.client import trust
from stretto.errors import InputError

LOOK_S = 5.0  # between two looks at the files; chosen: a certificate is renewed days before its end
MOST_BYTES = 1 << 20
MESSAGES = 8  # of a handshake, at most
NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL: times are looked at here, to name them
CERTIFICATE, KEY = "--tls-certificate", "--tls-key"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TlsFiles:
    """Where the certificate of the service is, with those of its authorities after it, and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Loaded:
    """A certificate that can be used, until when, and what its files were like."""

    context: ssl.SSLContext
    until_s: float  # Unix time
    stamp: tuple[Any, ...]


class Certificates:
    """The newest good certificate of two files. Connections keep what they have begun with."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises InputError for files that cannot be used."""
        self.files = files
        self.loaded = load(files)
        self._looked_at = self.loaded.stamp

    @property
    def context(self) -> ssl.SSLContext:
        """What a new connection is to use."""
        return self.loaded.context

    def look(self) -> bool:
        """Whether the files have changed and are used from now on. A log says why they are not."""
        stamp = _stamp_of(self.files)
        if stamp == self._looked_at:
            return False
        self._looked_at = stamp
        try:
            self.loaded = load(self.files)
        except InputError as wrong:
            log.error("%s: the certificate before it stays in use", wrong)
            return False
        log.info("%s %s is in use, until %s", CERTIFICATE, self.files.certificate, day(self.loaded.until_s))
        return True

    async def follow(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.look)


def load(files: TlsFiles) -> Loaded:
    """What two files hold. Raises InputError for what is no certificate, not its key, or not valid now."""
    stamp = _stamp_of(files)
    _check_text(CERTIFICATE, files.certificate, "a certificate in PEM", b"-----BEGIN CERTIFICATE-----")
    key = _check_text(KEY, files.key, "a private key in PEM", b"PRIVATE KEY-----")
    if b"ENCRYPTED" in key:
        raise InputError(f"{KEY} {files.key}: expected a key without a passphrase")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
        after_s, until_s = _times_of(context, files.certificate)
    except ssl.SSLError as wrong:
        if wrong.reason == "KEY_VALUES_MISMATCH":
            raise InputError(
                f"{KEY} {files.key}: expected the key of {CERTIFICATE} {files.certificate}, got another"
            ) from None
        pair = f"{CERTIFICATE} {files.certificate} with {KEY} {files.key}"
        why = trust.why_untrusted(wrong) or (wrong.reason or "not PEM").lower().replace("_", " ")
        raise InputError(f"{pair}: expected what a server can show: {why}") from None
    now_s = time.time()
    if not after_s <= now_s < until_s:
        when = f"expired on {day(until_s)}" if now_s >= until_s else f"not valid before {day(after_s)}"
        raise InputError(f"{CERTIFICATE} {files.certificate}: {when}: expected one that is valid now")
    return Loaded(context, until_s, stamp)


def why_distrusted(context: ssl.SSLContext, host: str, authorities: str) -> str:
    """Why clients that trust some authorities ("": the system's) refuse it for a host; "": they take it."""
    try:
        _shown(context, trust.context_by(authorities), host)
    except ssl.SSLError as wrong:
        return trust.why_untrusted(wrong) or str(wrong)
    return ""


def day(unix_s: float) -> str:
    """A time as people read certificates."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_s))


def _stamp_of(files: TlsFiles) -> tuple[Any, ...]:
    """What changes with the content of the files, and does so where a link to them moves."""
    stamps: list[Any] = []
    for path in (files.certificate, files.key):
        try:
            stats = path.stat()
            stamps.append((stats.st_ino, stats.st_dev, stats.st_size, stats.st_mtime_ns))
        except OSError as wrong:
            stamps.append(wrong.errno)
    return tuple(stamps)


def _check_text(option: str, path: Path, expected: str, mark: bytes) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES)
    except OSError as wrong:
        raise InputError(f"{option} {path}: cannot be read: {wrong.strerror}") from None
    if mark not in content:
        raise InputError(f"{option} {path}: expected {expected}, got something else")
    return content


def _times_of(context: ssl.SSLContext, certificate: Path) -> tuple[float, float]:
    """From when until when the certificate of a server's context is valid. Raises SSLError."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(certificate)  # it need not be an authority's
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    shown = _shown(context, client, "")
    return ssl.cert_time_to_seconds(shown["notBefore"]), ssl.cert_time_to_seconds(shown["notAfter"])


def _shown(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> dict[str, Any]:
    """The certificate that a server shows a client for a host, as it is taken. Raises SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(down, up, server_hostname=host or None)
    for end in (asking, server.wrap_bio(up, down, server_side=True)) * MESSAGES:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        if end is asking:
            break
    return dict(asking.getpeercert() or {})
