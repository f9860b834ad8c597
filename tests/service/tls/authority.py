"""An authority of a test's own, and certificates by it."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stretto.service.http.certificates import TlsFiles

DAY = timedelta(days=1)


class Authority:
    """Signs certificates; its own is in a file."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder, self.name = folder, _name(name)
        self.key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        self.certificate = (
            x509.CertificateBuilder(self.name, self.name, self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 100 * DAY)
            .not_valid_after(now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str = "server", lasts: timedelta = DAY, host: str = "", began: timedelta = DAY
    ) -> TlsFiles:
        """A certificate for this machine (or a host), valid since `began` ago for `lasts` from now on."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.DNSName(host)] if host else _here()
        now = datetime.now(UTC)
        issuer = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        certificate = (
            x509.CertificateBuilder(self.name, _name(name), key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - began)
            .not_valid_after(now + lasts)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )
        files = TlsFiles(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files


def _here() -> list[x509.GeneralName]:
    return [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
