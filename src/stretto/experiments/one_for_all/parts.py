"""The parts of the policy `stretto`, as switches that leave out one at a time."""

from stretto.experiments.causes import Switch

OURS = "stretto"


def part(what: str, **settings: str) -> Switch:
    """A part of the policy that is left out; settings: space__key."""
    return Switch(what, {key.replace("__", "."): value for key, value in settings.items()}, only=OURS)


PARTS = (
    part("each job learns alone", estimate__share="job"),
    part("no job is given more GPUs than its model was seen on", policy__growth="1"),
    part("the product of remaining times is least", policy__exponent="0", policy__crowded_exponent="none"),
    part("a crowded cluster has the same exponent", policy__crowded_exponent="none"),
    part("a wait adds nothing to the time that is left", policy__wait="0.001"),
    part("a deadline makes a job count neither more nor less", policy__deadline="0", policy__early="1"),
    part("a job whose deadline can wait counts as any other", policy__early="1"),
    part("no deadline is promised", policy__promised_share="0.0001"),
    part("changes are charged over all that is left", policy__lifetime_s="1e9"),
    part("a change of size is charged as any other", policy__sizes_end="false"),
    part("lenders are believed to take nothing back", policy__reclaims="0"),
    part("what a user has had does not matter", policy__fairness="0"),
    part("serving a job is not worth more the longer it has waited", policy__patience_s="1e12"),
    part("no job is believed to be longer than it is said to be", policy__doubt="0"),
)
