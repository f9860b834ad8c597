"""The CustomResourceDefinition of `ElasticJob`, made from the keys of a job file.

What may change while a job runs, and what contradicts itself, is checked by the API server with rules of CEL.
Servers before 1.25 know no such rules. So the operator checks the same, and says so in a condition.
"""

from typing import Any

import yaml

from stretto.jobfile.spec import PLAIN_KEYS
from stretto.jobfile.stretto_file import KEYS
from stretto.kubernetes_operator.elastic_job import GROUP, KIND, MUTABLE, PLURAL, VERSION

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TRUTH: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer"}
WHOLE_OR_TEXT: Schema = {"x-kubernetes-int-or-string": True}
ANY: Schema = {"x-kubernetes-preserve-unknown-fields": True}  # checked by the service
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
OBJECT: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

MOST_SIZES = 1_000  # chosen
SIZES_OF = "has({0}.elastic) && has({0}.elastic.sizes) ? {0}.elastic.sizes : []"
KEEPS_SIZES: Schema = {
    "rule": "has(self.elastic) == has(oldSelf.elastic) && "
    f"({SIZES_OF.format('self')}) == ({SIZES_OF.format('oldSelf')})",
    "message": "elastic.sizes cannot change, nor whether the job is elastic: delete the resource and create "
    "another one",
}

NOT_OF_A_RESOURCE = frozenset({"array", "hold"})  # several jobs; and `suspend` is the word for it
OF_KEY: dict[str, Schema] = {
    **dict.fromkeys(("name", "queue", "setup", "workdir"), TEXT),
    "run": {"type": "string", "minLength": 1},
    **dict.fromkeys(("envs", "labels", "slurm"), OBJECT),
    "priority": WHOLE_OR_TEXT,
    "resources": OBJECT,
    "elastic": {
        "type": "object",
        "properties": {
            "min": {"type": "integer", "minimum": 1},
            "max": {"type": "integer", "minimum": 1},
            # Bounded, as are rules that compare it: the API server refuses rules that may cost too much.
            "sizes": {"type": "array", "maxItems": MOST_SIZES, "items": {"type": "integer", "minimum": 1}},
        },
        "x-kubernetes-validations": [
            {
                "rule": "!has(self.min) || !has(self.max) || self.min <= self.max",
                "message": "elastic.min must be at most elastic.max",
            }
        ],
    },
    **dict.fromkeys(("batch", "stop", "checkpoint", "restart", "kubernetes"), OBJECT),
    "preemptible": TRUTH,
    **dict.fromkeys(("deadline", "grace_period", "max_time", "start_after", "expected_time"), WHOLE_OR_TEXT),
    **dict.fromkeys(("rewards", "depends_on", "notify"), ANY),
}
OF_TYPE: dict[type, Schema] = {bool: TRUTH, int: WHOLE, float: {"type": "number"}}


def spec_schema() -> Schema:
    """What a spec may say: the keys of a job file, and `suspend`."""
    keys = [key for key in KEYS if key not in NOT_OF_A_RESOURCE]
    properties = {key: OF_KEY.get(key) or _of_plain_key(key) for key in keys}
    fixed = [key for key in keys if key not in MUTABLE]
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


def _of_plain_key(key: str) -> Schema:
    """The type of a key that is read as its declaration says."""
    return OF_TYPE.get(type(PLAIN_KEYS[key].default), TEXT)


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
