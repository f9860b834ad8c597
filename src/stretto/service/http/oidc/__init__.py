"""Which identity provider vouches for users, and what do its tokens say? `provider` needs PyJWT."""

from stretto.service.http.oidc.settings import OidcSettings, read_oidc

__all__ = ["OidcSettings", "read_oidc"]
