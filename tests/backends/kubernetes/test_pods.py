"""What pods say of their workers, in every state that a kubelet and others can leave them in."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.backends.kubernetes import manifests, pod_events, pods
from stretto.backends.kubernetes.objects import Pod
from stretto.backends.protocol import WorkerState

STARTED, FINISHED = "2026-11-20T10:00:00Z", "2026-11-20T10:05:00Z"


def a_pod(
    *,
    phase: str = "Running",
    state: dict[str, Any] | None = None,
    node: str = "n1",
    deleted: int | None = None,
    orders: str = "",
    **status: Any,
) -> Pod:
    """A pod of worker 7.1.0; deleted: the grace with which it is being deleted; None: it is not."""
    statuses = [{"name": manifests.CONTAINER, "state": state}] if state is not None else []
    metadata: dict[str, Any] = {
        "name": "x",
        "labels": {manifests.JOB: "7"},
        "annotations": {
            manifests.WORKER: "7.1.0",
            manifests.GPUS: "2,3",
            manifests.ORDERS: orders,
            **status.pop("annotations", {}),
        },
    }
    if deleted is not None:
        metadata |= {"deletionTimestamp": FINISHED, "deletionGracePeriodSeconds": deleted}
    value = {
        "metadata": metadata,
        "spec": {"nodeName": node},
        "status": {"phase": phase, "containerStatuses": statuses, **status},
    }
    return msgspec.convert(value, Pod)


def state_of(pod: Pod, node_up: bool = True, node_dead: bool = False) -> WorkerState:
    return pods.state_of(pod, "n1", node_up, node_dead)


RUNNING = {"running": {"startedAt": STARTED}}
STOP = '{"stop": 5}\n'


def ended_with(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    return {
        "terminated": {
            "exitCode": code,
            "reason": reason,
            "message": message,
            "startedAt": STARTED,
            "finishedAt": FINISHED,
        }
    }


def test_a_pod_that_waits_is_a_worker_that_starts_and_says_why() -> None:
    unscheduled = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
    ]
    state = state_of(a_pod(phase="Pending", node="", conditions=unscheduled))
    assert (state.phase, state.node, state.gpus, state.why) == (
        "starting",
        "n1",
        (2, 3),
        "Unschedulable: 0/2 nodes",
    )
    creating = {"waiting": {"reason": "ContainerCreating"}}
    assert state_of(a_pod(phase="Pending", state=creating)).why == ""


def test_a_container_that_runs_is_a_worker_that_runs_while_its_node_is_up() -> None:
    assert state_of(a_pod(state=RUNNING)).phase == "running"
    assert state_of(a_pod(state=RUNNING), node_up=False).phase == "unknown"
    lost = state_of(a_pod(state=RUNNING), node_up=False, node_dead=True)
    assert (lost.phase, lost.status, lost.holds_gpus) == ("ended", 137, False)


def test_a_deletion_that_was_asked_for_frees_nothing() -> None:
    assert state_of(a_pod(state=RUNNING, deleted=30)).phase == "running"
    forced = state_of(a_pod(state=RUNNING, deleted=0))
    assert (forced.phase, forced.holds_gpus) == ("unknown", True)
    assert "by force" in forced.why


def test_the_supervisors_word_for_an_end_comes_first() -> None:
    message = json.dumps({"status": 0, "signal": None, "lasted_s": 12.5, "why": ""})
    state = state_of(a_pod(phase="Failed", state=ended_with(143, message), orders=STOP))
    assert (state.status, state.signal, state.stopped, state.lasted_s) == (0, None, True, 12.5)


@pytest.mark.parametrize("status", [0, 1])
def test_who_was_asked_to_end_by_others_was_stopped_whatever_its_status(status: int) -> None:
    message = json.dumps({"status": status, "signal": None, "stopped": True})
    state = state_of(a_pod(phase="Failed", state=ended_with(status, message), deleted=30))
    assert (state.status, state.stopped) == (status, True), "it has saved, and is not done"
    by_itself = json.dumps({"status": status, "signal": None, "stopped": False})
    assert not state_of(a_pod(phase="Failed", state=ended_with(status, by_itself), deleted=30)).stopped


@pytest.mark.parametrize(
    ("code", "signal", "reason", "why"),
    [
        (0, None, "Completed", ""),
        (7, None, "Error", ""),
        (137, 9, "OOMKilled", "Kubernetes says OOMKilled"),
        (139, 11, "Error", ""),
    ],
)
def test_without_it_the_kubelet_is_believed(code: int, signal: int | None, reason: str, why: str) -> None:
    state = state_of(a_pod(phase="Failed", state=ended_with(code, "", reason)))
    assert (state.phase, state.status, state.signal, state.why) == ("ended", code, signal, why)
    assert state.lasted_s == 300.0


@pytest.mark.parametrize("reason", ["Unknown", "ContainerStatusUnknown"])
def test_an_end_that_nobody_saw_counts_as_that_of_a_node_that_died(reason: str) -> None:
    state = state_of(a_pod(state=ended_with(255, reason=reason)))
    assert (state.phase, state.status, state.signal) == ("ended", 137, 9)
    assert state.why == f"Kubernetes says {reason}"
    assert state.is_nodes_fault
    told = state_of(a_pod(state=ended_with(255, '{"status": 3}', reason)))
    assert (told.status, told.signal) == (3, None), "its supervisor has seen it"
    assert not told.is_nodes_fault


def test_a_container_that_its_kubelet_has_lost_has_run_and_is_over() -> None:
    """So kubelets say it of about one in a hundred deleted pods whose container went before they looked."""
    lost = {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": "The container used to be Running",
    }
    pod = a_pod(phase="Failed", state={"waiting": {"reason": "ContainerCreating"}}, deleted=10, orders=STOP)
    assert state_of(pod).why.startswith("it was withdrawn before it began")
    (status,) = pod.status.containerStatuses
    status.lastState = msgspec.convert({"terminated": lost}, type(status.state))
    state = state_of(pod)
    assert (state.phase, state.status, state.signal, state.stopped) == ("ended", 137, 9, True)
    assert state.why == "Kubernetes says ContainerStatusUnknown"
    assert not state.is_nodes_fault, "it was told to end"


# As a kubelet of 1.20 left a pod that it had run: its machine came back before the device plug-in did.
REJECTED: dict[str, Any] = {
    "phase": "Failed",
    "reason": "OutOfnvidia.com/gpu",
    "message": "Pod Node didn't have enough resource: nvidia.com/gpu, requested: 2, used: 0, capacity: 0",
    "startTime": STARTED,
}


def test_a_worker_that_began_and_that_its_kubelet_rejects_later_is_lost_by_its_node() -> None:
    mark: dict[str, Any] = {"annotations": pods.mark_due(a_pod(state=RUNNING))}
    state = state_of(a_pod(**REJECTED, **mark))
    assert (state.phase, state.status, state.signal, state.stopped) == ("ended", 137, 9, False)
    assert state.why == f"Kubernetes says OutOfnvidia.com/gpu: {REJECTED['message']}"
    assert state.started_s == pods.seconds(STARTED)
    assert state.is_nodes_fault
    never_began = state_of(a_pod(**REJECTED))
    assert (never_began.status, never_began.is_nodes_fault) == (143, False)


@pytest.mark.parametrize(
    ("reason", "is_nodes_fault"), [("UnexpectedAdmissionError", True), ("Evicted", False), ("", False)]
)
def test_what_a_kubelet_says_of_a_container_that_it_forgot_tells_whose_fault_it_was(
    reason: str, is_nodes_fault: bool
) -> None:
    pod = a_pod(phase="Failed", reason=reason, annotations=pods.mark_due(a_pod(state=RUNNING)))
    state = state_of(pod)
    assert (state.status, state.is_nodes_fault) == (137, is_nodes_fault)
    assert state.why == (f"Kubernetes says {reason}" if reason else "its kubelet tells no more of it")


def test_the_mark_that_it_began_is_made_once_and_is_no_news() -> None:
    before = a_pod(state=RUNNING)
    after = a_pod(state=RUNNING, annotations=pods.mark_due(before))
    assert pods.mark_due(after) == {} == pods.mark_due(a_pod(phase="Pending"))
    assert not pods.says_new(before, after)
    assert pods.says_new(before, a_pod(state=RUNNING, orders=STOP))
    assert pods.says_new(before, a_pod(state=RUNNING, deleted=30))
    assert pods.says_new(before, a_pod(state=ended_with(0)))


def test_who_took_it_away_is_said() -> None:
    target = [
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drain"}
    ]
    assert (
        state_of(a_pod(state=ended_with(143), conditions=target)).why
        == "Kubernetes says EvictionByEvictionAPI: drain"
    )
    assert state_of(a_pod(state=ended_with(143), deleted=30)).why == "its pod was deleted by somebody else"
    assert state_of(a_pod(state=ended_with(143), deleted=30, orders=STOP)).why == ""


def test_a_sidecar_that_still_runs_keeps_the_gpus() -> None:
    pod = a_pod(state=ended_with(0))
    pod.status.containerStatuses.append(
        msgspec.convert({"name": "proxy", "state": RUNNING}, type(pod.status.containerStatuses[0]))
    )
    assert state_of(pod).holds_gpus


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(phase="Pending", node="", deleted=0, orders=STOP),
        a_pod(phase="Pending", deleted=0, orders=STOP),
        a_pod(phase="Failed", reason="UnexpectedAdmissionError", message="no GPU"),
    ],
)
def test_a_pod_that_never_began_was_withdrawn(pod: Pod) -> None:
    state = state_of(pod)
    assert (state.phase, state.status, state.stopped) == ("ended", 143, True)
    assert state.why.startswith("it was withdrawn before it began")


def test_a_pod_that_its_kubelet_still_has_is_not_over_though_it_never_began() -> None:
    assert state_of(a_pod(phase="Pending", deleted=30)).phase == "starting"


@pytest.mark.parametrize(
    ("reason", "is_hopeless", "status", "stopped"),
    [
        ("InvalidImageName", True, 125, False),
        ("ImagePullBackOff", False, 125, False),
        ("PodScheduled", False, 143, True),
    ],
)
def test_what_does_not_begin_is_taken_back_with_kubernetes_own_words(
    reason: str, is_hopeless: bool, status: int, stopped: bool
) -> None:
    ending = pods.withdrawal(pods.Trouble(f"{reason}: no such thing", is_hopeless), 60.0)
    assert (ending["status"], ending["stopped"]) == (status, stopped)
    assert "no such thing" in ending["why"]
    pod = a_pod(phase="Pending", deleted=0, annotations={manifests.WITHDRAWN: json.dumps(ending)})
    assert state_of(pod).status == status


def test_the_page_explains_every_reason_that_ends_a_start() -> None:
    page = (Path(__file__).parents[3] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    explained = page.partition("## Troubleshooting")[2].partition("\n## ")[0]
    assert sorted(reason for reason in pods.HOPELESS | pod_events.TROUBLES if reason not in explained) == []


# ── what others may have written there ────────────────────────────────────────────────────────────

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["status", "signal", "stopped", "why", "started_s", "lasted_s", "id", "x"]), inner
        )
    ),
    max_leaves=6,
)
WRITTEN = JSON.map(json.dumps) | st.text(max_size=20) | st.lists(JSON.map(json.dumps)).map("\n".join)


@given(WRITTEN, WRITTEN, WRITTEN, WRITTEN)
def test_whatever_is_written_into_a_pod_it_has_a_state(gpus: str, orders: str, noted: str, last: str) -> None:
    annotations = {manifests.GPUS: gpus, manifests.WITHDRAWN: noted, manifests.BEGAN: last}
    for phase, state in (("Failed", None), ("Failed", ended_with(1, last)), ("Running", RUNNING)):
        shown = state_of(a_pod(phase=phase, state=state, orders=orders, annotations=annotations))
        assert shown.id == "7.1.0"
        assert shown.gpus == tuple(shown.gpus)
        assert all(0 <= gpu < 10**pods.MOST_DIGITS for gpu in shown.gpus)
        json.dumps([shown.status, shown.signal, shown.stopped, shown.why])
        assert shown.status is None or isinstance(shown.status, int)


@pytest.mark.parametrize(
    "message", ['{"status": 0, "signal": []}', '{"status": "0"}', '{"status": 0, "why": 3}', "[]", "[" * 2000]
)
def test_a_last_message_that_is_no_report_says_nothing(message: str) -> None:
    state = state_of(a_pod(phase="Failed", state=ended_with(137, message, "OOMKilled")))
    assert (state.status, state.signal) == (137, 9)
    assert "OOMKilled" in state.why


@pytest.mark.parametrize("note", ["x", '{"status": null, "lasted_s": 3}'])
def test_a_note_that_cannot_be_read_is_a_withdrawal_like_others(note: str) -> None:
    pod = a_pod(phase="Failed", node="", annotations={manifests.WITHDRAWN: note})
    assert (state_of(pod).phase, state_of(pod).status, state_of(pod).stopped) == ("ended", 143, True)


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


@pytest.mark.parametrize(
    ("state", "patience_s"),
    [
        pytest.param(None, 60.0, id="no word of its kubelet"),
        pytest.param(waiting("ContainerCreating"), 1800.0, id="its image is pulled"),
        pytest.param(waiting("PodInitializing"), 1800.0, id="it is initialised"),
        pytest.param(waiting("ImagePullBackOff"), 60.0, id="a trouble that may pass"),
        pytest.param(waiting("CreateContainerConfigError"), 60.0, id="a Secret that is not there yet"),
        pytest.param(waiting("InvalidImageName"), pods.HOPELESS_S, id="what no wait mends"),
    ],
)
def test_how_long_a_pod_may_take_to_begin(state: dict[str, Any] | None, patience_s: float) -> None:
    pod = a_pod(phase="Pending", state=state)
    assert pods.patience_s(pod, pods.trouble_of(pod), 60.0, 1800.0) == patience_s
