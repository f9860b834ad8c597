"""GPU time that users have had, which counts less the longer ago it was."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp2, expm1, log

HALF_LIFE_S = 7 * 86_400.0  # chosen: the default of Slurm's PriorityDecayHalfLife
PARTS_OF_A_GPU = 1_000  # of speed 1; rates are whole numbers of these, and come back to 0 exactly
LN2 = log(2.0)

Account = tuple[str, str]  # a queue, and a user of it


@dataclass(slots=True)
class Balance:
    """What one account has had, as it stood at a time, and what it holds since then."""

    usage_gpu_s: float = 0.0  # decayed up to `at_s`
    at_s: float = 0.0
    rate: int = 0  # held since then, in thousandths of a GPU

    def at(self, now_s: float, half_life_s: float) -> float:
        """Decayed GPU-seconds at a time that is not before `at_s`.

        What was had t seconds ago counts 2^(-t/H). Of a rate r since t0 that is the integral
        r H / ln 2 (1 - 2^(-(t-t0)/H)), so that nothing depends on how often somebody looks.
        """
        lives = max(now_s - self.at_s, 0.0) / half_life_s
        since = -expm1(-lives * LN2) * half_life_s / LN2 * self.rate / PARTS_OF_A_GPU if self.rate else 0.0
        return self.usage_gpu_s * exp2(-lives) + since


@dataclass(slots=True)
class UsageLedger:
    """Decayed usage by account. Changes only at the times at which somebody comes to hold something else."""

    half_life_s: float = HALF_LIFE_S
    balances: dict[Account, Balance] = field(default_factory=dict)

    def change(self, account: Account, rate: int, now_s: float) -> None:
        """From now on an account holds so much more, in thousandths of a GPU; less where negative."""
        if rate:
            balance = self._settled(account, now_s)
            balance.rate += rate

    def live_by(self, half_life_s: float, now_s: float) -> None:
        """From now on usage decays with another half-life; what has decayed before stays so."""
        if half_life_s == self.half_life_s:
            return
        for account in self.balances:
            self._settled(account, now_s)
        self.half_life_s = half_life_s

    def at(self, now_s: float) -> Mapping[Account, float]:
        """Decayed GPU-seconds of every account that has had any."""
        return {
            account: balance.at(now_s, self.half_life_s) for account, balance in sorted(self.balances.items())
        }

    def held_gpus(self) -> Mapping[Account, float]:
        """What every account holds now, in GPUs of speed 1; those that hold nothing are left out."""
        return {name: one.rate / PARTS_OF_A_GPU for name, one in sorted(self.balances.items()) if one.rate}

    def released(self, now_s: float) -> "UsageLedger":
        """A copy in which nobody holds anything from now on."""
        had = {name: one.at(now_s, self.half_life_s) for name, one in self.balances.items()}
        return UsageLedger(self.half_life_s, {name: Balance(used, now_s) for name, used in had.items()})

    def _settled(self, account: Account, now_s: float) -> Balance:
        balance = self.balances.setdefault(account, Balance(at_s=now_s))
        balance.usage_gpu_s, balance.at_s = balance.at(now_s, self.half_life_s), max(balance.at_s, now_s)
        return balance


def rate_of(gpus: int, speed: float) -> int:
    """What GPUs of a type count, in thousandths of a GPU of speed 1; a type without a speed has speed 1."""
    return gpus * round(speed * PARTS_OF_A_GPU)
