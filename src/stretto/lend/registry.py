"""Rules for reclaiming servers, by name."""

from collections.abc import Mapping

from stretto.lend.reclaim import (
    Rule,
    at_random,
    fewest_preemptions,
    least_busy,
    least_preemption_cost,
    smallest_job_count,
)

RULES: Mapping[str, Rule] = {
    "lyra": Rule(least_preemption_cost, True, "Lyra's preemption cost; flexible workers first"),
    "random": Rule(at_random, False, "servers at random"),
    "smallest-count": Rule(smallest_job_count, False, "servers with the fewest jobs (SCF)"),
    "optimal": Rule(fewest_preemptions, False, "fewest preemptions, by an integer program; slow"),
    "least-busy": Rule(least_busy, False, "servers with the fewest GPUs in use: opportunistic scheduling"),
}
