"""Which authorities a client trusts to certify the service: those of a file, else those of the system."""

import os
import ssl
from pathlib import Path

from stretto.errors import InputError

VARIABLE, OPTION = "STRETTO_CA_FILE", "--ca-file"
MOST_BYTES = 96 << 10  # chosen: workers get it as one variable, of which Linux allows 128 KiB


def certificates_in(file: Path, option: str = OPTION) -> str:
    """The text of a file with certificates of authorities. Raises InputError."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except OSError as wrong:
        raise InputError(f"{option} {file}: cannot be read: {wrong.strerror}") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{option} {file}: expected at most {MOST_BYTES >> 10} KiB of certificates")
    try:
        text = content.decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise InputError(f"{option} {file}: expected certificates in PEM, got something else") from None
    return text


def context_by(text: str) -> ssl.SSLContext:
    """How a client verifies that authorities of a text certify a service; "": those of the system."""
    return ssl.create_default_context(cadata=text or None)


def context_for(url: str, ca_file: str = "") -> ssl.SSLContext | bool:
    """How a client of a URL verifies the service; False: without TLS. Raises InputError for an unusable file.

    ca_file: else the file that STRETTO_CA_FILE names. To read all authorities of the system is slow, and in
    vain without TLS.
    """
    option, file = (OPTION, ca_file) if ca_file else (VARIABLE, os.environ.get(VARIABLE, ""))
    if not url.startswith("https://"):
        return False
    return context_by(certificates_in(Path(file), option) if file else "")


def why_untrusted(failure: BaseException | None) -> str:
    """Why a service's certificate was not taken, from whatever a failure comes; "" for other failures."""
    while failure is not None:
        if isinstance(failure, ssl.SSLCertVerificationError):
            return failure.verify_message.rstrip(".") or "it cannot be verified"
        failure = failure.__cause__ or failure.__context__
    return ""
