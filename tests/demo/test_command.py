"""What `stretto demo` tells its service of a cluster."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto.cli.app import app
from stretto.cli.demo import serve_options
from stretto.model import InputError
from stretto.service.backend_registry import backend_names


def test_the_help_names_every_backend_on_which_jobs_really_run() -> None:
    text = CliRunner().invoke(app, ["demo", "--help"]).output
    assert all(name in text for name in backend_names() if name != "emulated"), text


def test_the_service_of_a_demo_is_told_what_was_said_of_its_cluster() -> None:
    said: dict[str, str | tuple[str, ...]] = {"--image": "torch:2.9", "--namespace": "", "--partition": ()}
    assert serve_options("kubernetes", said) == ["--backend", "kubernetes", "--image", "torch:2.9"]
    partitions: dict[str, str | tuple[str, ...]] = {"--partition": ("a", "b"), "--image": ""}
    assert serve_options("slurm", partitions) == [
        *("--backend", "slurm", "--partition", "a", "--partition", "b")
    ]
    assert serve_options("local", {}) == []
    claimed: dict[str, str | tuple[str, ...]] = {"--shared-claim": "lab"}
    assert serve_options("kubernetes", claimed, Path("/shared")) == [
        *("--backend", "kubernetes", "--shared-claim", "lab", "--set", "backend.shared_path=/shared")
    ]


def test_what_means_nothing_to_a_cluster_is_refused_in_a_line() -> None:
    with pytest.raises(InputError, match="--shared-claim lab: expected --shared"):
        serve_options("kubernetes", {"--shared-claim": "lab"})
    with pytest.raises(InputError, match="--image: means something with --backend kubernetes only"):
        serve_options("slurm", {"--image": "torch:2.9"})
