"""A stand-in for the definition of ServiceMonitors, which is the Prometheus operator's.

It has the fields that the chart says, with the types, patterns and requirements of that operator's v1, and
some around them. All others are left out, so that a server prunes a field that it lacks.
"""

from typing import Any

TEXT, FLAG = {"type": "string"}, {"type": "boolean"}
DURATION = {
    "type": "string",
    "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
}


def _record(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, **({"required": [*required]} if required else {})}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


KEY = _record(("key",), key=TEXT, name=TEXT, optional=FLAG)  # of a Secret or a ConfigMap
SELECTOR = _record(
    matchLabels={"type": "object", "additionalProperties": TEXT},
    matchExpressions=_list(_record(("key", "operator"), key=TEXT, operator=TEXT, values=_list(TEXT))),
)
ENDPOINT = _record(
    port=TEXT,
    path=TEXT,
    interval=DURATION,
    scrapeTimeout=DURATION,
    scheme={"type": "string", "enum": ["http", "https"]},
    authorization=_record(type=TEXT, credentials=KEY),
    tlsConfig=_record(
        ca=_record(secret=KEY, configMap=KEY), caFile=TEXT, serverName=TEXT, insecureSkipVerify=FLAG
    ),
)


def definition() -> dict[str, Any]:
    """As an API server takes it."""
    spec = _record(
        ("endpoints", "selector"),
        endpoints=_list(ENDPOINT),
        selector=SELECTOR,
        jobLabel=TEXT,
        namespaceSelector=_record(any=FLAG, matchNames=_list(TEXT)),
    )
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": "ServiceMonitor", "plural": "servicemonitors", "singular": "servicemonitor"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _record(("spec",), spec=spec)},
                }
            ],
        },
    }
