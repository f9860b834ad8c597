"""Forecasts that a service keeps: what became of them is counted; `explain` has them where jobs are many."""

import asyncio
from math import inf
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.service.http.rig import a_rig, play

from stretto.service.forecast.corrections import DrawnInterval, Interval
from stretto.service.kept_forecasts import KeptForecasts

pytestmark = pytest.mark.sqlite

FOUR = "run: x\nname: {name}\nexpected_time: 1h\nresources: {{accelerators: '4'}}"


def test_what_became_of_each_first_forecast_is_counted(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("olga") as olga:
            forecasts: KeptForecasts = rig.service.forecasts
            jobs = [await rig.submit("ada", text=FOUR.format(name=f"j{number}")) for number in range(4)]
            await rig.until(lambda: len(rig.backend.started) == 8)  # two run, two wait
            now_s = rig.service.clock.now_s()
            soon, later = Interval(now_s, now_s, now_s + 500.0), Interval(now_s + 600.0, now_s + 600.0, inf)
            never = Interval(inf, inf, inf)
            said = ((soon, soon), (soon, later), (later, never), (soon, soon))
            forecasts.take(dict(zip(jobs, said, strict=True)), now_s)
            forecasts.take({jobs[0]: (later, later)}, now_s)  # a second one of the same job does not count
            for job in jobs[:2]:
                for index in range(4):
                    await rig.backend.finish(f"{job}.1.{index}", 0)
            await rig.until(lambda: len(rig.backend.started) == 16)
            assert forecasts.found == {
                ("end", "inside"): 1,  # of the first, which runs already: its start is none
                ("end", "early"): 1,
                ("start", "early"): 1,
                ("start", "inside"): 1,
            }
            assert forecasts.held() == {"start": {"inside": 1, "of": 2}, "end": {"inside": 1, "of": 2}}
            found = {
                (sample.name, *sorted(sample.labels.values())): sample.value
                for family in text_string_to_metric_families((await olga.get("/metrics")).text)
                for sample in family.samples
            }
            assert found["stretto_forecasts_total", "inside", "start"] == 1.0
            assert found["stretto_forecasts_total", "early", "end"] == 1.0
            assert found["stretto_forecasts_total", "end", "late"] == 0.0

    play(story)


@pytest.mark.slow
@pytest.mark.processes
def test_forecasts_are_told_corrected_once_enough_has_become_of_earlier_ones(tmp_path: Path) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            forecasts: KeptForecasts = rig.service.forecasts
            job = await rig.submit("ada", text=FOUR.format(name="j"))
            await rig.until(lambda: len(rig.backend.started) == 4)
            drawn = (await ada.post("/api/v1/whatif", json={})).json()["present"]["jobs"][0]["end"]
            now_s = rig.service.clock.now_s()
            span = Interval(now_s + 3600.0, now_s + 3000.0, now_s + 4000.0)
            for _ in range(30):
                late_s = now_s + 36_000.0  # by nine hours
                forecasts.record.note("end", DrawnInterval(now_s, span), span, late_s)
            forecasts.take({job: (span, span)}, now_s)
            assert forecasts.latest[job][0] == span  # it has started
            assert forecasts.latest[job][1].high_s == pytest.approx(now_s + 36_000.0)
            (told,) = (await ada.post("/api/v1/whatif", json={})).json()["present"]["jobs"]
            assert told["end"]["middle"] == pytest.approx(drawn["middle"], abs=60.0)
            assert told["end"]["high"] > drawn["high"] + 3600.0
            explained = (await ada.get(f"/api/v1/jobs/{job}/explain")).json()
            assert explained["end"]["high"] > drawn["high"] + 3600.0
            await rig.backend.finish(f"{job}.1.0", 0)
            for index in range(1, 4):
                await rig.backend.finish(f"{job}.1.{index}", 0)
            await rig.until(lambda: forecasts.found)
            assert forecasts.found == {("end", "early"): 1}
            assert len(forecasts.record.rows["end"]) == 31  # and goes into the record, as it was drawn

    play(story)


@pytest.mark.slow
@pytest.mark.processes
def test_an_explanation_of_one_of_many_jobs_has_what_was_foreseen_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with a_rig(tmp_path) as rig, rig.client("ada") as ada:
            jobs = [await rig.submit("ada", text=FOUR.format(name=f"j{number}")) for number in range(4)]
            await rig.until(lambda: len(rig.backend.started) == 8)
            last = rig.service.state.jobs[jobs[3]]
            await rig.until(lambda: rig.service.status_of(last).reason not in ("", "NOT_CONSIDERED"))
            waits, runs = f"/api/v1/jobs/{jobs[3]}/explain", f"/api/v1/jobs/{jobs[0]}/explain"
            simulated = (await ada.get(waits)).json()
            monkeypatch.setattr("stretto.service.http.routes.forecast.MOST_SIMULATED", 3)
            unforeseen = (await ada.get(waits)).json()
            assert (unforeseen["start"], unforeseen["draws"]) == (None, 0)  # none was made yet
            await rig.service.forecasts.look_ahead()
            told = (await ada.get(waits)).json()
            assert told.keys() == simulated.keys()
            same = ("reason", "evidence", "state", "basis", "never", "prices")
            assert {key: told[key] for key in same} == {key: simulated[key] for key in same}
            assert [one["id"] for one in told["holders"]] == [one["id"] for one in simulated["holders"]]
            rows = (await ada.post("/api/v1/whatif", json={})).json()["present"]["jobs"]
            (foreseen,) = [row["start"] for row in rows if row["id"] == jobs[3]]
            for key in ("low", "middle", "high"):  # the same futures, some seconds later
                assert told["start"][key] == pytest.approx(foreseen[key], abs=120.0)
            assert told["assumed"][0].startswith("as foreseen ")
            kept: KeptForecasts = rig.service.forecasts
            unix_s = rig.service.state.unix_s
            assert (told["draws"], told["foreseen"]) == (9, pytest.approx(kept.reached_s + unix_s, abs=0.01))
            assert "; starts in about " in told["headline"]
            assert (await ada.get(runs)).json()["end"]["middle"] > told["now"]

    play(story)


def test_nothing_is_foreseen_while_no_job_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stretto.service.kept_forecasts.FIRST_S", 0.01)

    async def story() -> None:
        async with a_rig(tmp_path) as rig:
            asked = []

            async def look_ahead() -> None:
                asked.append(len(rig.service.state.open))

            monkeypatch.setattr(rig.service.forecasts, "look_ahead", look_ahead)
            running = asyncio.create_task(rig.service.forecasts.run())
            await asyncio.sleep(0.1)
            assert asked == []
            await rig.submit("ada")
            await rig.until(lambda: asked)
            assert asked == [1]
            running.cancel()

    play(story)
