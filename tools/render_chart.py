"""Render the Helm chart into the bases of kustomize, so that both have one source: `make manifests`.

Helm itself is not needed: its templates are those of Go, which `go_template` runs with the functions of
sprig. Of Helm's own additions the chart uses `include` alone, which is done here.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from stretto.kubernetes_operator.crd import definition_text
from stretto.kubernetes_operator.elastic_job import GROUP, PLURAL

ROOT = Path(__file__).resolve().parents[1]
CHART, BASES = ROOT / "deploy" / "helm" / "stretto", ROOT / "deploy" / "kustomize"
VARIANTS: dict[str, dict[str, Any]] = {  # a base of kustomize, and what it says beside the chart's values
    "sqlite": {},
    "postgresql": {"store": {"existingSecret": "stretto-store"}},
    "gate": {"gate": {"namespaces": ["team-a"]}},
    "operator": {"operator": {"enabled": True}},
}
DEFINITION_FILE = "elasticjobs.yaml"
# Of these bases only some files are wanted: they are installed beside one of the others.
BESIDE = {"operator": (DEFINITION_FILE, "operator.yaml")}
NAME = "stretto"  # of the release and of its namespace in the bases

DEFINITION = re.compile(r'\{\{- define "(?P<name>[\w.]+)" -\}\}\n(?P<body>.*?)\n\{\{- end -\}\}', re.DOTALL)
INCLUDE = re.compile(r'[ \n]*\{\{- include "(?P<name>[\w.]+)" [.$] \| nindent (?P<spaces>\d+) \}\}')
# An error of a template ends the process: so it is one of its own, which prints a line for each template.
PROGRAM = """
import json, sys
from pathlib import Path
import go_template
context = json.load(sys.stdin)
for path in sys.argv[1:]:
    print(json.dumps(go_template.render(Path(path), context).decode()), flush=True)
"""


class ChartError(Exception):
    """A template says that it cannot be rendered."""


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a chart with some of them replaced, level by level, as Helm does it."""
    both = dict(values)
    for key, change in changes.items():
        old = both.get(key)
        both[key] = merged(old, change) if isinstance(old, dict) and isinstance(change, dict) else change
    return both


def rendered(changes: Mapping[str, Any], name: str = NAME, namespace: str = NAME) -> dict[str, str]:
    """What each template gives, by its file's name; without those that give nothing. Raises ChartError."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    context = {
        "Values": merged(values, changes),
        "Chart": {"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
        "Release": {"Name": name, "Namespace": namespace, "Service": "kustomize"},
    }
    paths = [path for path in sorted(CHART.glob("templates/*")) if not path.name.startswith("_")]
    texts = _run(paths, context)
    return {path.name: text for path, text in zip(paths, texts, strict=True) if text.strip()}


def objects(changes: Mapping[str, Any], name: str = NAME, namespace: str = NAME) -> list[dict[str, Any]]:
    """All objects that the chart asks for."""
    texts = [text for file, text in rendered(changes, name, namespace).items() if file.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def definition_template() -> str:
    """The chart's definition of ElasticJob resources, as the operator writes it."""
    manifest = definition_text()
    head = f"metadata:\n  name: {PLURAL}.{GROUP}\n"
    if head not in manifest or "{{" in manifest:
        raise ChartError(f"the definition of {PLURAL}: expected `{head!r}` and nothing that a template reads")
    more = (
        "  annotations:\n"
        "    helm.sh/resource-policy: keep # else `helm uninstall` deletes the resources of all people\n"
        '  labels:\n    {{- include "stretto.labels" . | nindent 4 }}\n'
    )
    return (
        "{{- if and .Values.operator.enabled .Values.operator.definition -}}\n"
        "# Written by `make manifests` as `stretto operator --print-crd` prints it; do not edit.\n"
        f"{manifest.replace(head, head + more, 1)}{{{{- end }}}}\n"
    )


def base(variant: str) -> dict[str, str]:
    """The files of one base of kustomize, by name."""
    files = {
        file: f"# Rendered from deploy/helm by `make manifests`; do not edit.\n{text.strip()}\n"
        for file, text in rendered(VARIANTS[variant]).items()
        if file.endswith(".yaml") and file in BESIDE.get(variant, (file,))
    }
    if variant not in BESIDE:
        files["namespace.yaml"] = f"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAME}\n"
    listed = "".join(
        f"  - {file}\n" for file in sorted(files, key=lambda file: (file != "namespace.yaml", file))
    )
    files["kustomization.yaml"] = (
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
        f"resources:\n{listed}"
        "# Overlays say which image:\n"
        "# images: [{name: stretto, newName: registry.example/stretto, newTag: 0.1.0}]\n"
    )
    return files


def write() -> None:
    """Write all bases anew, and the chart's copy of the definition first."""
    (CHART / "templates" / DEFINITION_FILE).write_text(definition_template(), encoding="utf-8")
    for variant in VARIANTS:
        folder = BASES / variant
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.yaml"):
            path.unlink()
        for file, text in base(variant).items():
            (folder / file).write_text(text, encoding="utf-8")


def _run(paths: Sequence[Path], context: Mapping[str, Any]) -> list[str]:
    helpers = (CHART / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    bodies = {found["name"]: found["body"] for found in DEFINITION.finditer(helpers)}

    def included(found: re.Match[str]) -> str:
        # Within a helper the dot is what it was given, which is always the root.
        lines = re.sub(r"(?<=\{\{ )\.", "$.", bodies[found["name"]]).splitlines()
        return "".join(f"\n{' ' * int(found['spaces'])}{line}" for line in lines)

    with TemporaryDirectory() as folder:
        templates = [Path(folder) / path.name for path in paths]
        for template, path in zip(templates, paths, strict=True):
            template.write_text(INCLUDE.sub(included, path.read_text(encoding="utf-8")), encoding="utf-8")
        command = [sys.executable, "-c", PROGRAM, *map(str, templates)]
        done = run(command, input=json.dumps(context).encode(), capture_output=True, check=False)
    texts = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode:
        failed = paths[len(texts)].name
        raise ChartError(f"{failed}: {done.stderr.decode(errors='replace').strip()}")
    return [_without_empty_lines(text) for text in texts]


def _without_empty_lines(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


if __name__ == "__main__":
    write()
