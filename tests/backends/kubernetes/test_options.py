"""What is said of a cluster on the command line."""

import asyncio
import sys
from pathlib import Path

import pytest

from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.options import Site
from stretto.model import InputError


def test_without_its_package_the_backend_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "stretto.backends.kubernetes.backend", None)
    with pytest.raises(InputError, match=r"--backend kubernetes needs .*: install stretto\[kubernetes\]"):
        asyncio.run(KubernetesOptions().open(Site(state=tmp_path)))


@pytest.mark.parametrize(
    ("text", "toleration"),
    [
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("team=ml", {"key": "team", "operator": "Equal", "value": "ml"}),
        ("gpu:NoExecute", {"key": "gpu", "operator": "Exists", "effect": "NoExecute"}),
    ],
)
def test_a_toleration_is_as_the_api_takes_it(text: str, toleration: dict[str, str]) -> None:
    assert KubernetesOptions(tolerations=(text,)).parsed_tolerations == [toleration]


@pytest.mark.parametrize("text", ["", "=ml", "team:Never", ":NoSchedule"])
def test_a_toleration_that_is_none_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(InputError, match=r"--toleration .*: expected KEY, KEY=VALUE or KEY:EFFECT"):
        KubernetesOptions(tolerations=(text,))
