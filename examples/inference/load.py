"""Replays a load on an inference server: `python load.py --trace FILE`.

The trace is a CSV file with `timestamp_s` and `demand_fraction`, as `lend.demand` takes it: shares of
`--peak` requests a second. Without one it is a made day. Requests come at random times (Poisson), whether or
not earlier ones were answered.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path

import httpx
import numpy as np

from stretto.clusters.demand import PERIOD_S, made_demand, read_demand

PIXELS = json.dumps([float(value) for value in np.linspace(0, 1, 64)])


async def replay(server, rates, period_s, seed):
    """(statuses, seconds until the answer) of all requests; rates: requests a second, one for each period."""
    draw, statuses, times_s = random.Random(seed), [], []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
    async with httpx.AsyncClient(base_url=server, limits=limits, timeout=120, trust_env=False) as client:

        async def request():
            sent_s = time.monotonic()
            try:
                statuses.append((await client.post("/predict", content=PIXELS)).status_code)
            except httpx.HTTPError as failure:
                statuses.append(repr(failure))
            times_s.append(time.monotonic() - sent_s)

        begin_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for period, rate in enumerate(rates):
                due_s = period * period_s
                while rate > 0 and (due_s := due_s + draw.expovariate(rate)) < (period + 1) * period_s:
                    await asyncio.sleep(begin_s + due_s - time.monotonic())
                    group.create_task(request())
            await asyncio.sleep(begin_s + len(rates) * period_s - time.monotonic())
    return statuses, np.array(times_s)


def main():
    """Replay, and say what came of it."""
    parser = argparse.ArgumentParser(description="Replays a load on an inference server.")
    parser.add_argument("--server", default="http://127.0.0.1:8800")
    parser.add_argument("--trace", type=Path, help="CSV file; else a made day")
    parser.add_argument("--peak", type=float, default=60.0, help="requests a second at a share of 1")
    parser.add_argument("--pace", type=float, default=1440.0, help="seconds of the trace in one second")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    period_s, shares = (
        read_demand(given.trace) if given.trace else (PERIOD_S, made_demand(days=1, seed=given.seed))
    )
    rates = (shares * given.peak).tolist()
    statuses, times_s = asyncio.run(replay(given.server, rates, period_s / given.pace, given.seed))
    failed = [status for status in statuses if status != 200]
    print(f"{len(statuses)} requests, {len(failed)} failed", end="")
    if statuses:
        median_s, late_s = np.quantile(times_s, [0.5, 0.99])
        print(f"; answered within {1e3 * median_s:.0f} ms (median), {1e3 * late_s:.0f} ms (99 %)")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
