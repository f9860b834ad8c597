"""What an hour of a GPU costs, by type, from which time on."""

from bisect import bisect_right, insort
from dataclasses import dataclass, field


@dataclass
class GpuPrices:
    """Prices by GPU type. Times are Unix times in microseconds, at quarters of an hour."""

    by_type: dict[str, list[tuple[int, float]]] = field(default_factory=dict)  # (from, price), in order

    def __bool__(self) -> bool:
        """Whether any type has one."""
        return bool(self.by_type)

    def set(self, gpu_type: str, price: float, from_us: int) -> None:
        """It costs so much from then on; what was said of the same time is replaced."""
        prices = [entry for entry in self.by_type.get(gpu_type, []) if entry[0] != from_us]
        insort(prices, (from_us, price))
        self.by_type[gpu_type] = prices

    def at(self, gpu_type: str, at_us: int) -> float | None:
        """The price at a time; None where there is none yet."""
        prices = self.by_type.get(gpu_type, [])
        place = bisect_right(prices, at_us, key=lambda entry: entry[0])
        return prices[place - 1][1] if place else None

    def changes_us(self) -> list[int]:
        """When any of them changes."""
        return sorted({from_us for prices in self.by_type.values() for from_us, _ in prices})

    def rows(self) -> list[tuple[str, int, float]]:
        """(type, from, price) of all, in order."""
        return [(name, *entry) for name, prices in sorted(self.by_type.items()) for entry in prices]
