"""What became of each job, from what the service wrote down."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import stdev
from typing import Any

from stretto.client import Client


@dataclass
class Outcome:
    """One job, when all is over."""

    job: str
    name: str
    kind: str
    state: str
    came_s: float  # when it was submitted
    waited_s: float | None  # until its first process ran
    jct_s: float | None  # from its submission to its end
    sizes: list[tuple[float, int]] = field(default_factory=list)  # (time, GPUs that work from then on)
    resizes: int = 0  # in place
    lost_s: float = 0.0  # of training, in these
    reached: float | None = None  # accuracy, or whatever the script prints last
    alone: list[float] = field(default_factory=list)  # what the same script reaches undisturbed, by seed
    is_exact: bool | None = None  # each sample once in every epoch; None: not looked at
    samples: str = ""  # the same in words
    deadline: str = ""
    last_words: list[str] = field(default_factory=list)  # of a job that did not complete

    @property
    def undisturbed(self) -> float | None:
        """What the same script reaches alone, with the job's own seed."""
        return self.alone[0] if self.alone else None

    @property
    def noise(self) -> float | None:
        """Standard deviation of what it reaches alone, over seeds; None where there are not two."""
        return stdev(self.alone) if len(self.alone) > 1 else None

    @property
    def is_good(self) -> bool:
        """Whether it came to its right end."""
        return self.state == "COMPLETED" and self.is_exact is not False


def outcome_of(client: Client, job: str, deadline_s: float | None = None) -> Outcome:
    """The outcome of a job that has ended."""
    described = client.describe(job)
    events = list(events_of(client, job))
    sizes = sizes_in(events)
    came_s, ended_s = float(described["submitted_s"]), described["ended_s"]
    ran_s = next((at_s for at_s, kind, _ in events if kind == "WorkersRan"), None)
    jct_s = None if ended_s is None else ended_s - came_s
    met = "" if deadline_s is None or jct_s is None else "met" if jct_s <= deadline_s else "missed"
    return Outcome(
        job=job,
        name=described["name"],
        kind=described["kind"],
        state=described["state"],
        came_s=came_s,
        waited_s=None if ran_s is None else ran_s - came_s,
        jct_s=jct_s,
        sizes=sizes,
        resizes=described["switches"],
        lost_s=described["lost_s"],
        deadline=met,
    )


def events_of(client: Client, job: str) -> Iterator[tuple[float, str, Mapping[str, Any]]]:
    """(time, kind, body) of all that has happened to a job."""
    answer = client.http.get(f"/api/v1/jobs/{job}/events")
    answer.raise_for_status()
    for line in answer.text.splitlines():
        if line.startswith("data: "):
            body = json.loads(line.removeprefix("data: "))
            yield float(body["at_s"]), str(body["kind"]), body


def sizes_in(events: Sequence[tuple[float, str, Mapping[str, Any]]]) -> list[tuple[float, int]]:
    """When how many GPUs worked for a job: those of its processes, or of those that train together."""
    gpus: dict[str, int] = {}
    alive: set[str] = set()
    members: tuple[str, ...] = ()
    sizes: list[tuple[float, int]] = []
    for at_s, kind, body in events:
        if kind == "WorkersWanted":
            gpus |= {worker["id"]: int(worker["mask"]).bit_count() for worker in body["workers"]}
        elif kind == "WorkersRan":
            alive |= set(body["workers"])
        elif kind == "Joined":  # which may be known before a look at its process says so
            alive.add(body["worker"])
        elif kind == "WorkerEnded":
            alive.discard(body["worker"])
        elif kind == "WorkersEnded":
            alive -= {worker["id"] for worker in body["workers"]}
        elif kind == "Generation":
            members = tuple(body["workers"])
        elif kind == "AttemptClosed":  # of workers that were lost with a node nothing else is said
            members, alive = (), set()
        working = sum(gpus.get(name, 0) for name in (alive & set(members) if members else alive))
        if not sizes or sizes[-1][1] != working:
            sizes.append((at_s, working))
    return sizes
