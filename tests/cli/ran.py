"""A small cluster and trace as files, and what a command leaves behind."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CLUSTER = """\
name: tiny
gpu_types:
  slow: {speed: 1.0}
  fast: {speed: 2.0}
nodes:
  - {type: slow, gpus: 4, count: 2}
  - {type: fast, gpus: 2}
"""
TRACE = """\
job_id,submitted_s,gpus,duration_s
a,0,4,100
b,10,2,50
c,20,1,300
d,30,4,200
"""


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def table(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]


Stretto = Callable[..., Ran]
