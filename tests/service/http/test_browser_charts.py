"""Charts of a job's page in a real browser, of an answer that the test writes: a made training."""

from typing import Any

import pytest
from tests.service.http.chromium import fits

pytestmark = [pytest.mark.processes, pytest.mark.large]

POINTS = [
    {
        "at_s": 10.0 * n,
        "step": 100 * n,
        "epoch": n // 4,
        "loss": 2.5 / (1 + n),
        "metric": 0.1 * n,
        "batch": 64,
    }
    for n in range(9)
]
TRAINING = {
    "now_s": 100.0,
    "unix_s": 1.7e9,
    "points": [{**POINTS[-1], "batch": 128} if point is POINTS[-1] else point for point in POINTS],
    "resizes": [
        {
            "at_s": 0.0,
            "gpus_before": 0,
            "gpus": 1,
            "gpu_type": "a100",
            "how": "start",
            "trains_after_s": 4.25,
            "lost_s": 4.25,
            "reason": "sia decided so",
        },
        {
            "at_s": 50.0,
            "gpus_before": 1,
            "gpus": 4,
            "gpu_type": "a100",
            "how": "in place",
            "trains_after_s": 6.0,
            "lost_s": 0.12,
            "reason": "sia decided so: its round was due",
        },
    ],
    "measured": [{"gpu_type": "a100", "gpus": 1, "steps_per_s": 5.25, "over_s": 40.0}],
    "believed": [{"gpu_type": "a100", "gpus": gpus, "steps_per_s": 5.0 * gpus**0.9} for gpus in (1, 2, 4, 8)],
}


@pytest.fixture
def charts(page: Any) -> Any:
    page.route("**/api/v1/jobs/1/training", lambda route: route.fulfill(json=TRAINING))
    page.goto("/jobs/1")
    page.get_by_role("heading", name="Loss").wait_for()
    return page


def test_every_curve_has_a_title_a_unit_and_is_read_by_keys(charts: Any) -> None:
    wanted = {
        "Size, GPUs": "4 GPUs a100",
        "Loss, as the training reports it": "at step 800",
        "Metric, as the training reports it": "0.8",
        "Batch size, samples of a step, on all GPUs": "128 samples a step",
    }
    for name, says in wanted.items():
        picture = charts.get_by_role("slider", name=name, exact=True)
        picture.focus()
        picture.press("End")
        assert says in picture.get_attribute("aria-valuetext")
    assert fits(charts)


def test_goodput_is_shown_as_it_was_measured_over_what_is_fitted(charts: Any) -> None:
    figure = charts.locator("figure.chart", has=charts.get_by_role("heading", name="Goodput"))
    assert figure.get_by_text("steps of the initial batch a second").count() == 1
    assert figure.locator("path.curve").count() == 1
    assert figure.locator("i.spot").count() == 1
    names = figure.locator(".names li").all_inner_texts()
    assert names == ["a100, fitted", "a100, measured"]
    picture = figure.get_by_role("slider")
    picture.focus()
    picture.press("Home")
    read = [picture.get_attribute("aria-valuetext")]
    picture.press("ArrowRight")
    read.append(picture.get_attribute("aria-valuetext"))
    assert sorted(read) == ["5 a second, 1 GPU a100, fitted", "5.25 a second, 1 GPU a100, measured"]
    # The dot lies where the curve would: a twentieth above it, on a scale that ends above 32 a second.
    dot, curve = figure.locator("i.spot").bounding_box(), figure.locator("path.curve").bounding_box()
    assert dot["x"] + dot["width"] / 2 == pytest.approx(curve["x"], abs=3)
    assert dot["y"] + dot["height"] / 2 == pytest.approx(curve["y"] + curve["height"], abs=6)


def test_each_resize_has_its_cost(charts: Any) -> None:
    rows = charts.get_by_role("region", name="resizes").locator("tbody tr")
    newest, first = (rows.nth(row).locator("td").all_inner_texts() for row in (0, 1))
    assert newest[1:] == [
        "1 → 4",
        "a100",
        "in place",
        "6.0 s",
        "0.12 s",
        "0.48 GPU-s",
        "sia decided so: its round was due",
    ]
    assert first[3:7] == ["start", "4.3 s", "4.3 s", "4.25 GPU-s"]
    charts.get_by_text("2 changes cost 4.73 GPU-s together").wait_for()
