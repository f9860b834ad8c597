"""What receivers of webhooks need to know."""

from fastapi import APIRouter, Response

from stretto.service.http import schemas
from stretto.service.http.auth import Asked, Who
from stretto.service.http.problems import Json
from stretto.service.webhooks import in_text

router = APIRouter(prefix="/api/v1", tags=["jobs"])


@router.get("/webhook-secrets", response_model=schemas.WebhookSecrets)
async def webhook_secrets(service: Asked, caller: Who) -> Response:
    """The secrets by which one's own webhooks are signed, the newest first."""
    return Json({"secrets": [in_text(secret) for secret in service.secrets.of(caller.user)]})
