"""Train the network of the policy `drl` by the cross-entropy method, and hold it beside rules.

    python benchmarks/train_drl.py [--iterations 100] [--out src/stretto/policies/drl/weights.npz]

Each iteration plays several episodes of each of a few made workloads with the stochastic policy, keeps the
best fifth of each workload, and raises the probability of what was done there. The world is a light one, made
for this: jobs of concave speed-up on GPUs of one type, resizes that cost time, decisions when a job comes or
goes. Prints what the policy reaches on workloads that it was not trained on, beside two rules.
"""

import argparse
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from stretto.model import BoolArray, FloatArray, IntArray
from stretto.policies.drl.network import FEATURES, Network, Seen, features, logits, write_network

SHOWN = 16  # jobs at most in a decision of an episode
HIDDEN = 128
RESIZE_S = 20.0  # as in ONES's comparison
STEPS_A_DECISION = 24
WORKLOADS, EPISODES, ELITE = 4, 8, 0.2  # each iteration: 32 episodes, the best fifth of each workload
RATE, BATCH = 1e-3, 256  # of Adam
SEED = 1


@dataclass(frozen=True)
class Workload:
    """Jobs with a speed of g ** exponent steps a second on g GPUs."""

    gpus: int
    submitted_s: FloatArray
    work: FloatArray  # steps
    exponent: FloatArray
    most: IntArray  # GPUs


def made_workload(seed: int) -> Workload:
    """Jobs as short as in ONES, arriving fast enough that some have to wait."""
    draw = np.random.default_rng([SEED, seed])
    jobs, gpus = 24, int(draw.choice([8, 16, 32]))
    work = np.clip(draw.lognormal(np.log(900.0), 1.0, jobs), 60.0, 14_400.0)
    load = draw.uniform(0.5, 1.5)
    gap_s = work.mean() / (gpus * load)
    return Workload(
        gpus,
        np.cumsum(draw.exponential(gap_s, jobs)),
        work,
        draw.uniform(0.5, 0.98, jobs),
        draw.choice([2, 4, 8, 16], jobs),
    )


@dataclass
class Episode:
    """One run of a workload, as far as it has come."""

    workload: Workload
    now_s: float = 0.0
    cost_s: float = 0.0  # sum over jobs of the time that they were there
    actions: int = 0  # since the last event
    held: IntArray = field(init=False)
    left: FloatArray = field(init=False)
    ready_s: FloatArray = field(init=False)
    executed_s: FloatArray = field(init=False)
    attained_gpu_s: FloatArray = field(init=False)
    shown: IntArray = field(init=False)

    def __post_init__(self) -> None:
        jobs = len(self.workload.work)
        self.held = np.zeros(jobs, dtype=np.int64)
        self.left = self.workload.work.copy()
        self.ready_s, self.executed_s, self.attained_gpu_s = np.zeros((3, jobs))
        self.advance()

    @property
    def done(self) -> bool:
        """Whether all jobs have ended."""
        return not (self.left > 0).any()

    @property
    def active(self) -> BoolArray:
        """(jobs,) who has come and not ended."""
        return np.asarray((self.left > 0) & (self.workload.submitted_s <= self.now_s))

    @property
    def free(self) -> int:
        """GPUs that nobody holds."""
        return self.workload.gpus - int(self.held.sum())

    def advance(self) -> None:
        """Go on to the next arrival or end after which there is somebody to decide about."""
        while not self.done:
            rate = np.where(self.held > 0, self.held**self.workload.exponent, 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                until_s = np.where(
                    rate > 0, np.maximum(self.ready_s - self.now_s, 0.0) + self.left / rate, np.inf
                )
            coming = self.workload.submitted_s[self.workload.submitted_s > self.now_s]
            then_s = min(self.now_s + until_s.min(), coming.min(initial=np.inf))
            passed_s = then_s - self.now_s
            self.cost_s += passed_s * int(self.active.sum())
            ran_s = np.maximum(then_s - np.maximum(self.ready_s, self.now_s), 0.0)
            self.left = np.where(rate > 0, np.maximum(self.left - rate * ran_s, 0.0), self.left)
            self.left[self.left < 1e-6] = 0.0
            self.executed_s += passed_s * (self.held > 0)
            self.attained_gpu_s += passed_s * self.held
            self.held[self.left == 0] = 0
            self.now_s = float(then_s)
            if self.active.any():
                break
        self.actions = 0
        rows = np.flatnonzero(self.active)
        waits = rows[self.held[rows] == 0][: SHOWN // 2]
        runs = rows[self.held[rows] > 0]
        self.shown = np.concatenate((waits, runs))[:SHOWN]

    def seen(self) -> tuple[Seen, BoolArray, BoolArray]:
        """What is shown, padded to SHOWN jobs, and who may grow and shrink."""
        rows, job = self.shown, self.workload
        held = self.held[rows]
        can = (held < job.most[rows]) & (self.free > 0)
        speed = np.where(held > 0, held ** job.exponent[rows], 0.0)
        gain = np.where(held < job.most[rows], (held + 1) ** job.exponent[rows] - speed, 0.0)

        def padded(values: ArrayLike) -> FloatArray:
            return np.pad(np.asarray(values, dtype=np.float64), (0, SHOWN - len(rows)))

        waited_s = np.where(self.executed_s[rows] > 0, 0.0, self.now_s - job.submitted_s[rows])
        seen = Seen(
            held=padded(held),
            more=padded(held < job.most[rows]),
            waited_s=padded(waited_s),
            executed_s=padded(self.executed_s[rows]),
            attained_gpu_s=padded(self.attained_gpu_s[rows]),
            efficiency=padded(np.where(held > 0, speed / np.maximum(held, 1), 1.0)),
            gain=padded(gain),
            free=np.array([float(self.free)]),
            total=np.array([float(job.gpus)]),
            waiting=np.array([float((self.active & (self.held == 0)).sum())]),
        )
        return seen, padded(can) > 0, padded(held > 1) > 0

    def act(self, action: int) -> None:
        """Grow, shrink, or stop deciding and go on."""
        self.actions += 1
        if action == 2 * SHOWN:
            if not self.held.any():  # an idle cluster starts somebody, as the policy's guard does
                self._resize(int(self.shown[0]), 1)
            self.advance()
            return
        row = int(self.shown[action % SHOWN])
        self._resize(row, 1 if action < SHOWN else -1)
        if self.actions >= STEPS_A_DECISION:
            self.advance()

    def _resize(self, row: int, by: int) -> None:
        if self.held[row] > 0:
            self.ready_s[row] = self.now_s + RESIZE_S
        else:
            self.ready_s[row] = self.now_s
        self.held[row] += by


def played(
    network: Network, workloads: list[Workload], draw: np.random.Generator | None
) -> tuple[FloatArray, list[list[tuple[FloatArray, BoolArray, int]]]]:
    """Mean JCT of each episode, and its states with what was done: without `draw` the likeliest."""
    episodes = [Episode(workload) for workload in workloads]
    taken: list[list[tuple[FloatArray, BoolArray, int]]] = [[] for _ in episodes]
    while going := [at for at, one in enumerate(episodes) if not one.done]:
        views = [episodes[at].seen() for at in going]
        rows = np.stack([features(seen) for seen, _, _ in views])
        grow, shrink = np.stack([view[1] for view in views]), np.stack([view[2] for view in views])
        rated = logits(network, rows, grow, shrink)
        if draw is not None:
            rated = rated + draw.gumbel(size=rated.shape)
        for at, row, may, action in zip(going, rows, np.isfinite(rated), rated.argmax(axis=1), strict=True):
            taken[at].append((row, may, int(action)))
            episodes[at].act(int(action))
    return np.array([one.cost_s / len(one.left) for one in episodes]), taken


def by_rule(workload: Workload, greedy: bool) -> float:
    """Mean JCT where everybody gets a GPU by submission and, if greedy, further ones where they add most."""
    episode = Episode(workload)
    while not episode.done:
        seen, grow, _ = episode.seen()
        first = grow & (seen.held == 0)
        allowed = first if first.any() or not greedy else grow
        worth = np.where(allowed, 1.0 if first.any() else seen.gain, -np.inf)
        episode.act(int(worth.argmax()) if allowed.any() else 2 * SHOWN)
    return episode.cost_s / len(episode.left)


def new_network(draw: np.random.Generator) -> Network:
    sizes = (FEATURES, HIDDEN, HIDDEN, 2)
    layers: list[FloatArray] = []
    for fan_in, fan_out in pairwise(sizes):
        small = 0.1 if fan_out == 2 else 1.0
        layers += [draw.normal(0.0, small * np.sqrt(2 / fan_in), (fan_in, fan_out)), np.zeros(fan_out)]
    return Network(tuple(layers))


class Adam:
    """Steps of Adam with the usual constants."""

    def __init__(self, network: Network) -> None:
        self.first = [np.zeros_like(layer) for layer in network.layers]
        self.second = [np.zeros_like(layer) for layer in network.layers]
        self.steps = 0

    def step(self, network: Network, gradient: list[FloatArray]) -> Network:
        """The network a step further down."""
        self.steps += 1
        layers = []
        for at, (layer, slope) in enumerate(zip(network.layers, gradient, strict=True)):
            self.first[at] = 0.9 * self.first[at] + 0.1 * slope
            self.second[at] = 0.999 * self.second[at] + 0.001 * slope**2
            mean = self.first[at] / (1 - 0.9**self.steps)
            square = self.second[at] / (1 - 0.999**self.steps)
            layers.append(layer - RATE * mean / (np.sqrt(square) + 1e-8))
        return Network(tuple(layers))


def gradient_of(network: Network, rows: FloatArray, may: BoolArray, action: IntArray) -> list[FloatArray]:
    """Of the mean cross-entropy between what the policy would do and what was done."""
    first, bias1, second, bias2, last, bias3 = network.layers
    one = rows @ first + bias1
    hidden1 = np.maximum(one, 0.0)
    two = hidden1 @ second + bias2
    hidden2 = np.maximum(two, 0.0)
    rated = hidden2 @ last + bias3
    flat = np.concatenate((rated[:, :-1, 0], rated[:, :-1, 1], rated[:, -1:, 0]), axis=1)
    flat = np.where(may, flat, -np.inf)
    chance = np.exp(flat - flat.max(axis=1, keepdims=True))
    chance /= chance.sum(axis=1, keepdims=True)
    chance[np.arange(len(action)), action] -= 1.0
    chance /= len(action)
    out = np.zeros_like(rated)
    out[:, :-1, 0], out[:, :-1, 1] = chance[:, :SHOWN], chance[:, SHOWN : 2 * SHOWN]
    out[:, -1, 0] = chance[:, -1]

    def flattened(array: FloatArray) -> FloatArray:
        return array.reshape(-1, array.shape[-1])

    back2 = (out @ last.T) * (two > 0)
    back1 = (back2 @ second.T) * (one > 0)
    return [
        flattened(rows).T @ flattened(back1),
        flattened(back1).sum(axis=0),
        flattened(hidden1).T @ flattened(back2),
        flattened(back2).sum(axis=0),
        flattened(hidden2).T @ flattened(out),
        flattened(out).sum(axis=0),
    ]


def train(iterations: int) -> Network:
    """The network after so many iterations."""
    draw = np.random.default_rng(SEED)
    network = new_network(draw)
    adam = Adam(network)
    for iteration in range(iterations):
        seeds = [1_000 + iteration * WORKLOADS + at for at in range(WORKLOADS)]
        workloads = [made_workload(seed) for seed in seeds for _ in range(EPISODES)]
        jct_s, taken = played(network, workloads, draw)
        kept = []
        for at in range(0, len(workloads), EPISODES):
            best = at + np.argsort(jct_s[at : at + EPISODES])[: max(round(ELITE * EPISODES), 1)]
            kept += [state for episode in best.tolist() for state in taken[episode]]
        rows, may = np.stack([row for row, _, _ in kept]), np.stack([one for _, one, _ in kept])
        action = np.array([one for _, _, one in kept])
        for part in np.array_split(draw.permutation(len(kept)), max(len(kept) // BATCH, 1)):
            network = adam.step(network, gradient_of(network, rows[part], may[part], action[part]))
        if iteration % 10 == 0:
            print(
                f"iteration {iteration}: mean JCT {jct_s.mean():.0f} s, {len(kept)} states kept",
                flush=True,
            )
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    began = time.process_time()
    network = train(asked.iterations)
    spent_s = time.process_time() - began
    fresh = [made_workload(seed) for seed in range(50)]  # none of those trained on
    learned_s, _ = played(network, fresh, None)
    greedy_s = np.array([by_rule(workload, greedy=True) for workload in fresh])
    one_each_s = np.array([by_rule(workload, greedy=False) for workload in fresh])
    print(f"after {asked.iterations} iterations and {spent_s:.0f} s of one core, mean JCT in s")
    print(f"of {len(fresh)} workloads not trained on:")
    print(f"  learned {learned_s.mean():.0f}")
    print(f"  greedy {greedy_s.mean():.0f}")
    print(f"  one GPU each {one_each_s.mean():.0f}")
    print(f"  learned better than greedy on {int((learned_s < greedy_s).sum())} of {len(fresh)}")
    if asked.out is not None:
        write_network(asked.out, network)


if __name__ == "__main__":
    main()
