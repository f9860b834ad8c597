"""What a client reads before it asks: certificates of authorities, where there is something to verify."""

import ssl
from typing import Any

import pytest

from stretto.client import Client


@pytest.mark.parametrize(
    ("url", "is_verified"), [("http://127.0.0.1:1", False), ("https://127.0.0.1:1", True)]
)
def test_certificates_are_read_where_they_verify_somebody(
    url: str, is_verified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[ssl.SSLContext] = []
    usual = ssl.create_default_context

    def create(*arguments: Any, **named: Any) -> ssl.SSLContext:
        read.append(usual(*arguments, **named))
        return read[-1]

    monkeypatch.setattr(ssl, "create_default_context", create)
    with Client(url, None):
        assert [one.verify_mode for one in read] == [ssl.CERT_REQUIRED] * is_verified
