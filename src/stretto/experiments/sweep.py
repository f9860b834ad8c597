"""Many simulations side by side on the cores of this machine."""

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stretto.experiments.spec import RunSpec, run_spec
from stretto.sim.result import Result

_told: Any = None  # in a worker process: where progress goes


def run_all(specs: Sequence[RunSpec], workers: int = 0, show: bool = True) -> list[Result]:
    """One result for each spec, in their order; `workers` 0: one for each core.

    The first error of any run ends all and is raised here.
    """
    workers = min(workers or os.cpu_count() or 1, len(specs))
    if workers <= 1:
        with _bars(specs, show) as tell:
            return [run_spec(spec, _telling(tell, index)) for index, spec in enumerate(specs)]
    context = multiprocessing.get_context("spawn")
    told = context.Manager().Queue()
    with (
        _bars(specs, show) as tell,
        ProcessPoolExecutor(workers, mp_context=context, initializer=_listen, initargs=(told,)) as pool,
        _relayed(told, tell),
    ):
        futures = {pool.submit(_run, index, spec): index for index, spec in enumerate(specs)}
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


Tell = Callable[[int, int, int], None]  # (index of the run, jobs done, jobs)


def _telling(tell: Tell, index: int) -> Callable[[int, int], None]:
    return lambda done, jobs: tell(index, done, jobs)


def _listen(told: Any) -> None:
    """Runs once in each worker process."""
    global _told
    _told = told


def _run(index: int, spec: RunSpec) -> Result:
    result = run_spec(spec, lambda done, jobs: _told.put((index, done, jobs)))
    _told.put((index, len(result.completed_s), len(result.completed_s)))
    return result


@contextmanager
def _bars(specs: Sequence[RunSpec], show: bool) -> Iterator[Tell]:
    """One progress bar a run on a terminal, nothing on a pipe."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, transient=True, disable=not show) as progress:
        bars = [progress.add_task(f"{spec.policy} · {_short(spec.trace)}", total=None) for spec in specs]

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
