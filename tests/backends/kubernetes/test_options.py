"""What is said of a cluster on the command line."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
import yaml
from tests.backends.kubernetes.in_memory import kubeconfig
from tests.backends.kubernetes.memory_server import MemoryServer

from stretto.backends.kubernetes.api import Api, configuration
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.options import Site
from stretto.backends.protocol import BackendUnreachable
from stretto.model import InputError


def test_without_its_package_the_backend_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "stretto.backends.kubernetes.backend", None)
    with pytest.raises(InputError, match=r"--backend kubernetes needs .*: install stretto\[kubernetes\]"):
        asyncio.run(KubernetesOptions().open(Site(state=tmp_path)))


def test_a_claim_for_all_jobs_needs_the_path_where_it_is_mounted(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--shared-claim data: expected --shared with the path, too"):
        asyncio.run(KubernetesOptions(shared_claim="data").open(Site(state=tmp_path)))


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
    with pytest.raises(InputError, match=r"backend.tolerations .*: expected KEY, KEY=VALUE or KEY:EFFECT"):
        KubernetesOptions(tolerations=(text,))


def with_plug_in(path: str, version: str, script: str) -> str:
    """The kubeconfig, whose user logs in by a plug-in."""
    config = yaml.safe_load(Path(path).read_text(encoding="ascii"))
    plug_in = {"apiVersion": f"client.authentication.k8s.io/{version}", "command": sys.executable}
    config["users"] = [{"name": "u", "user": {"exec": {**plug_in, "args": ["-c", script]}}}]
    Path(path).write_text(yaml.safe_dump(config), encoding="ascii")
    return path


@pytest.mark.processes
@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1"])
async def test_a_plug_in_of_every_version_logs_in_with_its_token(version: str, tmp_path: Path) -> None:
    server = await MemoryServer().open()
    # It gives as a token what it is asked for, as the API server finds it in a header.
    script = (
        "import json, os; asked = json.loads(os.environ['KUBERNETES_EXEC_INFO']); "
        "print(json.dumps({'status': {'token': asked['apiVersion'].rpartition('/')[2]}}))"
    )
    api = Api(configuration(with_plug_in(kubeconfig(tmp_path, server.url), version, script)))
    try:
        await api.version()
        assert server.calls[-1].headers["authorization"] == f"Bearer {version}"
    finally:
        await api.close()
        await server.close()


@pytest.mark.processes
async def test_a_plug_in_that_gives_no_token_is_said_in_a_line(tmp_path: Path) -> None:
    server = await MemoryServer().open()
    certificate = json.dumps({"status": {"clientCertificateData": "x", "clientKeyData": "y"}})
    config = with_plug_in(kubeconfig(tmp_path, server.url), "v1", f"print({certificate!r})")
    api = Api(configuration(config))
    try:
        with pytest.raises(BackendUnreachable, match="its plug-in that logs in gives no token"):
            await api.version()
    finally:
        await api.close()
        await server.close()
