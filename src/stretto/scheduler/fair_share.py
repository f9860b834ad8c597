"""Fair share: which job comes first at one priority, by what every account has had lately.

Queues and users form a tree, as accounts do in Slurm's Fair Tree. Siblings are compared with each other only,
level by level. So a queue that is behind its share comes first with all that is in it. The factor is that of
Slurm's classic multifactor plugin, F = 2^(-U/S), taken at each level. S is a node's share among its siblings,
U its part of the usage that they have had. It is 1 for one that has had nothing, 1/2 for one with exactly its
share. Deviation: between jobs of siblings that are about equal, each job that comes first counts as if it ran
for an hour. So does what is held now. Otherwise all jobs of one user would pass those of another that has had
a second more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.model import Account, FairShare, FloatArray, IntArray, JobTable, floats, ints
from stretto.model.queue import ROOT, line_of

AHEAD_S = 3_600.0  # that a job counts as running, and what is held as held on; chosen


@dataclass
class Node:
    """A queue or a user in the tree; the root is a queue without a name."""

    name: str
    shares: float = 1.0
    is_user: bool = False
    usage_gpu_s: float = 0.0  # decayed, of all below it
    held_gpus: float = 0.0
    entitled: float = 1.0  # part of everything
    factor: float = 1.0
    # By whether it is a user, and name
    children: "dict[tuple[bool, str], Node]" = field(default_factory=dict)
    rows: IntArray | None = None  # jobs of a user, in the order in which they come


def tree_of(fair: FairShare, accounts: Iterable[Account], queues: Iterable[str] = ()) -> Node:
    """The tree of these accounts and queues, with what each node is entitled to and has had."""
    root, _ = _grown(fair, accounts, queues)
    _rate(root)
    return root


def _grown(
    fair: FairShare, accounts: Iterable[Account], queues: Iterable[str] = ()
) -> tuple[Node, dict[Account, Node]]:
    """The tree with what each node has had, and the nodes of the accounts."""
    root = Node(ROOT)
    lines = {queue: [root, *_queue(root, queue, fair)] for queue in sorted(queues)}
    users: dict[Account, Node] = {}
    for account in sorted(set(accounts)):
        queue, name = account
        if queue not in lines:
            lines[queue] = [root, *_queue(root, queue, fair)]
        used, held_gpus = fair.usage_gpu_s.get(account, 0.0), fair.held_gpus.get(account, 0.0)
        user = Node(name, fair.user_shares.get(name, 1.0), True)
        users[account] = lines[queue][-1].children[True, name] = user
        for node in (*lines[queue], user):
            node.usage_gpu_s += used
            node.held_gpus += held_gpus
    return root, users


def _queue(root: Node, name: str, fair: FairShare) -> list[Node]:
    """The nodes on the way to a queue, made where they are missing."""
    found = [root]
    for one in line_of(name, fair.parents):
        made = Node(one, fair.queue_shares.get(one, 1.0))
        found.append(found[-1].children.setdefault((False, one), made))
    return found[1:]


def _rate(node: Node) -> None:
    """Say what the children of a node are entitled to, and how far they are from it."""
    shares = sum(child.shares for child in node.children.values())
    usage = sum(child.usage_gpu_s for child in node.children.values())
    for child in node.children.values():
        share = child.shares / shares
        child.entitled = node.entitled * share
        child.factor = 2.0 ** -(child.usage_gpu_s / usage / share) if usage > 0 else 1.0
        _rate(child)


@dataclass(frozen=True, eq=False)
class Accounts:
    """Which account each row is charged to."""

    names: tuple[Account, ...]
    of_row: IntArray  # index into `names`

    @classmethod
    def of(cls, accounts: Sequence[Account]) -> "Accounts":
        """accounts: by row."""
        # Counting compares by identity first: where one user has all jobs, none of them is hashed.
        if accounts and accounts.count(accounts[0]) == len(accounts):
            return cls((accounts[0],), np.zeros(len(accounts), dtype=np.int64))
        index = {name: number for number, name in enumerate(dict.fromkeys(accounts))}
        return cls(tuple(index), ints(list(map(index.__getitem__, accounts))))


def in_fair_order(jobs: JobTable, accounts: Accounts, fair: FairShare) -> IntArray:
    """(jobs,) rows: jobs that hold GPUs as before, then waiting ones, the furthest behind its share first.

    An account that is behind comes first with so many jobs as bring it level with its siblings.
    Ties go by row, which is by submission.
    """
    waiting = np.flatnonzero(jobs.held_gpus == 0)
    order = _dealt(waiting, jobs.min_gpus, accounts, fair)
    return np.concatenate((np.flatnonzero(jobs.held_gpus > 0), order))


def entitled_gpus(gpus: int, asked: IntArray, accounts: Accounts, fair: FairShare) -> IntArray:
    """(accounts,) how many of some GPUs each account is entitled to, of what it asks.

    The GPUs are dealt out in fair order, as if no job held any of them; what no longer fits is passed over.
    asked: (requests,) GPUs of each. Those of one account stand in the order in which they come. fair: what is
    held in it is held beside these GPUs.
    """
    dealt = np.zeros(len(accounts.names), dtype=np.int64)
    order = _dealt(np.flatnonzero(asked <= gpus), asked, accounts, fair)
    while order.size:
        total = asked[order].cumsum()
        count = int(np.searchsorted(total, gpus, side="right"))  # at least the first of them
        np.add.at(dealt, accounts.of_row[order[:count]], asked[order[:count]])
        gpus -= int(total[count - 1])
        order = order[count:]
        order = order[asked[order] <= gpus] if gpus else order[:0]
    return dealt


def _dealt(rows: IntArray, gpus: IntArray, accounts: Accounts, fair: FairShare) -> IntArray:
    """Some rows in fair order. gpus: of every row."""
    root, users = _grown(fair, {*accounts.names, *fair.usage_gpu_s, *fair.held_gpus})
    of_row = accounts.of_row[rows]
    by_account = np.argsort(of_row, kind="stable")
    ends = np.searchsorted(of_row[by_account], np.arange(len(accounts.names) + 1))
    for number, name in enumerate(accounts.names):
        users[name].rows = rows[by_account[ends[number] : ends[number + 1]]]
    return _merged(root, gpus)[0]


def _merged(node: Node, gpus: IntArray) -> tuple[IntArray, FloatArray]:
    """Rows of waiting jobs below a node in order, and the usage with which each is charged.

    Taking again and again from the child with the least usage for its shares, and charging it, is the same as
    sorting. The key is the usage that each child would have before each of its jobs, which only grows along a
    child.
    """
    if node.rows is not None:
        return node.rows, floats(gpus[node.rows]) * AHEAD_S
    branches = [(child, *_merged(child, gpus)) for child in node.children.values()]
    if not branches:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    if len(branches) == 1:
        return branches[0][1:]
    level = [
        (child.usage_gpu_s + child.held_gpus * AHEAD_S + charges.cumsum() - charges) / child.shares
        for child, _, charges in branches
    ]
    rows = np.concatenate([rows for _, rows, _ in branches])
    charges: FloatArray = np.concatenate([charges for _, _, charges in branches])
    order = np.lexsort((rows, np.concatenate(level)))
    return rows[order], charges[order]
