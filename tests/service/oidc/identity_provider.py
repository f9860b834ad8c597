"""An identity provider on loopback that lets everybody in, and can be told to do it wrongly."""

import base64
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

jwt = pytest.importorskip("jwt", reason="PyJWT is not installed")
pytest.importorskip("cryptography", reason="cryptography is not installed")

from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: E402

CLIENT, SECRET = "stretto", "s3cret"


class IdentityProvider:
    """Its keys, what its tokens claim, and what it was asked. A context manager."""

    def __init__(self) -> None:
        self.keys = {"first": new_key()}
        self.kid = "first"
        self.claims: dict[str, Any] = {"preferred_username": "ada", "groups": ["staff"]}
        self.lasts_s = 600.0
        self.wrong: dict[str, Any] = {}  # claims that differ in ID tokens of logins
        self.wrong_iss = ""  # of the way back
        self.is_away = False
        self.says_method = True  # of its keys
        self.error = ""  # in the place of a code
        self.asked: list[str] = []
        self.codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.answer(self, "")

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                provider.answer(self, self.rfile.read(length).decode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "IdentityProvider":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def settings(self, **more: Any) -> dict[str, Any]:
        """A file of `stretto serve --oidc`."""
        roles = {"admin": ["heads"], "operator": ["ops"], "user": ["staff"]}
        return {"issuer": self.issuer, "client_id": CLIENT, "name": "Our lab", "roles": roles, **more}

    def token(self, key: Any = None, kid: str = "", algorithm: str = "RS256", **claims: Any) -> str:
        """A token as it would sign it, but for what is said."""
        now = time.time()
        usual = {
            "iss": self.issuer,
            "sub": "1234",
            "aud": CLIENT,
            "iat": now,
            "exp": now + self.lasts_s,
            **self.claims,
        }
        body = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        signer = key if key is not None else self.keys[self.kid]
        return str(jwt.encode(body, signer, algorithm=algorithm, headers={"kid": kid or self.kid}))

    def answer(self, request: BaseHTTPRequestHandler, body: str) -> None:
        url = urlsplit(request.path)
        self.asked.append(url.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if self.is_away:
            return reply(request, 503, {})
        if url.path == "/.well-known/openid-configuration":
            places = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
            urls = {name: self.issuer + path for name, path in places.items()}
            return reply(request, 200, {"issuer": self.issuer, **urls})
        if url.path == "/keys":
            keys = [jwk_of(kid, key) for kid, key in self.keys.items()]
            for key in keys if not self.says_method else ():
                del key["alg"]
            return reply(request, 200, {"keys": keys})
        if url.path == "/authorize":
            code = f"code-{len(self.codes)}"
            self.codes[code] = query
            back = {"code": code, "state": query["state"], "iss": self.wrong_iss or self.issuer}
            if self.error:
                back = {"error": self.error, "state": query["state"]}
            request.send_response(302)
            request.send_header("location", f"{query['redirect_uri']}?{urlencode(back)}")
            request.send_header("content-length", "0")
            return request.end_headers()
        assert url.path == "/token"
        form = {name: values[0] for name, values in parse_qs(body).items()}
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if (
            asked is None
            or challenge != asked["code_challenge"]
            or form["redirect_uri"] != asked["redirect_uri"]
            or request.headers.get("authorization") not in (None, f"Basic {basic}")
        ):
            return reply(request, 400, {"error": "invalid_grant"})
        token = self.token(**{"nonce": asked["nonce"], **self.wrong})
        return reply(request, 200, {"id_token": token, "access_token": "opaque", "token_type": "Bearer"})


def reply(request: BaseHTTPRequestHandler, status: int, document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    request.send_response(status)
    request.send_header("content-type", "application/json")
    request.send_header("content-length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def jwk_of(kid: str, key: rsa.RSAPrivateKey) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    return {**document, "kid": kid, "use": "sig", "alg": "RS256"}
