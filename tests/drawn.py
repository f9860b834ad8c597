"""How many examples a property draws, where it does not leave that to the profile."""

from hypothesis import settings

SHORTER = ("check", "test", "build")  # the profiles of `make check`, `make test` and `make test-build`
USUAL = 100  # examples of a property that names no number
FEWEST = 3  # so that a property is looked at in more than its simplest case


def scaled(count: int) -> int:
    """So many examples; in a shorter lane, the share of them that its profile has of the usual number."""
    if settings.get_current_profile_name() not in SHORTER:
        return count
    return max(FEWEST, count * settings().max_examples // USUAL)
