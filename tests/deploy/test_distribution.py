"""Wheel and source distribution: built from the repository, installed elsewhere, and used there."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.sockets, pytest.mark.torch, pytest.mark.long]

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def run(*words: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=1_200,
        check=False,
    )
    assert done.returncode == 0, (words, done.stdout[-2_000:], done.stderr[-2_000:])
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, built from what is committed and nothing else."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("dist")
    run("git", "clone", "--quiet", ROOT, folder / "source", cwd=folder)
    run(sys.executable, "-m", "build", "--outdir", folder, folder / "source", cwd=folder)
    return folder


def interpreter(version: str) -> str:
    """A Python of this version that can make environments; "" for none."""
    name = f"python{version}"
    pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/{name}"))
    for found in [*map(str, pyenv), shutil.which(name) or ""]:
        if found and subprocess.run([found, "-c", "import ensurepip, venv"], check=False).returncode == 0:
            return found
    return ""


def test_both_have_everything_and_nothing_of_a_machine(built: Path) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    wanted = (
        "stretto/py.typed",
        "stretto/examples/digits_cnn.py",
        "stretto/service/http/static/index.html",
        "stretto/service/http/static/vendor/LICENSE.preact",
    )
    assert [name for name in wanted if name not in names] == []
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert [name for name in names if "__pycache__" in name or name.startswith("tests")] == []
    with tarfile.open(source) as opened_source:
        inside = {name.partition("/")[2] for name in opened_source.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/stretto/__init__.py",
        "tests/conftest.py",
    } <= inside


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_simulates_and_serves_elsewhere(built: Path, tmp_path: Path, version: str) -> None:
    found = interpreter(version)
    if not found:
        pytest.skip(f"no Python {version} here")
    (wheel,) = built.glob("*.whl")
    run(found, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python, stretto = tmp_path / "venv" / "bin" / "python", tmp_path / "venv" / "bin" / "stretto"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[serve]", cwd=tmp_path)
    simulated = run(
        *(stretto, "simulate", "--cluster", "sia-hetero-64", "--trace", "demo", "--policy", "sia", "--json"),
        cwd=tmp_path,
    )
    assert json.loads(simulated)["completed"] == json.loads(simulated)["jobs"] > 0
    script = (
        "import os, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from stretto.demo.own_service import OwnService\n"
        "folder = Path('service').absolute(); folder.mkdir()\n"
        "service = OwnService(folder, ['--slots', '2'], ('-m', 'stretto.cli.app'))\n"
        "try:\n"
        "    service.begin()\n"
        "    with service.client() as client:\n"
        "        job = client.submit('{run: \"echo hello\"}')['id']\n"
        "        assert client.wait(job)['state'] == 'COMPLETED'\n"
        "        print(''.join(client.log(job)))\n"
        "finally:\n"
        "    service.end()\n"
    )
    assert "hello" in run(python, "-c", script, cwd=tmp_path)


def test_the_demo_runs_from_the_wheel_outside_the_repository(built: Path, tmp_path: Path) -> None:
    """PyTorch comes from the environment of the tests; Stretto itself from the wheel alone."""
    (wheel,) = built.glob("*.whl")
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "there"),
        wheel,
        cwd=tmp_path,
    )
    env = {"PYTHONPATH": str(tmp_path / "there")}
    home = run(sys.executable, "-c", "import stretto; print(stretto.__file__)", cwd=tmp_path, **env)
    assert home.startswith(str(tmp_path))
    shown = run(sys.executable, "-m", "stretto.cli.app", "demo", cwd=tmp_path, **env)
    assert "each once" in shown
