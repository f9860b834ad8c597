"""Results as JSON: one object, the same text for equal values."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any


def json_text(value: Mapping[str, Any]) -> str:
    """Indented JSON; a number that is not finite becomes null, since JSON knows no others."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value
