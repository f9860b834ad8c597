"""Jobs that arrive over time on one machine that may be interrupted.

A cluster is at most as good as one machine that is as fast as all its GPUs together. The machine divides its
time among jobs as it likes. What is least there is a bound for the cluster.
"""

import heapq

import numpy as np

from stretto.model import FloatArray, floats


def least_completions_s(arrives_s: FloatArray, work_s: FloatArray) -> FloatArray:
    """(jobs,) when jobs end, ascending, whose sum is the least: the least left runs first (Schrage, 1968).

    arrives_s, work_s: (jobs,) seconds of the machine.
    """
    order = np.argsort(arrives_s, kind="stable")
    arrives, whole_s = [*arrives_s[order].tolist(), float("inf")], work_s[order].tolist()
    left_s: list[float] = []  # of jobs that are there, as a heap
    ends_s: list[float] = []
    now_s, arrived = 0.0, 0
    while left_s or arrived < len(whole_s):
        if not left_s:
            now_s = max(now_s, arrives[arrived])
        while arrives[arrived] <= now_s:
            heapq.heappush(left_s, whole_s[arrived])
            arrived += 1
        least_s = heapq.heappop(left_s)
        if now_s + least_s <= arrives[arrived]:
            now_s += least_s
            ends_s.append(now_s)
        else:
            heapq.heappush(left_s, least_s - (arrives[arrived] - now_s))
            now_s = arrives[arrived]
    return floats(ends_s)
