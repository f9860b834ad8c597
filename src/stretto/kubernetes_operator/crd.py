"""The CustomResourceDefinition of `ElasticJob`, made from the schema of a job file.

What may change while a job runs, and what contradicts itself, is checked by the API server with rules of CEL.
Servers before 1.25 know no such rules. So the operator checks the same, and says so in a condition.
"""

from typing import Any

import yaml

from stretto.jobfile.schema import OPEN, resource_properties
from stretto.kubernetes_operator.elastic_job import GROUP, KIND, MUTABLE, PLURAL, VERSION

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}

SIZES_OF = "has({0}.elastic) && has({0}.elastic.sizes) ? {0}.elastic.sizes : []"
KEEPS_SIZES: Schema = {
    "rule": "has(self.elastic) == has(oldSelf.elastic) && "
    f"({SIZES_OF.format('self')}) == ({SIZES_OF.format('oldSelf')})",
    "message": "elastic.sizes cannot change, nor whether the job is elastic: delete the resource and create "
    "another one",
}

NOT_OF_A_RESOURCE = frozenset({"array", "hold"})  # several jobs; and `suspend` is the word for it


def elastic_schema() -> Schema:
    """The sizes of a job. All keys are known to the API server, whose rules compare them."""
    schema = {key: value for key, value in resource_properties()["elastic"].items() if key not in OPEN}
    rule = {
        "rule": "!has(self.min) || !has(self.max) || self.min <= self.max",
        "message": "elastic.min must be at most elastic.max",
    }
    return {**schema, "x-kubernetes-validations": [rule]}


def spec_schema() -> Schema:
    """What a spec may say: the keys of a job file, and `suspend`."""
    properties = {
        **{key: schema for key, schema in resource_properties().items() if key not in NOT_OF_A_RESOURCE},
        "elastic": elastic_schema(),
    }
    fixed = [key for key in properties if key not in MUTABLE]
    return {
        "type": "object",
        "required": ["run"],
        "properties": {"suspend": {"type": "boolean", "description": "Hold the job: it keeps no GPUs."}}
        | dict(sorted(properties.items())),
        # One rule for each key: the message names what was changed.
        "x-kubernetes-validations": [
            KEEPS_SIZES,
            *(
                {
                    "rule": f"has(self.{key}) ? has(oldSelf.{key}) && self.{key} == oldSelf.{key} "
                    f": !has(oldSelf.{key})",
                    "message": f"{key} cannot change: delete the resource and create another one",
                }
                for key in sorted(fixed)
                if _is_comparable(properties[key])
            ),
        ],
    }


def _is_comparable(schema: Schema) -> bool:
    """Whether rules can see it: what a schema leaves open, they cannot."""
    return "x-kubernetes-preserve-unknown-fields" not in schema


def status_schema() -> Schema:
    """What a resource shows of its job."""
    numbers = ("observedGeneration", "gpus", "minGpus", "maxGpus", "attempt", "restarts", "resizes")
    condition = {
        "type": "object",
        "required": ["type", "status"],
        "properties": dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"), TEXT)
        | {"observedGeneration": WHOLE},
    }
    return {
        "type": "object",
        "properties": {
            **dict.fromkeys(("job", "state", "reason", "message", "gpuType", "specDigest"), TEXT),
            **{key: {"type": "integer", "format": "int64"} for key in numbers},
            "nodes": {"type": "array", "items": TEXT},
            "conditions": {
                "type": "array",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    }


def definition() -> dict[str, Any]:
    """The manifest that an administrator applies."""
    columns = [
        ("State", "string", ".status.state", 0),
        ("GPUs", "integer", ".status.gpus", 0),
        ("Type", "string", ".status.gpuType", 0),
        ("Reason", "string", ".status.reason", 0),
        ("Job", "string", ".status.job", 1),
        ("Nodes", "string", ".status.nodes", 1),
        ("Age", "date", ".metadata.creationTimestamp", 0),
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "plural": PLURAL,
                "singular": "elasticjob",
                "shortNames": ["ej"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        # `kubectl scale` bounds how far a job may grow.
                        "scale": {
                            "specReplicasPath": ".spec.elastic.max",
                            "statusReplicasPath": ".status.gpus",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "priority": priority}
                        for name, kind, path, priority in columns
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "required": ["spec"],
                            "properties": {"spec": spec_schema(), "status": status_schema()},
                        }
                    },
                }
            ],
        },
    }


def definition_text() -> str:
    """The manifest as YAML."""

    class Plain(yaml.SafeDumper):
        """Without anchors, which people find hard to read."""

        def ignore_aliases(self, data: object) -> bool:
            """Write the same value again."""
            return True

    text: str = yaml.dump(definition(), Dumper=Plain, sort_keys=False, width=110)
    return text
