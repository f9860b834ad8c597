"""What jobs find of the environment of whoever runs them."""

from pathlib import Path

import pytest

from stretto.agent.inherited_env import inherited

from .agents import Agent


@pytest.mark.parametrize(
    ("name", "also", "is_there"),
    [
        pytest.param("PATH", (), True, id="what every program needs"),
        pytest.param("LC_ALL", (), True, id="the language"),
        pytest.param("NCCL_SOCKET_IFNAME", (), True, id="settings of a training's libraries"),
        pytest.param("PGPASSWORD", (), False, id="a password of the service"),
        pytest.param("AWS_SECRET_ACCESS_KEY", (), False, id="keys of the service"),
        pytest.param("DATABASE_URL", (), False, id="a name that nobody knows"),
        pytest.param("NVIDIA_API_KEY", (), False, id="what sounds like a secret among known names"),
        pytest.param("DATASETS", ("DATASETS",), True, id="a name that the admin adds"),
        pytest.param("WANDB_MODE", ("WANDB_*",), True, id="names that the admin's pattern matches"),
        pytest.param("NVIDIA_API_KEY", ("NVIDIA_*",), True, id="a secret that the admin wants to give"),
        pytest.param("STRETTO_TOKEN", ("*",), False, id="never what the service itself was told"),
    ],
)
def test_jobs_inherit(name: str, also: tuple[str, ...], is_there: bool) -> None:
    assert (name in inherited({name: "value"}, also)) is is_there


@pytest.mark.processes
def test_a_worker_inherits_known_names_of_its_agent_and_those_that_it_is_told_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGPASSWORD", "WANDB_MODE", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    agent = Agent(tmp_path / "state").begin("--pass-env", "WANDB_*")
    try:
        agent.start("j.1.0", "env")
        agent.ended("j.1.0")
        names = {line.partition("=")[0] for line in agent.log("j.1.0").splitlines()}
        assert {"WANDB_MODE", "OMP_NUM_THREADS", "PATH"} <= names
        assert "PGPASSWORD" not in names
    finally:
        agent.end()
