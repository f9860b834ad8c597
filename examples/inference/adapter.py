"""Tells Stretto what an inference server needs, and the server which nodes it has: `python adapter.py NAME`.

The order matters. The server leaves a node before Stretto hears that it is not needed, and enters one after
Stretto has said that it is free. So no node ever has a replica and a training at once.
"""

import argparse
import sys
import time

import httpx

from stretto.client import Client
from stretto.model import StrettoError


def exchange(stretto, server, lender, usable):
    """One round: leave nodes, say what is needed, hear which nodes there are.

    usable: as Stretto said before; None: it has not yet.
    """
    scale = server.get("/scale").raise_for_status().json()
    wanted = scale["wanted"]
    if usable is not None:
        allowed = usable[max(len(usable) - wanted, 0) :]  # those that come first are lent first
        scale = server.put("/scale", json={"nodes": allowed}).raise_for_status().json()
    # A replica that is ending still answers requests: its node is in use until it has gone.
    return stretto.report_need(lender, nodes=max(wanted, len(scale["running"])))


def main():
    """Exchange what both need to know, until interrupted."""
    parser = argparse.ArgumentParser(description="Tells Stretto what an inference server needs.")
    parser.add_argument("lender", help="its name in Stretto")
    parser.add_argument("--server", default="http://127.0.0.1:8800")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two rounds")
    given = parser.parse_args()
    usable, told = None, ""
    with Client() as stretto, httpx.Client(base_url=given.server, trust_env=False) as server:
        while True:
            try:
                answer = exchange(stretto, server, given.lender, usable)
            except (StrettoError, httpx.HTTPError) as failure:
                line = f"{failure}; trying again"  # both go on with what they were told last
            else:
                usable = answer["usable"]
                line = f"needs {answer['need']:g}, has {' '.join(usable) or 'none'}, lacks {answer['lacks']}"
            if line != told:
                print(line, flush=True)
            told = line
            time.sleep(given.every)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(0)
