"""Figures for Prometheus. Labels are bounded: types, routes, lenders, budgets; no jobs, users or nodes."""

import time
from collections import Counter as Count
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from stretto.backends.protocol import GpuUse
from stretto.service.gpu_use import mean_busy
from stretto.service.http.connections import Connections
from stretto.service.service import Service
from stretto.service.state import events as happened
from stretto.service.state.budgets import Level
from stretto.service.state.events import Event
from stretto.service.state.lenders import nodes_of_lenders
from stretto.service.state.records import NodeRecord
from stretto.service.state.state import State
from stretto.service.state.status import JobState, state_of

WAIT_BUCKETS_S = (1, 5, 15, 60, 300, 900, 3_600, 14_400, 43_200, 86_400, 604_800)
DECISION_BUCKETS_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)
REQUEST_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 60)
FRESH_S = 1.0  # for which a figure over all jobs is good enough; chosen: scrapers ask every 15 s
RESIZES = frozenset({"grow", "shrink", "move"})


disable_created_metrics()  # type: ignore[no-untyped-call]  # when a series began is of no use here, and doubles the text


class Metrics:
    """Counts since this process began, and gauges of what is now."""

    def __init__(self, service: Service, connections: Connections) -> None:
        self.service = service
        self.registry = CollectorRegistry()
        new: dict[str, Any] = {"namespace": "stretto", "registry": self.registry}
        ProcessCollector(namespace="stretto", registry=self.registry)
        self.submits = Counter("submits", "Submissions, by what became of them.", ["result"], **new)
        self.refused = Counter(
            "refused_requests", "Requests that were refused, by status.", ["status"], **new
        )
        self.requests = Histogram(
            "request_seconds",
            "Time to answer, by route; what waits on purpose is left out.",
            ["method", "route"],
            buckets=REQUEST_BUCKETS_S,
            **new,
        )
        self.streams = Gauge("streams", "Streams of events and logs that are open.", **new)
        self.events = Counter("events", "Events written to the log, by kind.", ["kind"], **new)
        self.decisions = Counter("decisions", "Decisions.", **new)
        self.decision_s = Histogram("decision_seconds", "Time to decide.", buckets=DECISION_BUCKETS_S, **new)
        self.resizes = Counter("resizes", "Changes of size or place decided, by kind.", ["kind"], **new)
        self.restarts = Counter("restarts", "Attempts of jobs after their first.", **new)
        self.webhooks = Counter("webhooks", "Webhooks, by what became of them.", ["result"], **new)
        self.wait_s = Histogram(
            "queue_wait_seconds",
            "From submission to the first start, by kind of job.",
            ["kind"],
            buckets=WAIT_BUCKETS_S,
            **new,
        )
        for result in ("accepted", "again", "refused"):
            self.submits.labels(result)
        for result in ("delivered", "given_up"):
            self.webhooks.labels(result)
        for kind in sorted(RESIZES):
            self.resizes.labels(kind)
        self.registry.register(Now(service))
        self.registry.register(Lines(connections))
        service.log_writer.listeners.append(self.heard)

    def heard(self, told: Sequence[tuple[int, Event]]) -> None:
        """Count what happened; it is folded already."""
        state = self.service.state
        for _, event in told:
            self.events.labels(type(event).__name__).inc()
            if isinstance(event, happened.Decided):
                self.decisions.inc()
                self.decision_s.observe(event.took_ms / 1e3)
                for action in event.actions:
                    if action["verb"] in RESIZES:
                        self.resizes.labels(action["verb"]).inc()
            elif isinstance(event, happened.WebhookDone):
                self.webhooks.labels("given_up" if event.why else "delivered").inc()
            elif isinstance(event, happened.WorkersWanted):
                record = state.jobs.get(event.job)
                if record is None:
                    continue
                if record.attempt != event.attempt or record.next_worker != len(event.workers):
                    continue  # newcomers of an attempt that goes on
                if event.attempt > 1:
                    self.restarts.inc()
                else:
                    wait_s = max(state.at_s - record.job.submitted_s, 0.0)
                    self.wait_s.labels(record.spec.kind.value).observe(wait_s)

    def text(self) -> bytes:
        """All of it in the text format of Prometheus."""
        return generate_latest(self.registry)


class Now(Collector):
    """Gauges that are made when they are asked for; those over all jobs at most once in a while."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.jobs: Count[str] = Count()
        self.jobs_at = -FRESH_S

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """The gauges."""
        state = self.service.state
        if time.monotonic() - self.jobs_at >= FRESH_S:
            going = Count(state_of(state, record).value for record in state.open_jobs())
            self.jobs = Count(state.ends) + going
            self.jobs_at = time.monotonic()
        jobs = GaugeMetricFamily("stretto_jobs", "Jobs by state.", labels=["state"])
        for job_state in JobState:
            jobs.add_metric([job_state.value], self.jobs[job_state.value])
        yield jobs
        gpus = GaugeMetricFamily("stretto_gpus", "GPUs by type and state.", labels=["type", "state"])
        ending = self.service.reconciler.ending_gpus()
        for (gpu_type, word), count in sorted(gpus_by_state(state, ending).items()):
            gpus.add_metric([gpu_type, word], count)
        yield gpus
        up = float(self.service.log_writer.keeps_up)
        yield GaugeMetricFamily("stretto_store_up", "1 while the store takes what is written.", value=up)
        calendar = state.calendar
        yield CounterMetricFamily(
            "stretto_clock_jumps", "Times that the time of day was set.", value=calendar.jumps
        )
        yield GaugeMetricFamily(
            "stretto_clock_jumped_seconds",
            "How far the time of day is ahead of what reservations and deadlines are kept by.",
            value=calendar.jumped_s,
        )
        yield GaugeMetricFamily("stretto_log_events", "The number of the last event.", value=state.seq)
        skipped = "Events of the log that could not be folded."
        yield GaugeMetricFamily("stretto_skipped_events", skipped, value=state.skips)
        pending = "Webhooks that are to be delivered."
        count = len(state.outbox.deliveries)
        yield GaugeMetricFamily("stretto_pending_webhooks", pending, value=count)
        nodes = GaugeMetricFamily("stretto_nodes", "Nodes by state.", labels=["state"])
        words = Count(_word_of(node) for node in state.nodes)
        for word in ("open", "tainted", "closed", "lender", "down"):
            nodes.add_metric([word], words[word])
        yield nodes
        yield requested(self.service)
        yield from lending(state, self.service.clock.now_s())
        yield from budgets(self.service)
        yield from gpu_use(self.service)
        yield forecasts(self.service)


def requested(service: Service) -> GaugeMetricFamily:
    """What the cluster's autoscaler is asked for; nothing where there is none."""
    gpus = GaugeMetricFamily(
        "stretto_requested_gpus",
        "GPUs that the cluster's autoscaler is asked for, for jobs that wait.",
        labels=["type"],
    )
    for gpu_type, count in sorted(service.autoscaler.requested_gpus.items()):
        gpus.add_metric([gpu_type], count)
    return gpus


def _word_of(node: NodeRecord) -> str:
    """The state of a node."""
    if not node.up:
        return "down"
    if node.closed:
        return "tainted" if node.is_ours and node.keeping_away else "closed"
    return "open" if node.is_ours else "lender"


def lending(state: State, now_s: float) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
    """Gauges of each lender: its nodes, and how long it waits for them."""
    if not state.lenders:
        return
    label = ["lender"]
    nodes = GaugeMetricFamily("stretto_lender_nodes", "Nodes of a lender.", labels=["lender", "state"])
    waits_s = GaugeMetricFamily(
        "stretto_lender_wait_seconds", "For how long a lender waits for nodes that it needs.", labels=label
    )
    longest_s = GaugeMetricFamily(
        "stretto_lender_longest_wait_seconds", "The longest such wait that is over.", labels=label
    )
    late = GaugeMetricFamily(
        "stretto_lender_late", "1 while a lender waits for longer than its guarantee.", labels=label
    )
    waits = CounterMetricFamily("stretto_lender_waits", "Such waits that are over.", labels=label)
    missed = CounterMetricFamily(
        "stretto_lender_waits_missed", "Those that were longer than the guarantee.", labels=label
    )
    counts = nodes_of_lenders(state.nodes)
    for name, lender in sorted(state.lenders.items()):
        up, at_home = counts.get(name, (0, 0))
        on_loan = sum(node.lender == name and node.on_loan for node in state.nodes)
        states = {"up": up, "in_its_hands": at_home, "on_loan": on_loan}
        for word, count in {**states, "lacking": lender.lacking(up, at_home)}.items():
            nodes.add_metric([name, word], count)
        waited_s = 0.0 if isnan(lender.asked_s) else max(now_s - lender.asked_s, 0.0)
        waits_s.add_metric([name], waited_s)
        longest_s.add_metric([name], lender.longest_wait_s)
        late.add_metric([name], float(bool(lender.guarantee_s) and waited_s > lender.guarantee_s))
        waits.add_metric([name], lender.waits)
        missed.add_metric([name], lender.waits_missed)
    yield from (nodes, waits_s, longest_s, late, waits, missed)


def budgets(service: Service) -> Iterable[GaugeMetricFamily]:
    """Gauges of each budget, some seconds old at most; nothing where there is none."""
    if not service.budgets.latest:
        return
    used = GaugeMetricFamily(
        "stretto_budget_used_ratio", "Share of a budget that is used in its period.", labels=["budget"]
    )
    level = GaugeMetricFamily(
        "stretto_budget_level", "1 while a budget is at this level.", labels=["budget", "level"]
    )
    for name, standing in sorted(service.budgets.latest.items()):
        used.add_metric([name], standing.share)
        for each in (Level.WARN, Level.HOLD):
            level.add_metric([name, each.value], float(standing.level is each))
    yield from (used, level)


def forecasts(service: Service) -> CounterMetricFamily:
    """What became of forecasts of starts and ends: 80 % are to lie inside their intervals."""
    family = CounterMetricFamily(
        "stretto_forecasts",
        "First forecasts of a job's start and end, by whether that came within the 80 % interval.",
        labels=["kind", "result"],
    )
    for what in ("start", "end"):
        for result in ("inside", "early", "late"):
            family.add_metric([what, result], service.forecasts.found[what, result])
    return family


def gpu_use(service: Service) -> Iterable[GaugeMetricFamily]:
    """How busy GPUs are that jobs hold, by type, and how many of them idle; nothing where no node tells."""
    watch = service.gpu_watch
    if not watch.nodes:
        return
    uses: dict[tuple[str, str], list[GpuUse]] = {}
    masks = held_masks(service.state)
    for index, node in enumerate(service.state.nodes):
        for gpu, use in enumerate(watch.nodes.get(node.name, ())):
            if use is not None:
                word = "held" if masks.get(index, 0) >> gpu & 1 else "free"
                uses.setdefault((node.gpu_type, word), []).append(use)
    labels = ["type", "state"]
    busy = GaugeMetricFamily(
        "stretto_gpu_busy_ratio", "Share of the time in which GPUs were busy, their mean.", labels=labels
    )
    memory = GaugeMetricFamily(
        "stretto_gpu_memory_used_bytes", "Memory of GPUs that is in use, by all processes.", labels=labels
    )
    total = GaugeMetricFamily("stretto_gpu_memory_bytes", "Memory of these GPUs.", labels=labels)
    for key, of_these in sorted(uses.items()):
        if (mean := mean_busy(of_these)) is not None:
            busy.add_metric(key, mean)
        memory.add_metric(key, sum(use.used_bytes for use in of_these))
        total.add_metric(key, sum(use.bytes for use in of_these))
    idle = [record.accounting.held_gpus for record, _ in watch.idle_holders()]
    yield from (busy, memory, total)
    yield GaugeMetricFamily("stretto_idle_holders", "Jobs whose GPUs hardly do anything.", value=len(idle))
    yield GaugeMetricFamily("stretto_idle_gpus", "GPUs that these jobs hold.", value=sum(idle))


class Lines(Collector):
    """Connections that are open, and those that were closed by us."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    def collect(self) -> Iterable[Metric]:
        """The figures."""
        count = self.connections.count
        yield GaugeMetricFamily("stretto_connections", "Connections that are open.", value=count)
        closed = CounterMetricFamily(
            "stretto_closed_connections", "Connections that were closed or refused, by why.", labels=["why"]
        )
        for why in ("crowded", "refused", "slow"):
            closed.add_metric([why], self.connections.closed[why])
        yield closed


def held_masks(state: State) -> dict[int, int]:
    """By node, the GPUs that jobs are to hold there, as a mask."""
    masks: dict[int, int] = {}
    for allocation in dict(state.placement or {}).values():
        for index, mask in zip(allocation.nodes, allocation.masks, strict=True):
            masks[index] = masks.get(index, 0) | mask
    return masks


def gpus_by_state(state: State, ending: Mapping[int, int]) -> dict[tuple[str, str], int]:
    """GPUs by (type, state): to be held by jobs or by work that is not ours; else free, closed or down.

    ending: by node, as a mask, those that no job is to hold and on which workers have not ended yet.
    """
    counts: dict[tuple[str, str], int] = {}
    masks = held_masks(state)
    for index, node in enumerate(state.nodes):
        used = masks.get(index, 0).bit_count()
        rest = _word_of(node).replace("open", "free")
        others = min(node.others, node.gpus - used) if node.up else 0
        left = min(ending.get(index, 0).bit_count(), node.gpus - used - others) if node.up else 0
        words = {"held": used, "others": others, "ending": left, rest: node.gpus - used - others - left}
        for word, count in words.items():
            counts[node.gpu_type, word] = counts.get((node.gpu_type, word), 0) + count
    for gpu_type in {node.gpu_type for node in state.nodes}:
        for word in ("held", "others", "ending", "free", "tainted", "closed", "lender", "down"):
            counts.setdefault((gpu_type, word), 0)
    return counts
