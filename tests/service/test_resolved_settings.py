"""A service writes every setting that it decides with to its log when it starts."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.service.http.rig import play
from tests.service.http.test_first_token import answers

from stretto.policies.registry import load_policy
from stretto.service.config import Config
from stretto.service.emulated.options import EmulatedOptions
from stretto.service.eventlog import open_store
from stretto.service.scheduling.scheduler import scheduler_of, with_resolved_settings
from stretto.service.state.events import Configured
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


def test_a_setting_that_is_younger_than_a_log_means_in_it_what_was_done_then() -> None:
    now = Configured("stretto", defaults="current")
    resolved = with_resolved_settings(now, scheduler_of(now)).resolved
    older = {key: text for key, text in resolved.items() if key != "policy.crowded_exponent"}
    assert scheduler_of(replace(now, resolved=resolved)).policy == load_policy("stretto")
    of_log = scheduler_of(replace(now, resolved=older)).policy
    assert of_log == load_policy("stretto", crowded_exponent="none")
