"""What holds whatever the policy is? What jobs have at most, what is given back, what is cut off a plan."""

from stretto.scheduler.constraints.within import decide_within

__all__ = ["decide_within"]
