"""Lives of clusters by chance, and their usage as the route sums it up."""

import random
from typing import Any

from tests.service.scene import Scene

from stretto.service.eventlog import Store, Unrecorded
from stretto.service.eventlog.archive import rows_of, spell_of
from stretto.service.state import events as happened
from stretto.service.state.events import body_of, subject_of
from stretto.service.state.gpu_prices import GpuPrices
from stretto.service.state.state import State
from stretto.service.state.usage import US_PER_S
from stretto.service.state.usage_report import Holding, Question, Report, first_us_of, holdings_of

BEGAN_S = 1.0e9  # when scenes begin: 2001-09-09T01:46:40Z


def report_of(
    state: State,
    now_s: float,
    question: Question,
    store: Store | None = None,
    prices: GpuPrices | None = None,
) -> list[dict[str, Any]]:
    """As the route does: what is in the state, and what has left it."""
    holdings = holdings_of(state, now_s)
    if store is not None:
        numbers = {record.number for record in state.jobs.values()}
        holdings += [
            Holding(job, owner, spell_of(row))
            for number, job, owner, row in store.ended.used(None, None)
            if number not in numbers
        ]
    now_us = round((BEGAN_S + now_s) * US_PER_S)
    prices = prices or GpuPrices()
    report = Report(question, now_us, price=prices.at if prices else None, changes_us=prices.changes_us())
    report.begin(first_us_of(holdings, now_us))
    for holding in holdings:
        report.add(holding)
    return report.as_json()


class Life:
    """A scene in which jobs come, grow, fail and leave, by chance; what leaves goes to a store."""

    def __init__(self, seed: int, store: Store) -> None:
        self.random, self.store, self.scene = random.Random(seed), store, Scene(nodes=3)
        self.number = 0

    def step(self) -> None:
        scene, draw = self.scene, self.random
        scene.now_s += draw.choice([0.0, draw.random(), draw.uniform(1, 2000), draw.uniform(1e4, 3e5)])
        jobs = scene.state.open_jobs()
        if draw.random() < 0.25 or not jobs:
            self.number += 1
            queue, user = draw.choice(["", "low", "high"]), draw.choice(["ada", "bob", "eve"])
            scene.submit(str(self.number), 1, elastic=(1, 8), queue=queue, user=user)
            return
        job = draw.choice(jobs).id
        match draw.randrange(9):
            case 0 | 1 | 2:
                self.resize(job)
            case 3:
                scene.tell(happened.Checkpointed(job, 1, "/c"))
            case 4:
                for name in scene.names(job):
                    scene.end(name, draw.choice([0, 1, 137]))
            case 5:
                scene.tell(happened.Requeued(job) if draw.random() < 0.5 else happened.Cancelled(job))
            case 6:
                node = draw.randrange(3)
                if node in scene.silent:
                    scene.answer(node)
                else:
                    scene.silence(node)
                    scene.bury(node)
            case 7:
                queue = draw.choice(["low", "high", "default"])
                is_set = queue not in scene.state.queues or draw.random() < 0.5
                bounds = happened.QueueSet(queue, 8, is_default=queue == "default")
                scene.tell(bounds if is_set else happened.QueueDeleted(queue))
            case 8:
                self.retire()
        scene.reconcile()

    def resize(self, job: str) -> None:
        scene = self.scene
        assert scene.state.placement is not None
        up = [index for index, node in enumerate(scene.state.nodes) if node.up]
        own = scene.state.wanted(job)
        free = {index: 0b1111 & ~int(scene.state.placement.busy[index]) for index in up}
        if own is not None:
            free |= {
                index: free.get(index, 0) | mask for index, mask in zip(own.nodes, own.masks, strict=True)
            }
        masks = {f"n{index}": mask & self.random.randrange(16) for index, mask in free.items()}
        scene.give(**{f"_{job}": {node: mask for node, mask in masks.items() if mask} or None})

    def retire(self) -> None:
        state = self.scene.state
        running = {worker.job for worker in self.scene.running.values()}  # of those on silent nodes
        event = happened.Retired(tuple(job for job in state.ended if job not in running))
        if event.jobs:
            self.store.ended.add(rows_of(state, event))
            self.scene.tell(event)

    def append(self) -> None:
        """All of it into the log of the store."""
        log = zip(self.scene.log, self.scene.times, strict=True)
        rows = [Unrecorded(at_s, type(one).__name__, subject_of(one), body_of(one)) for one, at_s in log]
        self.store.append(rows, 0)
