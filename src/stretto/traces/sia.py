"""Workloads of Sia (SOSP 2023), as its authors published them: what is trained, not how long it takes."""

from stretto.model import Adaptivity, Job, JobId
from stretto.traces.reading import Format, JobOfRow
from stretto.traces.sheet import Sheet
from stretto.traces.workload import Truth

CATEGORIES = {  # the optional column for mixes of rigid and adaptive jobs (section 5.3)
    "adaptive": Adaptivity.ADAPTIVE,
    "scale-gpus": Adaptivity.STRONG_SCALING,
    "rigid": Adaptivity.RIGID,
}


def read(sheet: Sheet) -> JobOfRow:
    """One row is one training run; its GPUs and batch size are those of the tuned rigid version."""
    ids = sheet.identities("name")
    submitted_s = sheet.numbers("time").tolist()
    gpus = sheet.counts("num_replicas", at_least=1).tolist()
    batch_size = sheet.counts("batch_size", at_least=1).tolist()
    model = sheet.texts("application")
    category = sheet.choices("category", CATEGORIES, default=Adaptivity.ADAPTIVE)

    def job_of(row: int) -> tuple[Job, Truth]:
        job = Job(
            id=JobId(ids[row]),
            submitted_s=submitted_s[row],
            gpus=gpus[row],
            model=model[row],
            batch_size=batch_size[row],
            adaptivity=category[row],
        )
        return job, Truth()

    return job_of


SIA = Format(
    name="sia",
    columns=frozenset({"name", "time", "application", "num_replicas", "batch_size"}),
    read=read,
    about="a workload of Sia; durations follow from the profiles",
)
