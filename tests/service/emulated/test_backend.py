import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stretto.backends.protocol import NoSuchWorker, StartRefused
from stretto.model import InputError
from stretto.service.emulated.truth import Truths
from stretto.service.scheduling.estimates import limits_of, work_left
from stretto.service.state import events as happened
from stretto.sim.settings import SimSettings

from .stage import CLUSTER, Stage

HOUR = "run: x\nresources: {accelerators: 2}\nexpected_time: 1h\n"
ELASTIC = "run: x\nresources: {accelerators: 1}\nelastic: {min: 1, max: 4}\nexpected_time: 1h\n"
RESNET = (
    "run: x\nmodel: resnet18-cifar10\nelastic: {min: 1, max: 8}\n"
    "batch: {policy: adaptive, init: 256}\nresources: {accelerators: 2}\n"
)
INFERS = (
    "run: x\nmodel: resnet18-cifar10\npurpose: batch-inference\nelastic: {min: 1, max: 8}\n"
    "batch: {init: 256}\nstop: {steps: 1000}\nresources: {accelerators: 2}\n"
)
SERVES = (
    "run: x\nmodel: resnet18-cifar10\npurpose: serving\nelastic: {min: 1, max: 8}\nexpected_time: 1h\n"
    "serving: {latency: 100ms, requests_per_s: 1000}\nresources: {accelerators: 1}\n"
)
TWO = ((0, 1), (0, 2))


def played(play: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await play()

    asyncio.run(run())


def test_a_job_that_says_how_long_it_takes_takes_so_long() -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", HOUR)
        stage.go_to(10.0)
        names = await stage.start("1", 1, TWO)
        stage.go_to(3609.0)
        assert [(await stage.shown(name)).phase for name in names] == ["running", "running"]
        stage.go_to(3610.1)
        for name in names:
            shown = await stage.shown(name)
            assert (shown.phase, shown.status, shown.stopped) == ("ended", 0, False)
            assert shown.ended_s == pytest.approx(3610.0)
        assert stage.reports("1")[-1]["finished"] is True

    played(play)


def test_it_begins_only_once_all_its_peers_are_there() -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", HOUR)
        names = await stage.start("1", 1, TWO)
        await stage.backend.stop(names[0], 30.0)  # and it does not go on with one of two
        stage.go_to(7200.0)
        assert (await stage.shown(names[0])).status == 143
        assert (await stage.shown(names[1])).phase == "running"

    played(play)


def test_who_is_stopped_goes_on_later_from_where_it_was_after_a_restart_that_costs() -> None:
    async def play() -> None:
        stage = Stage(SimSettings(restart_s=50.0))
        stage.submit("1", HOUR)
        for name in await stage.start("1", 1, TWO):
            stage.go_to(600.0)
            await stage.backend.stop(name, 30.0)
        assert stage.reports("1")[-1] == {"work_left_s": 3000.0}
        stage.log_writer.record(happened.AttemptClosed("1", 1, "left"))
        stage.go_to(1000.0)
        names = await stage.start("1", 2, TWO)
        assert (await stage.shown(names[0])).phase == "starting"
        stage.go_to(1000.0 + 50.0 + 2999.0)
        assert (await stage.shown(names[0])).phase == "running"
        stage.go_to(1000.0 + 50.0 + 3000.1)
        assert (await stage.shown(names[0])).status == 0

    played(play)


@pytest.mark.parametrize(("grace_s", "status", "left_s"), [(30.0, 143, 3000.0), (5.0, 137, 3600.0)])
def test_who_saves_for_longer_than_the_grace_is_killed_and_loses_it(
    grace_s: float, status: int, left_s: float
) -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", HOUR + "labels: {emulated.saving_s: '20'}\n")
        names = await stage.start("1", 1, TWO)
        stage.go_to(600.0)
        for name in names:
            await stage.backend.stop(name, grace_s)
        assert (await stage.shown(names[0])).phase == "running"
        stage.go_to(600.0 + min(grace_s, 20.0) + 0.1)
        assert [(await stage.shown(name)).status for name in names] == [status, status]
        assert stage.reports("1")[-1]["work_left_s"] == left_s

    played(play)


def test_a_killed_worker_loses_what_was_not_saved() -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", HOUR)
        names = await stage.start("1", 1, TWO)
        stage.go_to(600.0)
        await stage.backend.signal(names[0], 9)
        assert (await stage.shown(names[0])).status == 137
        assert stage.reports("1")[-1]["work_left_s"] == 3600.0
        with pytest.raises(NoSuchWorker):
            await stage.backend.stop("7.1.0", 0.0)

    played(play)


@pytest.mark.slow
def test_a_training_tells_its_limits_before_and_its_true_speed_once_it_runs() -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", RESNET)
        record = stage.log_writer.state.jobs["1"]
        truth = Truths(stage.log_writer.state.cluster, SimSettings()).run_of(record).run.truth  # type: ignore
        limits = limits_of(record, CLUSTER)
        assert limits is not None
        assert limits.max_local.tolist() == truth.limits.max_local.tolist()
        assert limits.single_per_s == pytest.approx(truth.limits.single_per_s)
        await stage.start("1", 1, TWO)
        stage.go_to(truth.restart_s + 2.0)
        (kind, nodes, gpus, local, passes, grad_s, step_s), *_ = record.learned.points
        assert (kind, nodes, gpus, passes) == (0, 1, 2, 1)
        true_s, sync_s = truth.step(0, (2,), int(local))
        assert (grad_s, step_s) == pytest.approx((true_s - sync_s, true_s))
        stage.go_to(3600.0)
        assert record.learned.latest["epoch"] > 0
        assert record.uses_sdk is False  # it cannot change its size in place, and says so

    played(play)


def test_a_job_is_resized_in_place_where_the_settings_say_what_that_costs() -> None:
    async def play() -> None:
        stage = Stage(SimSettings(resize_s=2.0, restart_s=40.0))
        state = stage.log_writer.state
        stage.submit("1", ELASTIC)
        (first,) = await stage.start("1", 1, [(0, 1)])
        stage.go_to(0.1)
        assert any(isinstance(event, happened.WorkersReady) for _, event in stage.log_writer.log)
        stage.log_writer.record(happened.Generation("1", 1, 1, (first,)))
        stage.go_to(100.1)
        (second,) = await stage.start("1", 1, [(0, 2)], first=1)
        stage.go_to(145.0)
        assert state.jobs["1"].workers[second].life.value == "ready"
        stage.go_to(200.1)
        stage.log_writer.record(happened.Generation("1", 1, 2, (first, second), first))
        stage.go_to(202.2)
        assert state.jobs["1"].workers[second].joined == 2
        assert (state.jobs["1"].accounting.switches, state.jobs["1"].accounting.lost_s) == (1, 2.0)
        # 200 s alone, a pause of 2 s, then twice as fast
        stage.go_to(202.1 + 1699.0)
        assert (await stage.shown(first)).phase == "running"
        stage.go_to(202.1 + 1701.0)
        assert [(await stage.shown(name)).status for name in (first, second)] == [0, 0]

    played(play)


def test_who_is_not_in_the_next_generation_ends_and_nobody_in_it_means_all_leave() -> None:
    async def play() -> None:
        stage = Stage(SimSettings(resize_s=1.0))
        stage.submit("1", ELASTIC)
        first, second = await stage.start("1", 1, TWO)
        stage.go_to(1.0)
        stage.log_writer.record(happened.Generation("1", 1, 1, (first, second)))
        stage.go_to(50.0)
        stage.log_writer.record(happened.Generation("1", 1, 2, (first,), first))
        assert (await stage.shown(second)).status == 0
        stage.go_to(100.0)
        stage.log_writer.record(happened.Generation("1", 1, 3, ()))
        assert (await stage.shown(first)).status == 143
        assert stage.log_writer.state.jobs["1"].checkpoint

    played(play)


def test_generations_count_anew_in_every_attempt() -> None:
    async def play() -> None:
        stage = Stage(SimSettings(resize_s=1.0, restart_s=10.0))
        stage.submit("1", ELASTIC)
        (first,) = await stage.start("1", 1, [(0, 1)])
        stage.go_to(1.0)
        stage.log_writer.record(happened.Generation("1", 1, 1, (first,)))
        stage.go_to(601.0)
        stage.log_writer.record(happened.Generation("1", 1, 2, ()))
        stage.log_writer.record(happened.AttemptClosed("1", 1, "left"))
        (again,) = await stage.start("1", 2, [(0, 1)])
        stage.go_to(620.0)
        stage.log_writer.record(happened.Generation("1", 2, 1, (again,)))
        stage.go_to(620.0 + 3000.1)
        assert (await stage.shown(again)).status == 0

    played(play)


def test_what_was_done_before_a_resize_is_known_after_a_restart_of_the_service() -> None:
    async def play() -> None:
        stage = Stage(SimSettings(resize_s=0.0))
        stage.submit("1", ELASTIC)
        first, second = await stage.start("1", 1, TWO)
        stage.go_to(1.0)
        stage.log_writer.record(happened.Generation("1", 1, 1, (first,)))
        stage.go_to(1001.0)
        stage.log_writer.record(happened.Generation("1", 1, 2, (first, second), first))
        stage.go_to(1100.0)
        again = Stage(SimSettings(resize_s=0.0), [*stage.log_writer.log])
        again.now_s = stage.now_s
        again.go_to(1001.0 + 2600.0 / 2 - 1.0)
        assert (await again.shown(first)).phase == "running"
        again.go_to(1001.0 + 2600.0 / 2 + 1.0)
        assert (await again.shown(first)).status == 0

    played(play)


def test_a_worker_whose_readiness_was_not_written_down_says_so_again() -> None:
    async def play() -> None:
        stage = Stage(SimSettings(resize_s=0.0))
        stage.submit("1", ELASTIC)
        (name,) = await stage.start("1", 1, [(0, 1)])
        stage.go_to(1.0)
        log = [(at, event) for at, event in stage.log_writer.log if type(event).__name__ != "WorkersReady"]
        again = Stage(SimSettings(resize_s=0.0), log)
        assert again.log_writer.state.jobs["1"].workers[name].life.value == "ready"

    played(play)


def test_a_world_that_is_made_again_from_the_log_goes_on_as_it_was() -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", HOUR)
        stage.submit("2", RESNET)
        await stage.start("1", 1, TWO)
        await stage.start("2", 1, ((1, 1), (1, 2)))
        stage.go_to(1500.0)
        again = Stage(SimSettings(), [*stage.log_writer.log])
        again.now_s = stage.now_s
        assert {one.id for one in await again.backend.workers()} == {"1.1.0", "1.1.1", "2.1.0", "2.1.1"}
        ends_s = []
        for world in (stage, again):
            world.go_to(50_000.0)
            ends_s.append([(await world.shown(name)).ended_s for name in ("1.1.0", "2.1.0")])
        assert ends_s[0][0] == pytest.approx(3600.0)
        assert ends_s[1] == pytest.approx(ends_s[0], rel=0.01)

    played(play)


def test_ended_workers_are_forgotten_and_so_are_their_jobs() -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", HOUR)
        names = await stage.start("1", 1, TWO)
        await stage.backend.forget(names[0])
        assert len(await stage.backend.workers()) == 2  # one that runs stays
        stage.go_to(4000.0)
        assert {one.id for one in await stage.backend.changed_workers()} == set(names)
        assert await stage.backend.changed_workers() == []
        stage.log_writer.record(happened.Ended("1", "COMPLETED", 0))
        for name in names:
            await stage.backend.forget(name)
        assert stage.backend.jobs == {}
        assert b"emulated worker" in (await stage.backend.log(names[0])).data

    played(play)


def test_a_log_at_its_end_waits_while_its_worker_lives_and_lets_others_go_on() -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", HOUR)
        name, _ = await stage.start("1", 1, TWO)
        end = (await stage.backend.log(name)).next_offset
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        piece = await stage.backend.log(name, end, wait_s=0.05)
        assert (piece.data, piece.complete) == (b"", False)
        assert turns > 1, "a reader who asks again at once would take all of the service's time"
        waiting = asyncio.create_task(stage.backend.log(name, end, wait_s=60.0))
        stage.go_to(4000.0)
        await stage.backend.changed_workers()
        piece = await waiting
        assert piece.data or piece.complete
        task.cancel()

    played(play)


@pytest.mark.parametrize("label", ["emulated.duration_s: soon", "emulated.duration_s: '-1'"])
def test_a_label_that_is_no_time_is_refused_with_its_value(label: str) -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", HOUR + f"labels: {{{label}}}\n")
        with pytest.raises(InputError, match=r"label emulated.duration_s: expected seconds above 0"):
            stage.backend.job_of(stage.log_writer.state.jobs["1"])

    played(play)


def test_time_that_stands_still_by_mistake_is_told_to_whoever_waits() -> None:
    def mistake() -> None:
        raise ZeroDivisionError

    async def play() -> None:
        stage = Stage(SimSettings())
        stage.backend.do_at(0.0, "1", mistake)
        await asyncio.sleep(0.01)
        with pytest.raises(ZeroDivisionError):
            await stage.backend.changes(-1, wait_s=0.01)

    played(play)


@pytest.mark.parametrize(("policy", "waits_s"), [("sia", 20.0), ("fifo", 0.0)])
def test_short_runs_beforehand_delay_a_job_where_the_policy_looks_at_what_they_tell(
    policy: str, waits_s: float
) -> None:
    async def play() -> None:
        stage = Stage(SimSettings(profile_s=20.0))
        stage.log_writer.record(happened.Configured(policy))
        stage.go_to(5.0)
        stage.submit("1", RESNET)
        record = stage.log_writer.state.jobs["1"]
        assert record.learned.profile
        assert max(record.not_before_s - 5.0, 0.0) == waits_s

    played(play)


def test_a_job_that_infers_passes_its_items_forward_and_is_twice_as_fast_on_two_workers() -> None:
    taken: dict[int, float] = {}

    async def play(workers: int) -> None:
        stage = Stage(SimSettings())
        stage.submit("1", INFERS)
        record = stage.log_writer.state.jobs["1"]
        truth = Truths(stage.log_writer.state.cluster, SimSettings()).run_of(record).run.truth  # type: ignore
        names = await stage.start("1", 1, TWO[:workers])
        stage.go_to(truth.restart_s + 1e6)
        shown = await stage.shown(names[0])
        assert stage.reports("1")[-1]["finished"] is True
        assert stage.reports("1")[-1]["samples"] == pytest.approx(1000 * 256)
        taken[workers] = shown.ended_s - truth.restart_s

    for workers in (1, 2):
        played(lambda workers=workers: play(workers))  # type: ignore[misc]
    assert taken[2] == pytest.approx(taken[1] / 2)


@pytest.mark.parametrize("label", ["emulated.duration_s: abc", "emulated.saving_s: '-3'"])
def test_a_job_whose_labels_make_no_sense_is_refused_and_keeps_no_service_from_beginning(label: str) -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", f"run: x\nresources: {{accelerators: 2}}\nlabels: {{{label}}}\n")
        with pytest.raises(StartRefused, match=r"label emulated.*: expected seconds above 0"):
            await stage.start("1", 1, TWO)
        stage.log_writer.record(happened.WorkersRan("1", ("1.1.0", "1.1.1")))  # as an older service had it
        Stage(SimSettings(), [*stage.log_writer.log])

    played(play)


def test_one_that_promises_more_than_any_gpus_keep_serves_late() -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", SERVES.replace("requests_per_s: 1000", "requests_per_s: 1e9"))
        await stage.start("1", 1, TWO)
        stage.go_to(100.0)
        told: Any = stage.reports("1")[-1]
        assert told["requests"]["all"]["late"] == told["requests"]["all"]["answered"] > 0

    played(play)


@pytest.mark.parametrize("batch", [128, 512])
def test_a_training_ends_after_the_steps_that_its_file_states(batch: int) -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit(
            "1", f"run: true\nmodel: resnet18-cifar10\nbatch: {{init: {batch}}}\nstop: {{steps: 1000}}\n"
        )
        record = stage.log_writer.state.jobs["1"]
        truth = Truths(stage.log_writer.state.cluster, SimSettings()).run_of(record).run.truth  # type: ignore
        names = await stage.start("1", 1, TWO[:1])
        step_s, _ = truth.step(0, (1,), batch)
        stage.go_to(truth.restart_s + 500 * step_s)
        left = work_left(record)
        stage.go_to(truth.restart_s + 1e6)
        assert (await stage.shown(names[0])).ended_s == pytest.approx(1000 * step_s + truth.restart_s)
        last: Any = stage.reports("1")[-1]
        assert last["finished"] is True
        assert last["progress_steps"] == pytest.approx(1000)
        assert 0 < left < 1000

    played(play)


@pytest.mark.parametrize(("workers", "late"), [(1, 1.0), (2, 0.0)])
def test_one_that_serves_does_so_for_its_time_and_tells_how_many_requests_were_late(
    workers: int, late: float
) -> None:
    async def play() -> None:
        stage = Stage(SimSettings())
        stage.submit("1", SERVES)
        record = stage.log_writer.state.jobs["1"]
        alone = Truths(stage.log_writer.state.cluster, SimSettings()).run_of(record).run.truth  # type: ignore
        per_s = 1.5 * alone.largest_batch(0) / alone.step(0, (), alone.largest_batch(0))[0]
        stage.submit("2", SERVES.replace("requests_per_s: 1000", f"requests_per_s: {per_s!r}"))
        names = await stage.start("2", 1, TWO[:workers])
        stage.go_to(alone.restart_s + 3601.0)
        shown = await stage.shown(names[0])
        assert shown.ended_s == pytest.approx(3600.0 + alone.restart_s)
        told: Any = stage.reports("2")[-1]
        assert told["finished"] is True
        assert told["requests"]["all"]["answered"] == pytest.approx(3600.0 * per_s, abs=1)
        assert told["requests"]["all"]["late"] == pytest.approx(late * 3600.0 * per_s, abs=1)
        points: list[Any] = [point for each in stage.reports("2") for point in each.get("points", [])]  # type: ignore[attr-defined]
        assert {point[2] for point in points} == {1, alone.largest_batch(0), alone.largest_batch(0) + 1}
        assert not any("points" in report for report in stage.reports("1")), (
            "one that has not run knows nothing"
        )

    played(play)
