"""One decision's bounds: what each job may have at most, what is given back, and what is cut off a plan."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import inf

import numpy as np

from stretto.live.reservations import Reservation
from stretto.live.rows import some_of
from stretto.live.sharing import Rules
from stretto.model import (
    Allocation,
    BoolArray,
    IntArray,
    Job,
    JobId,
    Placement,
    Snapshot,
    Why,
    lowest_gpus,
)

MOST_CLAIMS = 256  # jobs for which GPUs are taken back in one decision; chosen
ANY = -1  # of every type


@dataclass
class Bound:
    """Some jobs hold at most so many GPUs together."""

    rows: BoolArray  # (jobs,)
    kind: int  # GPUs of this type; ANY: of all
    most: int
    why: Why
    said: str
    queue: str = ""
    staying: int = 0  # GPUs of jobs that are in no row: they count beside, and nobody can take them
    summed: tuple[Placement, int] | None = field(default=None, init=False)  # GPUs that its rows last held


@dataclass
class Desk:
    """A decision while it is shaped. Rows are those of the snapshot."""

    snapshot: Snapshot
    rules: Rules
    placement: Placement = field(init=False)  # once what is to be given back is
    most: IntArray = field(init=False)  # (jobs,) GPUs; 0: is not shown
    kinds: BoolArray = field(init=False)  # (jobs, types) that it may use
    bounds: list[Bound] = field(default_factory=list)
    why: dict[int, tuple[Why, str]] = field(default_factory=dict)
    closed: list[tuple[Reservation, BoolArray, IntArray]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing is bounded yet."""
        jobs = self.snapshot.jobs
        self.placement, self.most = self.snapshot.placement, jobs.max_gpus.copy()
        self.kinds = jobs.allowed_kinds.copy()
        self.of = [jobs[row] for row in range(len(jobs))]
        self.row_of = {job.id: row for row, job in enumerate(self.of)}
        self._known: tuple[Placement, IntArray, IntArray] | None = None
        for row, job in enumerate(self.of):
            if job.id in self.rules.sizes:
                self.most[row] = self.rules.permitted(job.id, int(self.most[row]))
            if job.id in self.rules.profiles:
                self._profile(row, job, self.rules.profiles[job.id])

    def _profile(self, row: int, job: Job, kind: int) -> None:
        """One worker of one type; what it holds otherwise is taken."""
        self.most[row] = self.rules.permitted(job.id, job.gpus_per_worker)
        self.kinds[row] &= np.arange(len(self.kinds[row])) == kind
        held = self.placement.get(job.id)
        if held is not None and (held.kind, held.gpus) != (kind, self.most[row]):
            self._release(job)

    # ── before the policy is asked ────────────────────────────────────────────────────────────────

    def make_room(self) -> None:
        """Set the bounds; take back what exceeds them, and what was borrowed from those who wait."""
        self._reserve()
        for name, queue in self.rules.queues.items():
            rows = np.array([job.queue == name for job in self.of], dtype=np.bool_)
            assert queue.quota_gpus is not None
            staying = sum(held.gpus for job, held in self._staying() if job.queue == name)
            most = max(queue.quota_gpus + queue.borrow_gpus - staying, 0)
            self.bounds.append(Bound(rows, ANY, most, Why.QUOTA, "", name, staying))
        for bound in self.bounds:
            self._shed(bound)
        self._give_back()
        for bound in self.bounds:
            if bound.queue:
                self._bound_queue(bound)
            for row in np.flatnonzero(bound.rows & (self.most > bound.most)).tolist():
                self._limit(row, bound, bound.most)

    def _staying(self) -> Iterator[tuple[Job, Allocation]]:
        """Jobs of closed nodes, which are in no row, and what they hold."""
        for name, job in self.rules.staying.items():
            held = self.snapshot.placement.get(name)
            if held is not None:
                yield job, held

    def _reserve(self) -> None:
        now_s, cluster, rules = self.snapshot.now_s, self.snapshot.cluster, self.rules
        near = [one for one in rules.reservations if one.from_s - rules.lead_s <= now_s]
        later = [one for one in rules.reservations if one not in near and not one.nodes]
        for one in near:
            if one.nodes:
                nodes = one.places_on(cluster)
                users = np.array([one.serves(job.user, job.queue) for job in self.of], dtype=np.bool_)
                if now_s < one.from_s:
                    users[:] = False
                self.closed.append((one, users, nodes))
                for row, job in enumerate(self.of):
                    if not one.serves(job.user, job.queue) and job.preemptible:
                        self._leave(row, job, nodes)
        self._reserve_counts([one for one in near if not one.nodes], lambda job: True)
        for one in later:  # who cannot be moved does not start where it would be in the way
            self._reserve_counts(
                [one],
                lambda job, one=one: self._lasts(job) > one.from_s and not job.preemptible,  # type: ignore[misc]
            )

    def _lasts(self, job: Job) -> float:
        return self.snapshot.now_s + self.rules.lasting_s.get(job.id, 0.0)

    def _reserve_counts(self, reservations: Sequence[Reservation], binds: Callable[[Job], bool]) -> None:
        """Whoever has none of some reservations of a type leaves as many GPUs of it as these together are."""
        cluster, capacity = self.snapshot.cluster, self.snapshot.capacity
        by_kind: dict[int, list[Reservation]] = {}
        for one in reservations:
            gpus_of = one.gpus_by_type(cluster)
            for name in gpus_of:
                if name in cluster.type_names:
                    by_kind.setdefault(cluster.type_index(name), []).append(one)
        for kind, some in by_kind.items():
            name = cluster.type_names[kind]
            for count in range(1, len(some) + 1):
                for group in combinations(some, count):

                    def is_bound(job: Job, group: Sequence[Reservation] = group) -> bool:
                        return binds(job) and not any(one.serves(job.user, job.queue) for one in group)

                    rows = np.array([is_bound(job) for job in self.of], dtype=np.bool_)
                    kept = sum(one.gpus_by_type(cluster)[name] for one in group)
                    words = " and ".join(one.words for one in group)
                    staying = sum(  # on nodes of the capacity, which closed ones are not
                        mask.bit_count()
                        for job, held in self._staying()
                        if held.kind == kind and is_bound(job)
                        for node, mask in zip(held.nodes, held.masks, strict=True)
                        if self.snapshot.usable[node]
                    )
                    most = max(int(capacity[kind]) - kept - staying, 0)
                    self.bounds.append(Bound(rows, kind, most, Why.RESERVED, words, staying=staying))

    def _leave(self, row: int, job: Job, nodes: IntArray) -> None:
        """Off reserved nodes, with everything: what remained elsewhere would be too small for some."""
        held = self.placement.get(job.id)
        if held is not None and not set(held.nodes).isdisjoint(nodes.tolist()):
            self._release(job)

    def _holders(self, bound: Bound) -> list[int]:
        """Of those that are bound, who can be made to give back, in the order in which they do."""
        jobs, rows = self.snapshot.jobs, self._holding(bound, self.placement)
        rows = rows[jobs.preemptible[rows]]
        found: list[int] = rows[np.lexsort((-rows, jobs.priority[rows]))].tolist()
        return found

    def _columns(self, placement: Placement) -> tuple[IntArray, IntArray]:
        """(jobs,) GPUs that a placement gives each job, and their type; remembered of the last placement."""
        if self._known is not None and self._known[0] is placement:
            return self._known[1:]
        touched = None if self._known is None else placement.touched_since(self._known[0])
        if self._known is None or touched is None:
            touched = tuple(placement)
            gpus, kind = np.zeros(len(self.of), dtype=np.int64), np.full(len(self.of), ANY)
        else:
            gpus, kind = self._known[1].copy(), self._known[2].copy()
        for name in touched:
            row, held = self.row_of.get(name), placement.get(name)
            if row is not None:
                gpus[row], kind[row] = (held.gpus, held.kind) if held is not None else (0, ANY)
        self._known = placement, gpus, kind
        return gpus, kind

    def _holding(self, bound: Bound, placement: Placement) -> IntArray:
        """Rows of those that are bound and hold GPUs of the type."""
        gpus, kind = self._columns(placement)
        holds = bound.rows & (gpus > 0)
        return np.flatnonzero(holds if bound.kind == ANY else holds & (kind == bound.kind))

    def _sum(self, bound: Bound) -> int:
        """GPUs that those who are bound hold; asked for every job that has to wait, it is remembered."""
        placement = self.placement
        if bound.summed is None or bound.summed[0] is not placement:
            held = int(self._columns(placement)[0][self._holding(bound, placement)].sum())
            bound.summed = placement, held
        return bound.summed[1]

    def _release(self, job: Job) -> None:
        """Take everything from a job. Of who holds nothing, nothing changes, nor need be counted again."""
        if job.id in self.placement:
            self.placement = self.placement.changed({job.id: None})

    def _shed(self, bound: Bound) -> None:
        excess = self._sum(bound) - bound.most
        for row in self._holders(bound) if excess > 0 else ():
            excess -= self._take(row, excess)
            if excess <= 0:
                break

    def _take(self, row: int, gpus: int) -> int:
        """Take so many GPUs from a job that can do with less, else all; how many that were."""
        job, held = self.of[row], self.placement[self.of[row].id]
        left = self._allowed(row, held.gpus - gpus)
        after = kept_of(held, left, held) if left else None
        self.placement = self.placement.changed({job.id: after})
        return held.gpus - left

    def _allowed(self, row: int, gpus: int) -> int:
        """The largest size of at most so many GPUs that a job may have; 0: none."""
        job = self.of[row]
        gpus = self.rules.permitted(job.id, gpus // job.gpus_per_worker * job.gpus_per_worker)
        return gpus if gpus >= job.min_gpus else 0

    def _give_back(self) -> None:
        """What was borrowed goes to jobs of other queues that wait within their quotas, as they need it.

        Only where it lets them start. As long as somebody could, nobody borrows more.
        """
        borrowers = [bound for bound in self.bounds if bound.queue]
        quota = {one.queue: self.rules.queues[one.queue].quota_gpus or 0 for one in borrowers}
        held = {one.queue: self._sum(one) + one.staying for one in borrowers}
        free = self._free()
        jobs, order = self.snapshot.jobs, []
        for row in np.flatnonzero((jobs.held_gpus == 0) & (self.most > 0)).tolist():
            job = self.of[row]
            if held.get(job.queue, 0) + job.min_gpus <= quota.get(job.queue, inf):
                order.append(row)
        order.sort(key=lambda row: (-self.of[row].priority, row))
        self.claims: set[str] = set()
        for row in order[:MOST_CLAIMS]:
            job = self.of[row]
            if held.get(job.queue, 0) + job.min_gpus > quota.get(job.queue, inf):
                continue
            kind = self._room_for(row, free, held, quota)
            if kind is None:
                continue
            self.claims.add(job.queue)
            free[kind] -= job.min_gpus
            if job.queue in held:
                held[job.queue] += job.min_gpus

    def _room_for(self, row: int, free: IntArray, held: dict[str, int], quota: dict[str, int]) -> int | None:
        """A type of which a job can have enough once others have given back what they borrowed."""
        job = self.of[row]
        kinds: list[int] = np.flatnonzero(self.kinds[row]).tolist()
        for kind in kinds:
            if free[kind] >= job.min_gpus:
                return int(kind)
        for kind in kinds:
            before, placement = dict(held), self.placement
            missing = job.min_gpus - int(free[kind])
            for bound in self.bounds:
                if not bound.queue or bound.queue == job.queue:
                    continue
                for one in self._holders(replace(bound, kind=kind)):
                    over = held[bound.queue] - quota[bound.queue]
                    if over <= 0 or missing <= 0:
                        break
                    given = self._take(one, min(over, missing))
                    held[bound.queue] -= given
                    missing -= given
            if missing <= 0:
                free[kind] = job.min_gpus - missing
                return int(kind)
            held.update(before)
            self.placement = placement
        return None

    def _free(self) -> IntArray:
        """(types,) GPUs that anybody may have."""
        usable = self.snapshot.usable & self.open_nodes
        gpus = np.where(usable, self.placement.free, 0)
        cluster = self.snapshot.cluster
        return np.bincount(cluster.kind, gpus, len(cluster.types)).astype(np.int64)

    def _bound_queue(self, bound: Bound) -> None:
        """No more than the quota is had anew while somebody else could start within theirs."""
        queue = self.rules.queues[bound.queue]
        assert queue.quota_gpus is not None
        if self.claims - {bound.queue}:
            bound.most = min(bound.most, max(queue.quota_gpus - bound.staying, self._sum(bound)))
        lent = f", and {queue.borrow_gpus} that it may borrow" if queue.borrow_gpus else ""
        holds = self._sum(bound) + bound.staying
        bound.said = f"queue {bound.queue} has {queue.quota_gpus} GPUs{lent}, and holds {holds}"

    def _limit(self, row: int, bound: Bound, most: int) -> None:
        """A job gets no more than this, of the type of the bound."""
        job = self.of[row]
        allowed = self._allowed(row, most)
        held = self.placement.get(job.id)
        if allowed:
            others = np.delete(self.kinds[row], [] if bound.kind == ANY else bound.kind)
            if bound.kind == ANY or not others.any():
                self.most[row] = min(int(self.most[row]), allowed)
            if held is not None and held.gpus > self.most[row]:  # policies leave it to us to take away
                self.placement = self.placement.changed({job.id: kept_of(held, int(self.most[row]), held)})
            return
        if bound.kind != ANY:
            self.kinds[row, bound.kind] = False
            if held is not None and held.kind == bound.kind and job.preemptible:
                self._release(job)
            if self.kinds[row].any():
                return
        if self.placement.get(job.id) is not None and not job.preemptible:
            return
        self.most[row] = 0
        self._release(job)
        self._note(row, bound)

    def _note(self, row: int, bound: Bound) -> None:
        """Why a job is left out, and by how many GPUs."""
        needs = self.of[row].min_gpus
        if bound.queue:
            queue = self.rules.queues[bound.queue]
            most = (queue.quota_gpus or 0) + queue.borrow_gpus
            if needs > most:
                self.why[row] = (
                    Why.EXCEEDS_QUOTA,
                    f"{bound.said}; it needs {needs}, {needs - most} too many",
                )
                return
        beyond = max(self._sum(bound) + needs - bound.most, 1)
        self.why[row] = (bound.why, f"{bound.said}; it needs {needs}, {beyond} too many")

    # ── what the policy is shown ──────────────────────────────────────────────────────────────────

    @property
    def open_nodes(self) -> BoolArray:
        """(nodes,) that nobody has for himself."""
        found = np.ones(len(self.snapshot.cluster.nodes), dtype=np.bool_)
        for _, _, nodes in self.closed:
            found[nodes] = False
        return found

    def enclaves(self) -> Iterator[tuple[BoolArray, BoolArray]]:
        """(nodes, jobs that may use them), of each reservation of named nodes that is in force."""
        for _, users, nodes in self.closed:
            if users.any():
                there = np.zeros(len(self.snapshot.cluster.nodes), dtype=np.bool_)
                there[nodes] = True
                mine = self.on_nodes(self.placement, there) | self._holds_nothing()
                yield there, users & mine

    def _holds_nothing(self) -> BoolArray:
        return np.array([job.id not in self.placement for job in self.of], dtype=np.bool_)

    def on_nodes(self, placement: Placement, nodes: BoolArray) -> BoolArray:
        """(jobs,) which hold GPUs of some of these nodes."""
        held = [placement.get(job.id) for job in self.of]
        return np.array(
            [one is not None and bool(nodes[list(one.nodes)].any()) for one in held], dtype=np.bool_
        )

    def shown(self, placement: Placement, rows: BoolArray, nodes: BoolArray) -> Snapshot:
        """The snapshot with only these jobs, as far as they are shown, and only these nodes."""
        visible = np.flatnonzero(rows & (self.most > 0))
        changed: dict[int, Job] = {}
        names = self.snapshot.cluster.type_names
        other = (self.kinds != self.snapshot.jobs.allowed_kinds).any(axis=1)
        limited = other | (self.most < self.snapshot.jobs.max_gpus)
        for row in visible[limited[visible]].tolist():
            job, most = self.of[row], int(self.most[row])
            if most < job.max_gpus:
                job = replace(job, max_gpus=most, gpus=min(job.gpus, most))
            if other[row]:
                job = replace(job, gpu_types=tuple(names[kind] for kind in np.flatnonzero(self.kinds[row])))
            changed[row] = job
        return replace(
            self.snapshot,
            usable=self.snapshot.usable & nodes,
            jobs=some_of(self.snapshot.jobs, visible, changed, placement),
            placement=placement,
        )

    # ── after ─────────────────────────────────────────────────────────────────────────────────────

    def _planned(self, bound: Bound, placement: Placement) -> list[tuple[int, int]]:
        """(row, GPUs) of those that are bound, by who is served first; empty where they keep to the bound."""
        rows, gpus = self._holding(bound, placement), self._columns(placement)[0]
        if int(gpus[rows].sum()) <= bound.most:
            return []
        found = zip(rows.tolist(), gpus[rows].tolist(), strict=True)
        return sorted(found, key=lambda one: self._rank(one[0]))

    def _rank(self, row: int) -> tuple[bool, int, bool, int]:
        job = self.of[row]
        waits = job.id not in self.snapshot.placement
        return (job.preemptible or waits, -job.priority, waits, row)

    def tighten(self, placement: Placement) -> bool:
        """Where a plan exceeds a bound, limit its jobs to what they may keep of it; whether any did."""
        exceeded = False
        for bound in self.bounds:
            planned = self._planned(bound, placement)
            if not planned:
                continue
            exceeded, room = True, bound.most
            served = {row for row, _ in planned}
            for row, gpus in planned:
                given = gpus if not self._rank(row)[0] else self._allowed(row, min(gpus, room))
                self._limit(row, bound, given)
                room -= given
            for row in np.flatnonzero(bound.rows & (self.most > 0)).tolist():
                if row not in served:
                    self._limit(row, bound, 0)
        return exceeded

    def cut(self, placement: Placement) -> Placement:
        """The placement with permitted sizes only, and within every bound."""
        for name in self.rules.sizes:
            row, held = self.row_of.get(JobId(name)), placement.get(JobId(name))
            if row is None or held is None or held.profiling:
                continue
            size = self.rules.permitted(name, held.gpus)
            if size != held.gpus:
                placement = self._cut_one(placement, row, size)
        for bound in self.bounds:
            planned = self._planned(bound, placement)
            excess = sum(gpus for _, gpus in planned) - bound.most
            for row, gpus in reversed(planned):
                if excess <= 0 or not self._rank(row)[0]:
                    break
                left = self._allowed(row, max(gpus - excess, 0))
                placement = self._cut_one(placement, row, left)
                excess -= gpus - left
                if not left:
                    self._note(row, bound)
        return self._off_reserved(placement)

    def _off_reserved(self, placement: Placement) -> Placement:
        """Who cannot be moved does not start on nodes that will be reserved before it ends."""
        cluster = self.snapshot.cluster
        for one in self.rules.reservations:
            if not one.nodes or one.from_s <= self.snapshot.now_s:
                continue
            nodes = set(one.places_on(cluster).tolist())
            for row, job in enumerate(self.of):
                held = placement.get(job.id)
                new = held is not None and job.id not in self.snapshot.placement
                if not new or job.preemptible or one.serves(job.user, job.queue):
                    continue
                if self._lasts(job) > one.from_s and not nodes.isdisjoint(held.nodes):
                    placement = placement.changed({job.id: None})
                    self.why[row] = (Why.RESERVED, one.words)
        return placement

    def _cut_one(self, placement: Placement, row: int, gpus: int) -> Placement:
        job = self.of[row].id
        before = self.snapshot.placement.get(job)
        return placement.changed({job: kept_of(placement[job], gpus, before) if gpus else None})


def kept_of(allocation: Allocation, gpus: int, before: Allocation | None) -> Allocation:
    """So many GPUs of an allocation: those held before first, then those of the fullest nodes.

    Exactly what was held before where that is as many. Batch sizes and flexible workers are open again.
    """
    own = dict(zip(before.nodes, before.masks, strict=True)) if before is not None else {}
    both = {
        node: mask & own.get(node, 0) for node, mask in zip(allocation.nodes, allocation.masks, strict=True)
    }
    if (
        before is not None
        and before.gpus == gpus
        and all(both.get(node, 0) == mask for node, mask in own.items())
    ):
        return before
    kept: dict[int, int] = {}
    places = list(zip(allocation.nodes, allocation.masks, strict=True))
    for pool in (both, dict(places)):
        for node, _ in sorted(places, key=lambda one: (-one[1].bit_count(), one[0])):
            rest = pool[node] & ~kept.get(node, 0)
            count = min(rest.bit_count(), gpus - sum(map(int.bit_count, kept.values())))
            if count > 0:
                kept[node] = kept.get(node, 0) | lowest_gpus(rest, count)
    nodes = tuple(sorted(kept))
    return Allocation(allocation.kind, nodes, tuple(kept[node] for node in nodes), cpus=0.0)
