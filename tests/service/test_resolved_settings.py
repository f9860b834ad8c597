"""A service writes every setting that it decides with to its log when it starts."""

from pathlib import Path

import pytest
from tests.service.http.rig import play
from tests.service.http.test_first_token import answers

from stretto.policies.registry import load_policy
from stretto.service.config import Config
from stretto.service.emulated.options import EmulatedOptions
from stretto.service.eventlog import open_store
from stretto.settings import texts_of

pytestmark = [pytest.mark.sockets, pytest.mark.sqlite]


def test_the_log_says_every_setting_that_a_service_decides_with(tmp_path: Path) -> None:
    async def story() -> None:
        config = Config(
            tmp_path / "state",
            port=0,
            backend=EmulatedOptions("gpu8-256"),
            policy="stretto",
            settings={"policy.growth": "2"},
            open_on_loopback=True,
        )
        await answers(config)
        with open_store(config.state / "stretto.db") as store:
            (configured,) = (entry for entry in store.read() if entry.kind == "Configured")
        assert configured.body["settings"] == {"policy.growth": "2"}
        expected = texts_of(load_policy("stretto", growth=2))
        decides = {f"policy.{name}": text for name, text in expected.items()}
        assert decides.items() <= configured.body["resolved"].items()

    play(story)
