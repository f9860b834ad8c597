"""Many simulations side by side on a Ray cluster: each a task of one core, on whichever node has one free.

What a run reads is read here, so that nodes need Stretto and nothing else. What is wrong with a run's words
is said before anything is sent. When this process ends, however it does, Ray ends what it began there.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from stretto.errors import InputError, StrettoError, one_line
from stretto.experiments.finished import sources_digest
from stretto.experiments.progress import Watcher
from stretto.experiments.spec import RunSpec, set_up
from stretto.sim.fairness import with_fairness
from stretto.sim.result import Result
from stretto.sim.run import Setup, simulate
from stretto.traces import Workload

PACKAGE = __name__.partition(".")[0]

Connect = Callable[[], object]  # this process to a Ray cluster; raises InputError


@dataclass(frozen=True)
class Ran:
    """What came of one task: a result, or why there is none."""

    result: Result | None
    wall_s: float
    wrong: str = ""
    is_input: bool = False  # what is wrong is the input


def run_on_ray(connect: Connect, specs: Sequence[RunSpec], watcher: Watcher) -> list[Ran]:
    """What came of each spec, in their order; the first that goes wrong ends all. Raises InputError."""
    prepared = [set_up(spec) for spec in specs]
    connect()
    import ray

    try:
        for module in {type(setup.policy).__module__ for _, setup in prepared}:
            if module.partition(".")[0] != PACKAGE:  # of a file that nodes do not have
                ray.cloudpickle.register_pickle_by_value(sys.modules[module])
        task = ray.remote(num_cpus=1)(run_there)
        digest = sources_digest()
        workloads = put_once([workload for workload, _ in prepared])
        answers = [
            task.remote(digest, workload, setup, spec.fairness)
            for spec, workload, (_, setup) in zip(specs, workloads, prepared, strict=True)
        ]
        return gathered(answers, watcher)
    finally:
        ray.shutdown()  # ends the tasks that are left


def put_once(workloads: Sequence[Workload]) -> list[Any]:
    """Where each lies in Ray's store, in their order; the same jobs of many runs lie there once."""
    import ray

    there: dict[bytes, Any] = {}
    references = []
    for workload in workloads:
        as_bytes = ray.cloudpickle.dumps(workload)
        key = sha256(as_bytes).digest()
        if key not in there:
            there[key] = ray.put(workload)
        references.append(there[key])
    return references


def gathered(answers: list[Any], watcher: Watcher) -> list[Ran]:
    """All answers as they come in, up to the first that is wrong."""
    import ray

    ran_by_answer: dict[Any, Ran] = {}
    position = {answer: index for index, answer in enumerate(answers)}
    waiting = list(answers)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1)
        for answer in done:
            ran = ran_by_answer[answer] = arrived(answer)
            if ran.result is None:
                return [ran_by_answer.get(each, Ran(None, 0.0)) for each in answers]
            watcher.finish(position[answer], ran.wall_s)
    return [ran_by_answer[answer] for answer in answers]


def arrived(answer: Any) -> Ran:
    """What a task gives; raises InputError where the nodes cannot run it."""
    import ray

    try:
        ran: Ran = ray.get(answer)
    except ray.exceptions.RayError as failure:
        text = one_line(failure)
        if "ModuleNotFoundError" in text or "ImportError" in text:
            raise InputError(f"--ray: Stretto cannot be imported on a node: {last_error(failure)}") from None
        return Ran(None, 0.0, wrong=text)
    return ran


def last_error(failure: BaseException) -> str:
    """The last line of a traceback that came as text."""
    lines = [line.strip() for line in str(failure).splitlines() if "Error" in line]
    return lines[-1] if lines else one_line(failure)


def run_there(digest: str, workload: Workload, setup: Setup, fairness: bool) -> Ran:
    """One simulation, in a process of Ray's."""
    if sources_digest() != digest:
        return Ran(None, 0.0, "the Stretto on a node of the Ray cluster is another than the one here", True)
    began_s = time.perf_counter()
    try:
        result = simulate(workload, setup)
        result = with_fairness(result, workload, setup) if fairness else result
    except InputError as wrong:
        return Ran(None, 0.0, str(wrong), True)
    except StrettoError as wrong:
        return Ran(None, 0.0, str(wrong))
    return Ran(result, time.perf_counter() - began_s)
