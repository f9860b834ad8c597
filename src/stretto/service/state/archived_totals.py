"""What is still counted of jobs that have left the state: as many sums as there are users and queues."""

from dataclasses import dataclass, field

from stretto.service.state.records import JobRecord

GPU_TICKS_PER_S = 1_000_000  # GPU time is added up in whole microseconds: sums do not depend on the order


@dataclass(slots=True)
class Used:
    """What the jobs of one user in one queue have used."""

    jobs: int = 0
    gpu_ticks: int = 0  # GPU time in microseconds


@dataclass
class ArchivedTotals:
    """Jobs that have left."""

    jobs: int = 0
    used: dict[tuple[str, str], Used] = field(default_factory=dict)  # by user and queue

    def take(self, record: JobRecord) -> None:
        """A job that has ended leaves."""
        self.jobs += 1
        used = self.used.setdefault((record.user, record.queue), Used())
        used.jobs += 1
        used.gpu_ticks += gpu_ticks(record.books.attained_gpu_s)


def gpu_ticks(gpu_s: float) -> int:
    """GPU time in whole microseconds."""
    return round(gpu_s * GPU_TICKS_PER_S)
