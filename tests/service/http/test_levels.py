"""Jobs that must be within a domain of the network: refused where nothing would keep them there."""

from pathlib import Path

import pytest
from tests.service.http.rig import a_rig, play

pytestmark = pytest.mark.sqlite


@pytest.mark.parametrize(
    ("policy", "level", "why"),
    [
        ("fifo", "rack", ""),
        ("fifo", "shelf", "resources.within shelf: expected one of zone, rack, nvlink_domain"),
        ("pollux", "rack", "resources.within rack: expected none: the policy pollux names nodes itself"),
    ],
)
def test_a_level_that_nothing_keeps_to_is_refused(tmp_path: Path, policy: str, level: str, why: str) -> None:
    async def story() -> None:
        text = f"run: python train.py\nresources: {{accelerators: 2, within: {level}}}\n"
        async with a_rig(tmp_path, decides=False, policy=policy) as rig, rig.client("ada") as ada:
            for path in ("/api/v1/jobs/dry-run", "/api/v1/jobs"):
                answer = await ada.post(path, json={"text": text})
                assert (answer.status_code == 422) is bool(why), answer.text
                assert why in answer.text

    play(story)
