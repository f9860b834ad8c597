"""What a kubelet tells of a pod in Events only: volumes that it cannot mount, a sandbox that does not come.

The status of such a pod says no more than that its container is being created. So the Events of a namespace
are looked at, now and then, while pods there have been getting ready for a while.
"""

import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping

from stretto.backends.kubernetes import manifests
from stretto.backends.kubernetes.api import EVENTS, Api, Expired, Refusal
from stretto.backends.kubernetes.objects import Event, Pod
from stretto.backends.kubernetes.pods import MOST_WORDS, Trouble, is_getting_ready, seconds
from stretto.backends.protocol import BackendUnreachable

log = logging.getLogger(__name__)

TROUBLES = frozenset(
    ["FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox", "NetworkNotReady"]
)
BEFORE = ("Scheduled", "FailedScheduling", "TriggeredScaleUp")  # told before a kubelet has a pod
# Said beside the reason, of a volume for which the kubelet has waited too long.
WAITED = "Unable to attach or mount volumes"
# In the words for an object that the job names and that is not there. Ours are made again.
MISSING = re.compile(rf'(secret|configmap|persistentvolumeclaim) "(?!{manifests.CODE_MAP})[^"]+" not found')
LOOK_S = 20.0  # between looks at one namespace; chosen


class PodEvents:
    """The latest look at those of pods that do not begin."""

    def __init__(self, api: Api, begins_s: float) -> None:
        """begins_s: for which nothing is looked at of a pod."""
        self.api, self.begins_s = api, begins_s
        self._looked_s: dict[str, float] = {}  # monotonic; by namespace
        self._troubles: dict[str, dict[str, Trouble]] = {}  # by namespace, and by uid of the pod
        self._refused = ""

    def trouble_of(self, pod: Pod) -> Trouble | None:
        """What keeps a pod that is getting ready from it, in its kubelet's words; None for nothing known."""
        if not is_getting_ready(pod):
            return None
        return self._troubles.get(pod.metadata.namespace, {}).get(pod.metadata.uid)

    async def look(self, own: Iterable[Pod], since_s: Mapping[str, float]) -> bool:
        """Look at the Events of pods that have waited for long; whether more is known then, or less.

        since_s: from when on each waits, by uid.
        """
        before, now_s = self._troubles, time.monotonic()
        of_namespace: dict[str, set[str]] = {}
        for pod in own:
            is_late = since_s.get(pod.metadata.uid, now_s) + self.begins_s <= now_s
            if is_late and is_getting_ready(pod):
                of_namespace.setdefault(pod.metadata.namespace, set()).add(pod.metadata.uid)
        self._troubles = {name: known for name, known in before.items() if name in of_namespace}
        for namespace, uids in of_namespace.items():
            if now_s - self._looked_s.get(namespace, -LOOK_S) < LOOK_S:
                continue
            self._looked_s[namespace] = now_s
            try:
                events, _ = await self.api.list(EVENTS, namespace, fields="involvedObject.kind=Pod")
            except (BackendUnreachable, Refusal, Expired) as failure:
                self._note(failure)
                continue
            self._refused = ""
            self._troubles[namespace] = troubles_in(events, uids)
        return self._troubles != before

    def _note(self, failure: Exception) -> None:
        """Say once why nothing is known of Events."""
        if str(failure) != self._refused:
            log.warning("why pods do not begin is not known: %s", failure)
        self._refused = str(failure)


def troubles_in(events: Iterable[Event], uids: Collection[str]) -> dict[str, Trouble]:
    """By uid, what troubles those of some pods about which nothing better was told since."""
    of_pod: dict[str, list[Event]] = {}
    for event in sorted(events, key=_told_s):
        if event.involvedObject.uid in uids and event.reason not in BEFORE:
            of_pod.setdefault(event.involvedObject.uid, []).append(event)
    troubles = {uid: trouble_in(told) for uid, told in of_pod.items()}
    return {uid: trouble for uid, trouble in troubles.items() if trouble is not None}


def trouble_in(told: list[Event]) -> Trouble | None:
    """What the Events of one pod say, from its first to its last."""
    latest: list[Event] = []
    for event in reversed(told):
        if event.reason not in TROUBLES:
            break
        latest.append(event)
    if not latest:
        return None
    event = next((each for each in latest if not each.message.startswith(WAITED)), latest[0])
    is_missing = bool(MISSING.search(event.message))
    words = f"{event.reason}: {event.message}".strip(": ")
    return Trouble(words[:MOST_WORDS], is_missing, may_pass=True, is_of_mounts=True)


def _told_s(event: Event) -> int:
    """When it was last told, in whole seconds, as kubelets say it."""
    observed = event.series.lastObservedTime if event.series is not None else None
    stamps = (observed, event.lastTimestamp, event.eventTime, event.metadata.creationTimestamp)
    return int(next((at_s for stamp in stamps if (at_s := seconds(stamp)) is not None), 0.0))
