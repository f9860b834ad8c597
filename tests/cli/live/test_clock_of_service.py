"""Which clock times are of, where that of an emulated service is faster than real time."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.cli.service import ServiceClock
from stretto.demo.own_service import OwnService, until

from ..ran import Stretto

pytestmark = [pytest.mark.processes, pytest.mark.large]

SAID = "times are of the service's clock: 1200 s there are 1 s here, and it shows "
HOUR_MIN = 60


@pytest.fixture
def fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnService]:
    cluster = tmp_path / "box.yaml"
    cluster.write_text("gpu_types: {t4: }\nnodes: [{type: t4, gpus: 4}]\n")
    options = ["--backend", "emulated", "--cluster", str(cluster), "--pace", "1200", "--policy", "fifo"]
    service = OwnService(tmp_path, options, ("-m", "stretto.cli.app"), dict(os.environ))
    service.begin()
    monkeypatch.setenv("STRETTO_URL", service.url)
    monkeypatch.delenv("STRETTO_TOKEN", raising=False)
    yield service
    service.end()


def minutes(text: str) -> int:
    """The first time of day in a text, in minutes."""
    found = re.search(r"\b(\d\d):(\d\d)\b", text)
    assert found is not None, text
    return 60 * int(found[1]) + int(found[2])


def test_times_are_of_the_clock_of_the_service_and_each_answer_says_so(
    fast: OwnService, stretto: Stretto, tmp_path: Path
) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("run: x\nexpected_time: 1000h\nresources: {accelerators: 4}\n")
    job = stretto("submit", path).out.strip()
    with fast.client() as client:
        until(lambda: client.describe(job)["gpus"] == 4, what="it runs")
        until(lambda: client.describe(job)["age_s"] > 6 * 3600, what="six hours have passed there")
    for words in (
        ("describe", job),
        ("list",),
        ("top",),
        ("explain", job),
        ("whatif",),
        ("submit", "--dry-run", path),
    ):
        ran = stretto(*words)
        assert ran.err.count(SAID) == 1, (words, ran.err)
    described = stretto("describe", job)
    submitted = dict(line.split("\t", 1) for line in described.out.splitlines())["submitted"]
    shown = described.err.partition(SAID)[2]
    # Submitted some hours ago by that clock. By the clock on the wall it would be six hours more.
    ago_min = float(submitted.rpartition(" ago")[0].rpartition(" ")[2].removesuffix("h").removesuffix("d"))
    ago_min *= 60 if "h ago" in submitted else 24 * 60
    off = (minutes(shown) - minutes(submitted) - ago_min) % (24 * 60)
    assert min(off, 24 * 60 - off) < 3 * HOUR_MIN, (submitted, shown)
    assert SAID not in stretto("describe", job, "--json").out


def test_of_a_service_in_real_time_nothing_is_said() -> None:
    assert ServiceClock(0.0).words == ""
