"""What is known of a user who has logged in at an identity provider, and the session that carries it.

Nothing is kept of it: the cookie says everything, under a digest by the service's key, until the token that
it came from expires.
"""

import base64
import json
from dataclasses import dataclass

from stretto.service.state.records import Token

COOKIE_MARK = "id:"  # begins what stands in the place of a token's digest


@dataclass(frozen=True)
class Identity:
    """A user and its role, as a token said it. until_s: Unix time."""

    user: str
    role: str
    until_s: float

    @property
    def token(self) -> Token:
        """As a token of the service that nothing is kept of."""
        return Token("oidc", self.user, self.role, "", self.until_s)


def identity_session(identity: Identity) -> str:
    """What a cookie says of an identity."""
    document = json.dumps([identity.user, identity.role, identity.until_s]).encode()
    return COOKIE_MARK + base64.urlsafe_b64encode(document).decode().rstrip("=")


def identity_in(text: str) -> Identity:
    """The identity that a cookie of ours says."""
    encoded = text.removeprefix(COOKIE_MARK)
    user, role, until_s = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    return Identity(str(user), str(role), float(until_s))
