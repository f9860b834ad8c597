"""Many simulations side by side on the cores of this machine."""

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import extract_tb
from typing import Any

from stretto.errors import InputError, StrettoError
from stretto.experiments.finished import Finished, key_of
from stretto.experiments.on_ray import Connect, run_on_ray
from stretto.experiments.packing import Damaged
from stretto.experiments.progress import Say, Watcher, watching
from stretto.experiments.spec import RunSpec, run_spec
from stretto.sim.result import Result

Tell = Callable[[int, int, int], None]  # (index of the run, jobs done, jobs)


class RunFailed(StrettoError):
    """One of several simulations could not be finished; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Done:
    """One simulation that is over."""

    result: Result
    wall_s: float  # that it took, when it ran
    processor_s: float = 0.0  # of these, those that a core worked for it; 0: not known
    was_kept: bool = False  # it ran for an earlier command
    remark: str = ""  # what its keeping has to say


def run_all(
    specs: Sequence[RunSpec],
    workers: int = 0,
    show: bool = False,
    finished: Finished | None = None,
    say: Say | None = None,
    ray: Connect | None = None,
) -> list[Result]:
    """One result for each spec, in their order; everything else is as in `run_each`."""
    return [done.result for done in run_each(specs, workers, show, finished, say, ray)]


def run_each(
    specs: Sequence[RunSpec],
    workers: int = 0,
    show: bool = False,
    finished: Finished | None = None,
    say: Say | None = None,
    ray: Connect | None = None,
) -> list[Done]:
    """What became of each spec, in their order; `workers` 0: one for each core.

    ray: connects this process to a Ray cluster, which runs them instead of this machine. They are not kept.
    show: bars on a terminal; say: is given lines about the progress. finished: runs that are there are taken
    from it. Others are put there as soon as they end, so that neither an error nor ctrl-C loses them. The
    first error of any run ends all. An InputError is raised as it is, anything else as RunFailed.
    """
    done = _taken(specs, finished, say)
    rest = [index for index in range(len(specs)) if index not in done]
    to_run = [specs[index] for index in rest]
    workers = min(workers or cores(), len(to_run))
    with watching(to_run, len(done), show, say) as watcher:
        if ray and to_run:
            ran = _run_on_ray(ray, to_run, watcher)
        elif workers <= 1:
            ran = [_alone(index, spec, watcher, finished) for index, spec in enumerate(to_run)]
        else:
            ran = run_in_processes(to_run, workers, watcher, finished)
    for remark in dict.fromkeys(run.remark for run in ran if run.remark):
        if say is not None:
            say(remark)
    done.update(zip(rest, ran, strict=True))
    return [done[index] for index in range(len(specs))]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _taken(specs: Sequence[RunSpec], finished: Finished | None, say: Say | None) -> dict[int, Done]:
    """Those that are there, by index; what cannot be read is as good as not there."""
    done: dict[int, Done] = {}
    if finished is None:
        return done
    finished.tidy()
    for index, spec in enumerate(specs):
        try:
            stored = finished.take(spec)
        except Damaged as wrong:
            if say is not None:
                say(f"ignored, and simulated again: {wrong}")
            continue
        if stored is not None:
            done[index] = Done(*stored, was_kept=True)
    return done


def _run(index: int, spec: RunSpec, tell: Tell, finished: Finished | None) -> Done:
    key = None if finished is None else key_of(spec)  # now: sources and traces may change while it runs
    began, worked = time.perf_counter(), time.process_time()
    tell(index, 0, 0)
    try:
        result = run_spec(spec, lambda done, jobs: tell(index, done, jobs))
    except InputError:
        raise
    except StrettoError as failed:
        raise RunFailed(f"{spec.words}: {failed}") from failed
    except Exception as surprise:
        raise RunFailed(f"{spec.words}: {_in_a_line(surprise)}") from surprise
    done = Done(result, time.perf_counter() - began, time.process_time() - worked)
    if finished is None or key is None:
        return done
    return replace(done, remark=_keep(spec, key, done, finished))


def _keep(spec: RunSpec, key: str, done: Done, finished: Finished) -> str:
    """Put it to the others; a remark where that cannot be done, since the result is there all the same."""
    if key_of(spec) != key:
        return f"{spec.words}: not kept: the program or its input has changed meanwhile"
    try:
        finished.put(spec, key, done.result, done.wall_s, done.processor_s)
    except OSError as wrong:
        return f"not kept in {finished.folder}: {wrong.strerror}"
    except TypeError as wrong:
        return f"{spec.words}: not kept: {wrong}"
    return ""


def _in_a_line(error: Exception) -> str:
    """What went wrong and where: a traceback does not cross from process to process in one piece."""
    frames = extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _alone(index: int, spec: RunSpec, watcher: Watcher, finished: Finished | None) -> Done:
    done = _run(index, spec, watcher.advance, finished)
    watcher.finish(index, done.wall_s)
    return done


def run_in_processes(
    specs: Sequence[RunSpec], workers: int, watcher: Watcher, finished: Finished | None
) -> list[Done]:
    """What became of each spec, run in `workers` processes; the first error ends them all."""
    context = multiprocessing.get_context("spawn")  # a fork would take over locks of threads that it lacks
    before = set(multiprocessing.active_children())
    messages = context.Queue()
    with (
        ProcessPoolExecutor(workers, mp_context=context, initializer=_listen, initargs=(messages,)) as pool,
        _relayed(messages, watcher.advance),
    ):
        try:
            with _interrupts_wait():  # workers begin here, and are deaf to ctrl-C from their first moment on
                futures = [
                    pool.submit(_run_in_worker, index, spec, finished) for index, spec in enumerate(specs)
                ]
            position = {future: index for index, future in enumerate(futures)}
            for future in as_completed(futures):
                watcher.finish(position[future], future.result().wall_s)
        except BaseException as error:
            for worker in set(multiprocessing.active_children()) - before:
                worker.terminate()  # what still runs has become useless, and may run for hours
            pool.shutdown(cancel_futures=True)  # returns when all of them are gone
            if isinstance(error, BrokenProcessPool):
                raise RunFailed("a worker process has died; is there memory for so many at once?") from None
            raise
        return [future.result() for future in futures]


def _run_on_ray(connect: Connect, specs: Sequence[RunSpec], watcher: Watcher) -> list[Done]:
    ran = run_on_ray(connect, specs, watcher)
    for one, spec in zip(ran, specs, strict=True):
        if one.wrong:
            raise InputError(one.wrong) if one.is_input else RunFailed(f"{spec.words}: {one.wrong}")
    return [Done(one.result, one.wall_s) for one in ran if one.result is not None]


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Within it SIGINT does not reach this thread, nor ever the processes that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_told: Any = None  # in a worker process: where progress goes


def _listen(told: Any) -> None:
    """Runs once in each worker process."""
    global _told
    _told = told
    told.cancel_join_thread()  # progress that nobody reads any more must not keep a worker from ending
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches the parent too, which ends its workers
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """A worker whose parent was killed would simulate on for nothing, and then wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_in_worker(index: int, spec: RunSpec, finished: Finished | None) -> Done:
    return _run(index, spec, lambda *progress: _told.put(progress), finished)


@contextmanager
def _relayed(messages: Any, tell: Tell) -> Iterator[None]:
    """Pass on what the worker processes say until the block is left."""
    over = threading.Event()

    def relay() -> None:
        while not over.is_set():
            try:
                tell(*messages.get(timeout=0.2))
            except queue.Empty:
                continue
            except (EOFError, OSError):
                return

    listener = threading.Thread(target=relay, daemon=True)
    listener.start()
    try:
        yield
    finally:
        over.set()
        listener.join()
