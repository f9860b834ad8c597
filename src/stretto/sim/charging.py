"""What every account is charged for what its jobs hold in a simulation, as a live service charges it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.model import Account, Cluster, FairShare, Job, UsageLedger, account_of, rate_of


@dataclass
class Charging:
    """Follows who holds what. shares: those that were set; the usage in them is passed over."""

    jobs: Sequence[Job]
    cluster: Cluster
    shares: FairShare
    ledger: UsageLedger = field(default_factory=UsageLedger)  # in which nobody holds anything yet
    _rates: dict[int, int] = field(default_factory=dict)  # by row, of who holds something
    _accounts: list[Account] = field(init=False)

    def __post_init__(self) -> None:
        """Look up once who is charged."""
        self._accounts = [account_of(job) for job in self.jobs]

    def hold(self, row: int, gpus_of: Mapping[int, int], now_s: float) -> None:
        """From now on a job holds these GPUs, by type; nothing: it holds none."""
        rate = sum(rate_of(gpus, self.cluster.types[kind].speed) for kind, gpus in gpus_of.items())
        self.ledger.change(self._accounts[row], rate - self._rates.pop(row, 0), now_s)
        if rate:
            self._rates[row] = rate

    def at(self, now_s: float) -> FairShare:
        """Shares, with usage as it stands now."""
        return replace(self.shares, usage_gpu_s=self.ledger.at(now_s), held_gpus=self.ledger.held_gpus())
