"""Answers as JSON: ASCII, so that whatever somebody wrote in a name can be sent, and never NaN."""

import json
from typing import Any

from fastapi.responses import JSONResponse


class Json(JSONResponse):
    """A JSON body; what a route returns as this is sent as it is."""

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
