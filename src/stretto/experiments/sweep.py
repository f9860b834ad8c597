"""Many simulations side by side on the cores of this machine."""

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any

from stretto.experiments.spec import RunSpec, run_spec
from stretto.model import InputError, StrettoError
from stretto.sim.result import Result

Tell = Callable[[int, int, int], None]  # (index of the run, jobs done, jobs)


class RunFailed(StrettoError):
    """One of several simulations could not be finished; the message says which, and why."""


def run_all(specs: Sequence[RunSpec], workers: int = 0, show: bool = False) -> list[Result]:
    """One result for each spec, in their order; `workers` 0: one for each core; `show`: bars on a terminal.

    The first error of any run ends all: an InputError as it is, anything else as RunFailed.
    """
    workers = min(workers or cores(), len(specs))
    with _bars(specs, show) as tell:
        if workers <= 1:
            return [_run(index, spec, tell) for index, spec in enumerate(specs)]
        return _run_beside(specs, workers, tell)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(index: int, spec: RunSpec, tell: Tell) -> Result:
    try:
        result = run_spec(spec, lambda done, jobs: tell(index, done, jobs))
    except InputError:
        raise
    except StrettoError as failed:
        raise RunFailed(f"{spec.words}: {failed}") from failed
    except Exception as surprise:
        raise RunFailed(f"{spec.words}: {_in_a_line(surprise)}") from surprise
    tell(index, len(result.completed_s), len(result.completed_s))
    return result


def _in_a_line(error: Exception) -> str:
    """What went wrong and where: a traceback does not cross from process to process in one piece."""
    frames = extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _run_beside(specs: Sequence[RunSpec], workers: int, tell: Tell) -> list[Result]:
    context = multiprocessing.get_context("spawn")  # a fork would take over locks of threads that it lacks
    before = set(multiprocessing.active_children())
    told = context.Queue()
    with (
        ProcessPoolExecutor(workers, mp_context=context, initializer=_listen, initargs=(told,)) as pool,
        _relayed(told, tell),
    ):
        futures = [pool.submit(_run_in_worker, index, spec) for index, spec in enumerate(specs)]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - before:
                worker.terminate()  # what still runs has become useless, and may run for hours
            if isinstance(error, BrokenProcessPool):
                raise RunFailed("a worker process has died; is there memory for so many at once?") from None
            raise
        return [future.result() for future in futures]


_told: Any = None  # in a worker process: where progress goes


def _listen(told: Any) -> None:
    """Runs once in each worker process."""
    global _told
    _told = told
    told.cancel_join_thread()  # progress that nobody reads any more must not keep a worker from ending
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches the parent too, which ends its workers


def _run_in_worker(index: int, spec: RunSpec) -> Result:
    return _run(index, spec, lambda *progress: _told.put(progress))


@contextmanager
def _bars(specs: Sequence[RunSpec], show: bool) -> Iterator[Tell]:
    """One progress bar a run on standard error, or nothing."""
    if not show:
        yield lambda index, done, jobs: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        titles = [Text(f"{spec.policy} · {_short(spec.trace)}").markup for spec in specs]
        bars = [progress.add_task(title, total=None) for title in titles]

        def tell(index: int, done: int, jobs: int) -> None:
            progress.update(bars[index], completed=done, total=jobs)

        yield tell


@contextmanager
def _relayed(told: Any, tell: Tell) -> Iterator[None]:
    """Pass on what the worker processes say until the block is left."""
    over = threading.Event()

    def relay() -> None:
        while not over.is_set():
            try:
                tell(*told.get(timeout=0.2))
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


def _short(trace: str) -> str:
    return "/".join(trace.split("/")[-2:]).removesuffix(".csv")
