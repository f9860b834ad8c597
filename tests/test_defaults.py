"""What is shipped for a service takes the policy that a person gets who chooses none."""

from pathlib import Path

import pytest
import yaml

from stretto import defaults
from stretto.policies import POLICIES

ROOT = Path(__file__).parents[1]


def test_the_default_policy_is_one_of_ours() -> None:
    assert defaults.POLICY in POLICIES


@pytest.mark.parametrize("file", ["deploy/helm/stretto/values.yaml", "deploy/systemd/service.yaml"])
def test_an_installed_service_takes_the_default_policy(file: str) -> None:
    assert yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["policy"] == defaults.POLICY
