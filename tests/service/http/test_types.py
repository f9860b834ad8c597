"""A value of another type than the interface's document says is refused, not read as something near it."""

from pathlib import Path
from typing import Any

import pytest
from tests.service.http.rig import a_rig, play

pytestmark = pytest.mark.sqlite


@pytest.mark.parametrize(
    ("method", "path", "body", "key"),
    [
        ("PUT", "/priority-classes/usual", {"value": 1, "default": 0}, "default"),
        ("PUT", "/priority-classes/usual", {"value": True}, "value"),
        ("PUT", "/queues/team", {"borrow_gpus": False}, "borrow_gpus"),
        ("PUT", "/queues/team", {"quota_gpus": "3"}, "quota_gpus"),
        ("PUT", "/shares/users/ada", {"shares": True}, "shares"),
        ("PUT", "/reservations/r", {"end": "1e10", "gpus": 1, "gpu_type": "a100", "user": "ada"}, "end"),
        ("POST", "/tokens", {"name": "new", "user": "ada", "expires_in_s": "60"}, "expires_in_s"),
        ("POST", "/whatif", {"draws": True}, "draws"),
        ("POST", "/jobs", {"text": "run: 'true'", "name": 1}, "name"),
    ],
)
def test_a_value_of_another_type_is_refused(
    tmp_path: Path, method: str, path: str, body: dict[str, Any], key: str
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("root") as client:
            answer = await client.request(method, f"/api/v1{path}", json=body)
            assert answer.status_code == 422, answer.text
            assert key in answer.json()["detail"]

    play(story)
