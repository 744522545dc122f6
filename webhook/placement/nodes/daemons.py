"""The pods of a DaemonSet: one for each node that lets it in, whether there is room or not.

Source: the daemon controller's NodeShouldRunDaemonPod and AddOrUpdateDaemonPodTolerations.
"""

from __future__ import annotations

from msgspec.structs import replace

from webhook.model.fleet import Fleet
from webhook.model.pods import Pod, Toleration

DAEMON_TOLERATIONS = tuple(
    Toleration(key=f"node.kubernetes.io/{key}", operator="Exists", effect=effect)
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)
"""What the controller adds to every pod of a DaemonSet."""

HOST_NETWORK_TOLERATION = Toleration(key="node.kubernetes.io/network-unavailable", operator="Exists", effect="NoSchedule")
"""And to those on the network of their host."""


def daemon_set_pod(pod: Pod, *, on_host: bool) -> Pod:
    """The pod as the controller makes it of a DaemonSet's template; `on_host`: on the network of its host."""
    added = (*DAEMON_TOLERATIONS, HOST_NETWORK_TOLERATION) if on_host else DAEMON_TOLERATIONS
    return replace(pod, spec=replace(pod.spec, tolerations=(*pod.spec.tolerations, *added)))


def daemon_set_nodes(pod: Pod, fleet: Fleet) -> int:
    """Mask of the nodes that get one: state, selectors and taints let it in. What is free is not asked."""
    tolerations = pod.spec.tolerations
    return fleet.nodes_selected_by(pod.spec) & fleet.tolerated_nodes(tolerations) & fleet.schedulable_nodes(tolerations)
