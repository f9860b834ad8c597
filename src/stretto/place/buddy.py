"""Cells of 1, 2, 4, … GPUs that split in halves and merge again (PL-BUDDY)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from stretto.model import Allocation, IntArray, Pinned, Placement, Shares, Snapshot, virtual_nodes
from stretto.place.draft import Draft, Want, own_then_lowest
from stretto.place.evict import Movable, Opening, most_free_first, moving_others
from stretto.place.fill import Rule, fill
from stretto.place.shapes import in_workers, pieces

LEVELS = 6  # cells of 1 to 32 GPUs: a node has at most 62
ALIGNED = tuple(sum(1 << at for at in range(0, 62, 1 << level)) for level in range(LEVELS + 1))
"""By level, the bits at which a cell of that level may begin."""


@dataclass(frozen=True)
class Buddy:
    """A power of two gets one cell: the smallest free one that is large enough, split as often as needed.

    HiveD (Zhao et al., OSDI 2020), inside nodes. A node of 8 is one cell of 8, a node of 12 one of 8 and
    one of 4. Free cells are not recorded: they are the largest aligned blocks of free GPUs, so halves merge
    by themselves.

    From an empty cluster, requests are powers of two up to the largest cell, or numbers of largest cells.
    Each finds room as long as so many GPUs are free, in any order (where nodes are one cell each). After jobs
    have ended, `migrate` keeps that promise by moving smaller jobs that may be moved.

    Other requests take a part of the next larger cell and leave what they do not use as smaller cells. With
    `split` they take binary cells, largest first (6 = 4 + 2), which need not lie on one node.
    """

    migrate: bool = True  # move others where no cell is free (ElasticFlow, section 4.4 of its paper)
    split: bool = False  # give binary cells to requests that are no power of two

    def place(self, snapshot: Snapshot, shares: Shares) -> Placement:
        """Every share for which there are cells."""
        by_cells = partial(in_cells, split=self.split)
        moving: tuple[Rule, ...] = ()
        if self.migrate:
            sizes = partial(_sizes, split=self.split)
            moving = (moving_others(snapshot, shares, sizes, _openings, by_cells),)
        return fill(snapshot, shares, (by_cells,), moving, may_split=self.split)


def in_cells(draft: Draft, want: Want, split: bool = False) -> bool:
    """One cell, or several, moving no job. Cells around what the job holds come first."""
    cluster = draft.cluster
    sizes = _sizes(draft, want, split)
    free = draft.free_masks_of(want.kind)
    masks: dict[int, int] = {}
    for size in sizes:
        node, cell = _own_cell(free, want, size) or _tightest_cell(free, cluster.node_gpus, size)
        if not cell:
            return False
        own = _mask_on(want.held, node) if want.held and want.held.kind == want.kind else 0
        masks[node] = masks.get(node, 0) | own_then_lowest(cell, own, size)
        free[node] = 0 if want.nodes > 1 else int(free[node]) & ~cell
    nodes = tuple(sorted(masks))
    if not nodes or want.nodes not in (0, len(nodes)):
        return False
    named = tuple(masks[node] for node in nodes)
    return draft.give(want, Pinned(nodes, tuple(mask.bit_count() for mask in named), named))


def free_cells(free: int) -> tuple[int, ...]:
    """The sizes of the free cells of one node, largest first, from the mask of its free GPUs."""
    sizes: list[int] = []
    whole = free
    for level in range(LEVELS):
        merged = whole & (whole >> (1 << level)) & ALIGNED[level + 1]
        alone = whole & ~(merged | merged << (1 << level))
        sizes = [1 << level] * alone.bit_count() + sizes
        whole = merged
    return tuple(sizes)


def _sizes(draft: Draft, want: Want, split: bool) -> tuple[int, ...]:
    """GPUs of each piece, largest first; empty where the stated nodes are too few."""
    largest = int(draft.cluster.gpus_per_node[want.kind])
    cell = 1 << (largest.bit_length() - 1)
    if want.gpus <= largest and (want.nodes == 1 or (want.nodes == 0 and not split)):
        return (want.gpus,)
    each = want.each
    if each > cell:
        return pieces(want.gpus, want.nodes, largest, each)  # a worker is more than the largest cell
    most_nodes = draft.cluster.types[want.kind].max_nodes_per_job
    if want.nodes == 0 and most_nodes and want.gpus > most_nodes * in_workers(cell, each):
        return pieces(want.gpus, 0, largest, each)  # largest cells would lie on more nodes than it may use
    if split and want.nodes == 0 and each == 1:
        whole, rest = divmod(want.gpus, cell)
        return (cell,) * whole + virtual_nodes(rest)
    return pieces(want.gpus, want.nodes, cell, each)


def _cell_size(gpus: int) -> int:
    """The next power of two."""
    return 1 << (gpus - 1).bit_length()


def _own_cell(free: IntArray, want: Want, size: int) -> tuple[int, int] | None:
    """The cell of this size around GPUs that the job holds, if all of it is free."""
    if want.held is None or want.held.kind != want.kind:
        return None
    cell = _cell_size(size)
    for node, mask in zip(want.held.nodes, want.held.masks, strict=True):
        first = (mask & -mask).bit_length() - 1
        block = ((1 << cell) - 1) << (first - first % cell)
        if int(free[node]) & block == block:
            return node, block
    return None


def _tightest_cell(free: IntArray, node_gpus: IntArray, size: int) -> tuple[int, int]:
    """(node, mask) of a cell cut from the smallest free cell with room, lowest address first; or (-1, 0).

    The next power of two may be more than a node has (12 of 12, 3 of 3). Then it is a node free from its
    first GPU on.
    """
    cell = _cell_size(size)
    level = cell.bit_length() - 1
    if level < LEVELS:
        whole = free
        # Merge pairs of free cells up to the size that is needed.
        for below in range(level):
            whole = whole & (whole >> (1 << below)) & ALIGNED[below + 1]
        # From small to large: the first level at which some cell stands alone, without a free buddy, has the
        # smallest free cells. Taking one of those breaks up nothing larger.
        for above in range(level, LEVELS):
            merged = whole & (whole >> (1 << above)) & ALIGNED[above + 1]
            alone = whole & ~(merged | merged << (1 << above))
            node = int((alone != 0).argmax())
            if alone[node]:
                first = int(alone[node] & -alone[node])
                return node, first * ((1 << cell) - 1)
            whole = merged
    lowest = (1 << size) - 1
    fits = (node_gpus < cell) & ((free & lowest) == lowest)
    node = int(fits.argmax())
    return (node, lowest) if fits[node] else (-1, 0)


def _openings(draft: Draft, kind: int, size: int, who: Movable, several: bool) -> Iterator[Opening]:
    """Cells that would be free once some smaller jobs, which lie within them, are gone."""
    for node in most_free_first(draft, kind, size):
        small = [(v, _mask_on(v[3], node)) for v in who.victims_on(draft, node, smaller_than=size)]
        for block in _blocks(int(draft.cluster.node_gpus[node]), size):
            victims = [(victim, mask) for victim, mask in small if mask & block]
            covered = sum(mask for _, mask in victims)
            if covered & ~block or covered != int(draft.busy[node]) & block:
                continue
            restarts, moved_gpus = sum(v[0] for v, _ in victims), sum(v[1] for v, _ in victims)
            where = Pinned((node,), (size,), (own_then_lowest(block, 0, size),))
            address = node * 64 + (block & -block).bit_length()
            yield Opening(restarts, moved_gpus, address, where, tuple(v[2] for v, _ in victims))


def _blocks(node_gpus: int, size: int) -> list[int]:
    """Where a cell for this many GPUs may lie on a node, as masks."""
    cell = _cell_size(size)
    if cell > node_gpus:
        return [(1 << size) - 1]
    return [((1 << cell) - 1) << first for first in range(0, node_gpus - cell + 1, cell)]


def _mask_on(held: Allocation, node: int) -> int:
    return held.masks[held.nodes.index(node)] if node in held.nodes else 0
