"""Right-sizing relies on cordoned nodes, and on nodes without a feature of the kubelet, as the scheduler does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.example_cluster import MIXED, review
from webhook.model.decisions import KeepRequest

SIZING = "mode: enforce\nrightSizing: {}"
SLICE = "nvidia.com/mig-1g.10gb"
CORDON = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
ANY_TAINT = {"operator": "Exists"}


def slices(spec: Json | None = None, **status: Any) -> Json:
    """Return the one node with slices."""
    node = make_node("slices", MIXED, **{SLICE: 7})
    return {**node, "spec": {**node["spec"], **(spec or {})}, "status": {**node["status"], **status}}


def small(**spec: Any) -> PodMaker:
    """Return a pod that requests one GPU and needs 8Gi."""
    return make_pod().gpus(1).needs("8Gi").spec(**spec)


def restarting(action: str) -> PodMaker:
    """Return a pod with a rule for the exit of its container."""
    pod = small()
    pod.main["restartPolicyRules"] = [{"action": action, "exitCodes": {"operator": "In", "values": [1]}}]
    return pod


def mounting(*options: str) -> PodMaker:
    """Return a pod with a volume that is mounted with options."""
    pod = small(volumes=[{"name": "v", "emptyDir": {}}])
    pod.main["volumeMounts"] = [{"name": "v", "mountPath": "/v", "bindMountOptions": list(options)}]
    return pod


CORDONED = {"unschedulable": True}
TAINTED = {"unschedulable": True, "taints": [{"key": CORDON["key"], "effect": "NoSchedule"}]}
NOT_READY = {"conditions": [{"type": "Ready", "status": "False"}]}
RESTARTS, USERS, OPTIONS = (
    "RestartAllContainersOnContainerExits",
    "UserNamespacesHostNetworkSupport",
    "VolumeBindMountOptions",
)
CASES: dict[str, tuple[PodMaker, Json, bool]] = {
    "a node that accepts pods": (small(), slices(), True),
    "a cordoned node": (small(), slices(CORDONED), False),
    "a cordoned node, tolerated": (small(tolerations=[CORDON]), slices(CORDONED), True),
    "a cordoned node with its taint, tolerated": (small(tolerations=[CORDON]), slices(TAINTED), True),
    "a cordoned node with its taint": (small(), slices(TAINTED), False),
    "a cordoned node, tolerated with all taints": (small(tolerations=[ANY_TAINT]), slices(CORDONED), True),
    "a cordoned node, tolerated for another effect": (
        small(tolerations=[CORDON | {"effect": "NoExecute"}]),
        slices(CORDONED),
        False,
    ),
    "a cordoned node that is not ready": (small(tolerations=[CORDON]), slices(CORDONED, **NOT_READY), False),
    "a rule to restart one container": (restarting("Restart"), slices(), True),
    "a rule to restart all containers": (restarting("RestartAllContainers"), slices(), False),
    "a rule to restart all, on a node with the feature": (
        restarting("RestartAllContainers"),
        slices(declaredFeatures=[USERS, RESTARTS]),
        True,
    ),
    "users of its own on the host's network": (small(hostNetwork=True, hostUsers=False), slices(), False),
    "users of its own on the host's network, on a node with the feature": (
        small(hostNetwork=True, hostUsers=False),
        slices(declaredFeatures=[USERS]),
        True,
    ),
    "the host's users on the host's network": (small(hostNetwork=True), slices(), True),
    "users of its own": (small(hostUsers=False), slices(), True),
    "mount options": (mounting("noexec"), slices(declaredFeatures=[RESTARTS]), False),
    "mount options, on a node with the feature": (mounting("noexec"), slices(declaredFeatures=[OPTIONS]), True),
    "no mount options": (mounting(), slices(), True),
}


@pytest.mark.parametrize(("pod", "node", "is_right_sized"), CASES.values(), ids=CASES)
def test_a_pod_is_right_sized_where_the_scheduler_would_place_it(
    pod: PodMaker, node: Json, is_right_sized: bool
) -> None:
    outcome = review(pod, SIZING, nodes=[node]).outcome

    assert isinstance(outcome, KeepRequest) is not is_right_sized
