"""When cyclic garbage is looked for: a look at everything takes a third of a second with 10,000 jobs.

No request is answered meanwhile. What jobs and log hold on to lives long and is freed without a search. So
only what is young is looked at as it comes; everything, once an hour.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 20_000  # objects made and not freed between two looks at the youngest; chosen
# Such looks to one at the middle-aged, and of those to one at all: never by itself
MIDDLE, OLD = 50, 1_000_000
EVERY_S = 3600.0  # between two looks at everything


@contextmanager
def put_off() -> Iterator[None]:
    """Nothing is looked for meanwhile: what a start reads from the log is much, and it stays."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def look_at_the_young() -> None:
    """From now on; what is there already, modules and the state of the log, is left out for good.

    Nothing of it is looked at first: with 100,000 workers that takes a second, and finds next to nothing.
    """
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.enable()


async def collect_all_periodically() -> None:
    """Once an hour, until cancelled."""
    while True:
        await asyncio.sleep(EVERY_S)
        gc.collect()
