"""A `Backend` over a Kubernetes cluster: workers are pods, and the API server remembers them.

Nothing about workers is kept here but their logs. A service that begins again lists its pods by their label
and goes on. A finalizer keeps each pod until how it ended was written down.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from stretto.agent.requests import WORKER_ID
from stretto.backends.kubernetes import gated_pods, inventory, lent_nodes, manifests, pod_starts, pods
from stretto.backends.kubernetes.api import (
    NODES,
    PODS,
    Api,
    Refusal,
    configuration,
    namespace_of,
    suppress_refusal,
)
from stretto.backends.kubernetes.autoscaling import NodeGrowth
from stretto.backends.kubernetes.foreign_pods import ForeignPods
from stretto.backends.kubernetes.gated_pods import GateLifter
from stretto.backends.kubernetes.informer import Informer
from stretto.backends.kubernetes.inventory import Gpus
from stretto.backends.kubernetes.job_secrets import JobSecrets
from stretto.backends.kubernetes.lease import LeaderLease
from stretto.backends.kubernetes.log_spool import LogSpool
from stretto.backends.kubernetes.machines import Circumstances, Machines, check_room, shortage
from stretto.backends.kubernetes.node_pools import NodeSlots
from stretto.backends.kubernetes.objects import Node, Pod, differ
from stretto.backends.kubernetes.options import KubernetesOptions
from stretto.backends.kubernetes.own_pod import owners_in
from stretto.backends.kubernetes.placeholders import Asker
from stretto.backends.kubernetes.pod_changes import PodChanges, asked
from stretto.backends.kubernetes.pod_events import PodEvents
from stretto.backends.kubernetes.pod_exec import path_of, reach_in
from stretto.backends.kubernetes.refused_starts import RefusedStarts, is_full_quota
from stretto.backends.kubernetes.shared_objects import Prepared
from stretto.backends.kubernetes.submission import check_job
from stretto.backends.protocol import (
    BackendUnreachable,
    IdUsed,
    Line,
    LogPiece,
    LongPoll,
    NodeRequest,
    NodeState,
    NoSuchWorker,
    NotNow,
    StaleLeader,
    StartRefused,
    WorkerStart,
    WorkerState,
)
from stretto.errors import InputError
from stretto.jobfile.spec import JobSpec

log = logging.getLogger(__name__)

FIRST_S = 30.0  # for the first lists; chosen
LOOK_S = 1.0  # between looks for pods that do not begin; chosen


class KubernetesBackend:
    """One service's pods on one cluster."""

    hands_secrets = fetches_uploads = runs_images = True

    def __init__(
        self,
        api: Api,
        options: KubernetesOptions,
        service: str,
        namespace: str,
        folder: Path,
        addresses: Mapping[str, str] | None = None,
        job_namespaces: Mapping[str, str] | None = None,
    ) -> None:
        """namespace: of pods whose job names none. folder: where logs are kept.

        addresses: of nodes by name, as an earlier service has seen them. job_namespaces: see `Site`.
        """
        self.api, self.options, self.service, self.namespace = api, options, service, namespace
        self.poll = LongPoll()
        self.logs = LogSpool(folder / "logs", api, options.max_log_bytes)
        self.node_informer = Informer(api, NODES, "", self._node_changed, options.silence_s)
        self.pod_informer = Informer(api, PODS, "", self._pod_changed, options.silence_s)
        self.slots = NodeSlots(options.pools, addresses)
        self.lease = LeaderLease(api, options.namespace or namespace, service)
        owners = partial(owners_in, namespace, self.pod_informer.items)
        self.growth = NodeGrowth(Asker(api, options, service, namespace, self.lease, owners))
        self.gone: dict[str, Node] = {}  # machines that were listed, and are no more
        self.machines = Machines(options)
        self.foreign = ForeignPods()
        self.lifter = GateLifter(api, service, lambda *key: self.pod_informer.items.get(key))
        self.ours: dict[str, Pod] = {}  # by the worker's id
        self.let_go: set[str] = set()  # uids of forgotten pods, until they are gone
        self.vanished: dict[str, WorkerState] = {}  # whose pods somebody took away, finalizer and all
        self.waits_since_s: dict[str, float] = {}  # monotonic; of pods that have not begun, by uid
        self.starting: dict[str, asyncio.Lock] = {}
        self.pod_changes = PodChanges(api, self.pod_informer.put, self.ours.get)
        self.refused = RefusedStarts(options.pending_s)
        self.events = PodEvents(api, options.pending_s)
        self.prepared = Prepared(api, options, service)
        self.job_namespaces = {job: name or namespace for job, name in (job_namespaces or {}).items()}
        of_log = [(name, job) for job, name in self.job_namespaces.items()]
        self.secrets = JobSecrets(api, service, folder / "secrets", of_log)
        self.forgetting: set[str] = set()  # workers whose pods are just being let go
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self) -> "KubernetesBackend":
        """Look at the cluster once, and adopt what is ours. Raises InputError, BackendUnreachable."""
        informers: list[Informer[Any]] = [self.node_informer, self.pod_informer]
        if (requests := self.growth.requests) is not None:
            informers.append(requests.informer)
            try:
                await requests.check()
            except (InputError, BackendUnreachable):
                await self.close()
                raise
        self.tasks = [
            asyncio.create_task(each)
            for each in (
                *(informer.follow() for informer in informers),
                self._tend(),
                self.logs.keep_bounded(),
                self.lease.renew(),
            )
        ]
        listed = asyncio.gather(*(informer.listed.wait() for informer in informers))
        try:
            async with asyncio.timeout(FIRST_S):
                await listed
        except TimeoutError:
            failures = [informer.failure for informer in informers if informer.failure]
            why = failures[0] if failures else "it does not answer"
            await self.close()
            raise InputError(f"--backend kubernetes: {self.api.server}: {why}") from None
        self._adopt_elsewhere()
        return self

    def _adopt_elsewhere(self) -> None:
        """Take in workers of jobs that have no pod where they should, as where --namespace has changed."""
        there = list(self.pod_informer.items.values())
        moved = pods.moved_jobs(there, self.service, {pods.job_of(pod) for pod in self.ours.values()})
        self.job_namespaces |= moved
        for pod in there:
            if moved.get(pods.worker_id(pod).partition(".")[0]) == pod.metadata.namespace:
                self.foreign.put(pod, is_there=False)
                self._pod_changed(None, pod)

    @property
    def epoch(self) -> int:
        """Of the service that leads; 0: none does."""
        return self.lease.epoch

    @epoch.setter
    def epoch(self, number: int) -> None:
        self.lease.epoch = number

    @property
    def remark(self) -> str:
        """What is missing of the cluster that no node and no job shows."""
        return self.lease.remark

    # ── what is known ─────────────────────────────────────────────────────────────────────────────

    def _node_changed(self, before: Node | None, after: Node | None) -> None:
        if after is not None:
            self.gone.pop(after.metadata.name, None)
            self.machines.warn_of_unused(before, after)
        elif before is not None:
            self.gone[before.metadata.name] = before
        if before is None or after is None or differ(before, after):
            self.poll.notify()

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        pod = after if after is not None else before
        assert pod is not None
        is_placed = self.lifter.is_placed(pod)
        if pod.metadata.labels.get(manifests.SERVICE) == self.service:
            if manifests.PLACEHOLDER in pod.metadata.labels:
                self.growth.placeholders.change(before, after)
                return
            name = pods.worker_id(pod)
            own_namespace = self.job_namespaces.get(name.partition(".")[0], "")
            known = self.ours.get(name)
            is_ours = is_placed or (
                pods.is_worker(pod, self.service, known, own_namespace)
                and self.logs.pod_of(name) in ("", pod.metadata.uid)
            )
        else:
            is_ours = is_placed
        if self.foreign.put(pod, is_there=after is not None and not is_ours):
            self.poll.notify()
        if not is_ours:
            return
        if pod.metadata.uid in self.let_go:  # a watch tells late what `forget` has done
            if after is None:
                self.let_go.discard(pod.metadata.uid)
                self.lifter.drop(pod)
            return
        worker_id = pods.worker_id(pod)
        if after is not None:
            self.slots.adopt(pods.meant_for(after), pods.machine_of(after))
            self.ours[worker_id] = after
            self.vanished.pop(worker_id, None)
            if not is_placed:
                self.logs.note_pod(worker_id, after.metadata.uid)
                self._follow_log(worker_id, after)
            elif self._has_ended(worker_id) and not self.logs.is_complete(worker_id):
                self.logs.finish(worker_id)  # all that there is of it says where to look
        elif worker_id in self.ours:
            last = self._state(self.ours.pop(worker_id))
            if last.holds_gpus:
                self.vanished[worker_id] = gated_pods.vanished(last) if is_placed else pods.vanished(last)
            self.logs.finish(worker_id)
            self.lifter.drop(pod)
        self.waits_since_s.setdefault(pod.metadata.uid, time.monotonic())
        if after is None:
            self.waits_since_s.pop(pod.metadata.uid, None)
        if before is None or after is None or pods.says_new(before, after):
            self.poll.notify()

    def _node(self, machine: str) -> Node | None:
        return self.node_informer.items.get(("", machine)) or self.gone.get(machine)

    async def nodes(self) -> Sequence[NodeState]:
        """Every node with GPUs, by name; also those that are gone, as long as this object lives."""
        known = {machine: node for (_, machine), node in self.node_informer.items.items()}
        present = {machine: self._machine_state(machine, node) for machine, node in known.items()}
        labels = {machine: node.metadata.labels for machine, node in known.items()}
        for replaced in self.slots.fill(present, labels):
            self.gone.pop(replaced, None)
            self.machines.forget(replaced)
        past = {machine: self._machine_state(machine, node) for machine, node in self.gone.items()}
        states = [self.slots.shown(machine, state) for machine, state in {**past, **present}.items()]
        used = [state for state in states if state.gpus or state.remark]
        empty = self.slots.empty({state.name for state in used})
        return sorted([*used, *empty], key=lambda state: state.name)

    def _machine_state(self, name: str, node: Node) -> NodeState:
        gpus = self.machines.gpus_of(node)
        others = self.foreign.gpus_on(name, gpus.resource)
        if gpus.withheld:  # as if others held them, but for those in the hands of our workers
            others = max(
                min(
                    others + gpus.withheld,
                    gpus.count - inventory.gpus_held(self.ours.values(), name, gpus.resource),
                ),
                0,
            )
        lasting = self.foreign.lasting_on(name)
        now = Circumstances(others, name in self.gone, self.node_informer.is_stale, lasting)
        return self.machines.state_of(node, now)

    def _state(self, pod: Pod) -> WorkerState:
        machine = pod.spec.nodeName
        node = self._node(machine) if machine else None
        shown = self._machine_state(machine, node) if node is not None else None
        is_up, is_dead = (shown.up, shown.dead) if shown is not None else (not machine, False)
        is_meant = machine in ("", pods.machine_of(pod))
        name = pods.meant_for(pod) if is_meant else self.slots.name_of(machine)
        state_of = gated_pods.state_of if self.lifter.is_placed(pod) else pods.state_of
        state = state_of(pod, name, is_up, is_dead)
        trouble = None if state.why or state.phase != "starting" else self.events.trouble_of(pod)
        return state if trouble is None else replace(state, why=trouble.why)

    async def workers(self) -> Sequence[WorkerState]:
        """Every worker that is not forgotten, by id."""
        states = {worker_id: self._state(pod) for worker_id, pod in self.ours.items()}
        return [state for _, state in sorted({**self.vanished, **states}.items())]

    async def changes(self, after: int, wait_s: float = 20.0) -> int:
        """The newest number, once it is not `after` any more or `wait_s` is over."""
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()  # nobody looks any more: whoever waits is told why
        return await self.poll.wait(after, wait_s)

    async def check(self, spec: JobSpec) -> None:
        """Raise InputError for a job that this cluster can never take."""
        known = self.node_informer.items
        nodes = [(node, known.get(("", self.slots.machine_of(node.name)))) for node in await self.nodes()]
        check_job(spec, self.options, nodes)

    # ── start ─────────────────────────────────────────────────────────────────────────────────────

    async def start(self, worker: WorkerStart) -> WorkerState:
        """Create a pod, unless that was done before."""
        if not WORKER_ID.fullmatch(worker.id):
            raise StartRefused(f"worker id must be letters, digits, '.', '_' and '-', got {worker.id!r}")
        async with self.starting.setdefault(worker.id, asyncio.Lock()):
            try:
                await self.lease.admit()
                return await self._start(worker)
            finally:
                self.starting.pop(worker.id, None)

    async def _start(self, worker: WorkerStart) -> WorkerState:
        if worker.id in self.ours:
            pod_starts.check_same(worker, self.ours[worker.id])
            return self._state(self.ours[worker.id])
        if self.logs.knows(worker.id) and self.logs.is_complete(worker.id):
            if worker.id in self.vanished:  # as one that was given up
                return self.vanished[worker.id]
            raise IdUsed(f"worker {worker.id} has ended and was forgotten; ids are not used twice")
        self.refused.check(worker.id)
        gpus = self._place(worker)
        if gated_pods.references_in(manifests.wanted_of(worker)):
            return await self._lift(worker, gpus)
        if not manifests.image_of(worker, self.options):
            raise StartRefused(f"worker {worker.id}: no image: image in its file, or --image")
        namespace = manifests.namespace_for(worker, self.options, self.namespace)
        self.job_namespaces[worker.job] = namespace
        machine = self.slots.machine_of(worker.node)
        manifest = manifests.pod_of(worker, self.options, self.service, namespace, gpus.resource, machine)
        if (requests := self.growth.requests) is not None:
            manifest["metadata"]["annotations"] |= requests.annotations_for(worker.job, namespace)
        ours = (pod for pod in self.ours.values() if pods.takes_room_on(pod, machine))
        node, foreign = self.node_informer.items["", machine], self.foreign.used_on(machine)
        if lack := shortage(manifest, node, ours, foreign):
            return self._give_up_in_time(worker, f"worker {worker.id}: {lack}")
        try:
            await self.prepared.put_into(namespace)
            self.logs.begin(worker.id)
            async with self.secrets.during(namespace, worker):
                known = self.logs.pod_of(worker.id)
                pod = await pod_starts.create(self.api, namespace, worker, manifest, known)
                self.pod_informer.put(pod)
        except Refusal as refusal:
            self.prepared.doubt(namespace)  # it may have been made anew since, and lack what we put there
            why = f"worker {worker.id}: the API server refuses its pod: {refusal}"
            if refusal.is_for_later and not is_full_quota(refusal):
                return self._give_up_in_time(worker, why)
            raise (NotNow(why) if refusal.is_for_later else StartRefused(why)) from None
        self.refused.drop(worker.id)
        return self._state(self.ours.get(worker.id, pod))

    def _give_up_in_time(self, worker: WorkerStart, why: str) -> WorkerState:
        """Have a start that cannot be now tried again, for a while; then its GPUs are free for others."""
        ended = self.vanished[worker.id] = self.refused.note(worker, why)
        self.logs.finish(worker.id)
        self.poll.notify()
        return ended

    async def _lift(self, worker: WorkerStart, gpus: Gpus) -> WorkerState:
        """Place a pod of other people, instead of creating one."""
        if not self.options.gate:
            raise NotNow(f"worker {worker.id}: pods of others are placed with --set backend.gate=true only")
        node = self.node_informer.items["", self.slots.machine_of(worker.node)]
        pod = await self.lifter.lift(worker, node, gpus)
        self.logs.begin(worker.id, gated_pods.where_its_log_is(pod))
        self.pod_informer.put(pod)
        return self._state(self.ours.get(worker.id, pod))

    def _place(self, worker: WorkerStart) -> Gpus:
        """What its node has; raises StartRefused, or NotNow where a GPU is in use."""
        machine = self.slots.machine_of(worker.node)
        node = self.node_informer.items.get(("", machine))
        if node is None and (machine in self.gone or worker.node in self.slots.pool_of):
            raise NotNow(f"worker {worker.id}: node {worker.node} is not there any more")
        if node is None:
            names = ", ".join(sorted(name for _, name in self.node_informer.items))
            raise StartRefused(f"worker {worker.id}: no node {worker.node}, expected one of {names}")
        if lender := node.metadata.annotations.get(manifests.LENDER):
            raise NotNow(f"worker {worker.id}: node {worker.node} is with its lender {lender}")
        gpus = self.machines.gpus_of(node)
        others = (self._state(pod) for other_id, pod in self.ours.items() if other_id != worker.id)
        free = (
            gpus.count
            - self._machine_state(machine, node).others
            - inventory.gpus_held(self.ours.values(), machine, gpus.resource)
        )
        check_room(worker, gpus, others, free)
        return gpus

    async def hand_over(self, nodes: Sequence[str], to: str | None) -> None:
        """Mark nodes as their lender's or as on loan, so that kube-scheduler keeps the other's pods away.

        With None both marks are taken away. Raises StaleLeader, BackendUnreachable.
        """
        await self.lease.admit()
        for name in nodes:
            node = await lent_nodes.hand_over(self.api, self.slots.machine_of(name), to)
            if node is not None:
                self.node_informer.put(node)

    # ── commands to what runs ─────────────────────────────────────────────────────────────────────

    async def stop(self, worker_id: str, grace_s: float) -> None:
        """Delete the pod, with a grace."""
        await self.lease.admit()
        pod = self._pod(worker_id)
        if pod is None or not self._state(pod).holds_gpus or self.lifter.is_placed(pod):
            return  # what other people own ends when they say so
        # The order says that it was we who asked, and reaches a supervisor whose kubelet is still busy with
        # a longer grace. The deletion is what keeps the promise.
        await self.pod_changes.order(worker_id, {"stop": grace_s})
        await asked(self.api.delete(path_of(pod), max(math.ceil(grace_s), 1), pod.metadata.uid))

    async def signal(self, worker_id: str, signal: int) -> None:
        """Have the supervisor send a signal: it finds it in an annotation that its kubelet shows it."""
        await self.lease.admit()
        pod = self._pod(worker_id)
        if pod is not None and self._state(pod).holds_gpus and not self.lifter.is_placed(pod):
            await self.pod_changes.order(worker_id, {"signal": int(signal)})

    async def reach(self, worker_id: str) -> Line:
        """A line to a new program beside a worker, in its pod."""
        await self.lease.admit()
        pod = self._pod(worker_id)
        runs = pod and self._state(pod).phase == "running" and not self.lifter.is_placed(pod)
        return await reach_in(self.api, pod if runs else None, self.options.python)

    def _pod(self, worker_id: str) -> Pod | None:
        """The pod of a worker, None where it is gone already; raises NoSuchWorker."""
        if worker_id not in self.ours and worker_id not in self.vanished:
            raise NoSuchWorker(f"no worker {worker_id}")
        return self.ours.get(worker_id)

    async def forget(self, worker_id: str) -> None:
        """Let an ended pod go; its log stays."""
        await self.lease.admit()
        self.vanished.pop(worker_id, None)
        pod = self.ours.get(worker_id)
        if pod is None or self._state(pod).holds_gpus:
            return
        metadata = pod.metadata
        if self.lifter.is_placed(pod):
            self.let_go.add(metadata.uid)  # the pod stays, as its owner likes
            self.ours.pop(worker_id, None)
            self.logs.finish(worker_id)
            self.poll.notify()
            return
        await self.logs.catch_up(worker_id)  # the log goes with the pod
        # While the pod is there, whoever has to do this again finds that it is to be done. Of pods that go
        # together the last one takes the Secret along.
        self.forgetting.add(worker_id)
        try:
            await self._drop_secret(*pods.key_of_job(pod))
            with suppress_refusal(404, 409):
                others = [each for each in metadata.finalizers if each != manifests.FINALIZER]
                patch = {"metadata": {"finalizers": others or None, "uid": metadata.uid}}
                await asked(self.api.patch(PODS, metadata.namespace, metadata.name, patch))
                self.let_go.add(metadata.uid)
            with suppress_refusal(404, 409):
                await asked(self.api.delete(path_of(pod), 0, metadata.uid))
            self.ours.pop(worker_id, None)
        finally:
            self.forgetting.discard(worker_id)
        self.pod_changes.drop(worker_id)
        self.pod_informer.items.pop((metadata.namespace, metadata.name), None)
        self.logs.finish(worker_id)
        self.poll.notify()

    async def _drop_secret(self, namespace: str, job: str) -> None:
        """A job without pods that stay has no use for its secret; another start makes a new one."""

        def has_pods() -> bool:
            staying = (pod for worker_id, pod in self.ours.items() if worker_id not in self.forgetting)
            return any(pods.key_of_job(pod) == (namespace, job) for pod in staying)

        await self.lease.admit()
        await asked(self.secrets.drop(namespace, job, has_pods))

    async def delete_logs(self, job: str) -> None:
        """Remove the logs of a job's forgotten workers."""
        await self.lease.admit()
        self.job_namespaces.pop(job, None)
        self.logs.delete([each for each in self.logs.of_job(job) if each not in self.ours])

    # ── nodes that may come ───────────────────────────────────────────────────────────────────────

    async def wish(self, wishes: Sequence[NodeRequest]) -> None:
        """Ask for nodes, for what has no room; raises BackendUnreachable."""
        await self.growth.wish(wishes, self._ask_for_nodes)

    async def answers(self) -> Mapping[str, str]:
        """What the cluster's autoscaler says of what it was asked for, by job."""
        return self.growth.answers()

    async def _ask_for_nodes(self) -> None:
        async with self.growth.one_by_one:
            if self.growth.is_idle or self.node_informer.is_stale or self.pod_informer.is_stale:
                return
            nodes = await self.nodes()
            workers = [(self._state(pod), bool(pod.metadata.deletionTimestamp)) for pod in self.ours.values()]
            known = [*self.node_informer.items.values(), *self.gone.values()]
            machines = [(machine, self.machines.gpus_of(machine)) for machine in known]
            await self.growth.ask_for(nodes, workers, machines)

    # ── logs ──────────────────────────────────────────────────────────────────────────────────────

    def _follow_log(self, worker_id: str, pod: Pod) -> None:
        """Follow the log of what has begun; nothing comes of what never did."""
        if pods.has_let_go(pod):
            self.logs.finish(worker_id)
        main = pods.container_of(pod)
        if main is not None and (main.state.running or main.state.terminated):
            self.logs.follow(worker_id, pod, lambda: self._has_ended(worker_id))

    def _has_ended(self, worker_id: str) -> bool:
        pod = self.ours.get(worker_id)
        return pod is None or not self._state(pod).holds_gpus

    async def log(
        self, worker_id: str, offset: int = 0, limit: int = 1 << 20, wait_s: float = 0.0
    ) -> LogPiece:
        """A piece of a log, from what was kept of it."""
        if not WORKER_ID.fullmatch(worker_id):
            raise NoSuchWorker(f"no worker {worker_id}")
        return await self.logs.read(worker_id, offset, limit, wait_s, lambda: self._has_ended(worker_id))

    # ── pods that do not begin ────────────────────────────────────────────────────────────────────

    async def _tend(self) -> None:
        """Take back what does not begin, and what nothing needs any more, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._ask_for_nodes()
            except (BackendUnreachable, Refusal, StaleLeader) as failure:
                log.info("nodes are asked for again: %s", failure)
            own = [pod for pod in self.ours.values() if not self.lifter.is_placed(pod)]
            if await self.events.look(own, self.waits_since_s):
                self.poll.notify()
            for pod in list(self.ours.values()):
                try:
                    await self._tend_to(pod)
                except (BackendUnreachable, Refusal, StaleLeader) as failure:
                    log.info("pod %s is not taken back yet: %s", pod.metadata.name, failure)
            with_pods = {pods.key_of_job(pod) for pod in self.ours.values()}
            await self.secrets.take_away_unused(with_pods, self._drop_secret)

    async def _tend_to(self, pod: Pod) -> None:
        """Take a pod back that does not begin. Note of one that it has: its kubelet may forget it."""
        if (mark := pods.mark_due(pod)) and not self.lifter.is_placed(pod):
            await self.lease.admit()
            await self.pod_changes.annotate(pod, mark)
        state = self._state(pod)
        waited_s = time.monotonic() - self.waits_since_s.get(pod.metadata.uid, time.monotonic())
        trouble = pods.trouble_of(pod) or self.events.trouble_of(pod)
        options = self.options
        patience_s = pods.patience_s(pod, trouble, options.pending_s, options.begin_s, options.mount_s)
        stays = pod.metadata.deletionTimestamp or self.lifter.is_placed(pod)  # it cannot be gated again
        if state.phase != "starting" or stays or waited_s < patience_s:
            return
        await self.lease.admit()
        self.prepared.doubt(pod.metadata.namespace)  # our ConfigMap may be gone, which it waits for
        ending = json.dumps(pods.withdrawal(trouble, waited_s))
        await self.pod_changes.annotate(pod, {manifests.WITHDRAWN: ending})
        await self.api.delete(path_of(pod), 1, pod.metadata.uid)

    async def close(self) -> None:
        """Look no more. Pods go on."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []
        await self.lease.release()
        await self.logs.close()
        await self.api.close()


async def open_kubernetes(
    options: KubernetesOptions,
    service: str,
    folder: Path,
    addresses: Mapping[str, str] | None = None,
    job_namespaces: Mapping[str, str] | None = None,
) -> KubernetesBackend:
    """The backend of a cluster. Raises InputError where it cannot be used.

    service: the name under which pods of this service are found again. folder: where logs are kept.
    addresses: of nodes by name, as an earlier service has seen them. job_namespaces: see `Site`.
    """
    config = await asyncio.to_thread(configuration, options.kubeconfig, options.context)
    api = Api(config)
    try:
        version = await api.version()
    except (BackendUnreachable, Refusal) as failure:
        await api.close()
        raise InputError(f"--backend kubernetes: {failure}") from None
    log.info("Kubernetes %s at %s", version, api.server)
    namespace = options.namespace or namespace_of(config)
    backend = KubernetesBackend(api, options, service, namespace, folder, addresses, job_namespaces)
    await backend.open()
    if not await backend.nodes():
        log.warning("no node has GPUs to give yet; --gpu-resource says which resource counts")
    return backend
