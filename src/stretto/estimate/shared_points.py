"""Which points of the jobs of one model are kept, where all of its jobs share them."""

from collections.abc import Sequence

# More points of one placement tell a fit of seven parameters little, and each costs another fit; chosen.
MOST_BATCHES = 4  # local batches kept for each placement
APART = 1.4  # how many times larger than another a further one is


def tells_more(batch: float, known: Sequence[float]) -> bool:
    """Whether a local batch is worth keeping of a placement of which these are known."""
    return len(known) < MOST_BATCHES and all(
        max(batch, other) >= APART * min(batch, other) for other in known
    )
