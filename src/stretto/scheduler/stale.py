"""A plan meets a world that has moved on: what of it still applies?"""

from collections.abc import Callable, Sequence

from stretto.model import Action, Placement


def still_apply(
    placement: Placement,
    actions: Sequence[Action],
    why_stale: Callable[[Action], str],
    drop: Callable[[Action, str], None],
) -> list[Action]:
    """The actions of which neither the job nor the GPUs have changed since the plan was made.

    `why_stale` is what the world has against an action by itself, "" nothing; whether its GPUs can still be
    had is found out here. Every action that is left out goes to `drop` with the reason.
    """

    def dropped(action: Action, reason: str) -> bool:
        if reason:
            drop(action, reason)
        return bool(reason)

    applicable = [action for action in actions if not dropped(action, why_stale(action))]
    while len(applicable) < len(actions):  # what was dropped may hold on to GPUs that others were to get
        actions = applicable
        released = placement.changed({action.job: None for action in actions})
        applicable = [action for action in actions if not dropped(action, _why_taken(action, released))]
    return applicable


def _why_taken(action: Action, released: Placement) -> str:
    """Whether somebody still holds what a job was to get."""
    after = action.after
    if after is not None and any(
        int(released.busy[node]) & mask for node, mask in zip(after.nodes, after.masks, strict=True)
    ):
        return "others hold its GPUs"
    return ""
