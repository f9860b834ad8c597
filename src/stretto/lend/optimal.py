"""The fewest preemptions with which servers can be returned: an integer program, for comparison."""

import numpy as np

from stretto.lend.hosting import Hosting
from stretto.model import IntArray
from stretto.solve.errors import NoSolution


def fewest_preemptions(hosting: Hosting, count: int, rng: np.random.Generator) -> IntArray:
    """Servers whose return stops the fewest jobs; among those, with least collateral damage.

    With y_s = 1 where server s goes and q_j = 1 where job j stops:

        minimise Σ q_j + ε (Σ T_j q_j - Σ u_s y_s)    subject to Σ y_s = count, q_j >= y_s for j on s

    T_j: all GPUs of the job, u_s: GPUs in use on the server; what is in brackets is collateral damage, and ε
    is so small that it decides among equal numbers of jobs only. Solved to proven optimality (HiGHS).
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and rarely asked for
    from scipy.sparse import coo_array

    servers, jobs, pairs = hosting.servers, hosting.jobs, len(hosting.job)
    job_gpus = hosting.job_gpus
    small = 1.0 / (1.0 + float(job_gpus.sum()))
    objective = np.concatenate([-small * hosting.server_gpus, 1.0 + small * job_gpus])
    rows = np.arange(pairs)
    follows = coo_array(
        (
            np.concatenate([np.ones(pairs), -np.ones(pairs)]),
            (np.concatenate([rows, rows]), np.concatenate([servers + hosting.job, hosting.server])),
        ),
        shape=(pairs, servers + jobs),
    )
    exactly = np.concatenate([np.ones(servers), np.zeros(jobs)])[None, :]
    constraints = [LinearConstraint(exactly, lb=count, ub=count)]
    if pairs:
        constraints.append(LinearConstraint(follows.tocsc(), lb=0.0))
    integral = np.concatenate([np.ones(servers), np.zeros(jobs)])  # whole y make whole q
    found = milp(
        objective,
        constraints=constraints,
        integrality=integral,
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise NoSolution(f"no {count} of {servers} servers found to return: {found.message}")
    return np.flatnonzero(found.x[:servers] > 0.5)
