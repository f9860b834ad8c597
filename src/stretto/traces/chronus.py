"""Two weeks of Philly with deadlines, published with Chronus (Gao et al., SoCC 2021). Times are minutes."""

from math import nan

from stretto.model import Adaptivity, Job, JobId, Reward
from stretto.traces.reading import Format, JobOfRow
from stretto.traces.sheet import Sheet, finite_float
from stretto.traces.workload import Truth

MINUTE_S = 60.0
STEP = "-"  # separates the deadlines of a soft job, and their rewards
NO_NUMBERS: tuple[float, ...] = (nan,)


def read(sheet: Sheet) -> JobOfRow:
    """Rigid jobs with a strict deadline, a soft one of several steps, or none (best effort)."""
    ids = sheet.identities("job_id")
    gpus_asked = sheet.counts("num_gpu")
    sheet.leave_out(gpus_asked == 0, "num_gpu is 0; the loader published with the trace skips them too")
    submitted_s = (sheet.numbers("submit_time") * MINUTE_S).tolist()
    duration_s = (sheet.numbers("duration") * MINUTE_S).tolist()
    best_effort = sheet.choices("best_effort", {"0": False, "1": True})
    after_min = sheet.parsed(
        "expect_time_list", _numbers, NO_NUMBERS, "minutes after submission, joined by -"
    )
    value = sheet.parsed("expect_value_list", _numbers, NO_NUMBERS, "rewards, joined by -")
    for row in range(sheet.rows):
        if best_effort[row]:
            continue
        if len(after_min[row]) != len(value[row]):
            expected = f"{len(after_min[row])} rewards, one for each deadline"
            sheet.note(row, "expect_value_list", expected, sheet.cells("expect_value_list")[row])
        elif after_min[row][0] < 0:
            cell = sheet.cells("expect_time_list")[row]
            sheet.note(row, "expect_time_list", "a deadline that is not before submission", cell)
    steps = sheet.numbers("iterations", empty=nan).tolist()
    gpus, model, user = gpus_asked.tolist(), sheet.texts("model_name"), sheet.texts("user")

    def job_of(row: int) -> tuple[Job, Truth]:
        at_s = submitted_s[row]
        pairs = () if best_effort[row] else zip(after_min[row], value[row], strict=True)
        job = Job(
            id=JobId(ids[row]),
            submitted_s=at_s,
            gpus=gpus[row],
            model=model[row],
            adaptivity=Adaptivity.RIGID,
            rewards=tuple(Reward(at_s + after * MINUTE_S, worth) for after, worth in pairs),
            queue=user[row],  # what the file calls a user is a virtual cluster of Philly
        )
        return job, Truth(duration_s=duration_s[row], steps=steps[row])

    return job_of


def _numbers(text: str) -> tuple[float, ...]:
    parts = [text] if text.startswith(STEP) else text.split(STEP)  # a negative number is no separator
    return tuple(finite_float(part) for part in parts)


CHRONUS = Format(
    name="chronus",
    columns=frozenset(
        {"job_id", "num_gpu", "submit_time", "duration", "best_effort"}
        | {"expect_time_list", "expect_value_list"}
    ),
    read=read,
    about="Philly with deadlines, published with Chronus; minutes",
    instead_of=frozenset({"tiresias"}),  # published with the columns of Tiresias beside its own
)
