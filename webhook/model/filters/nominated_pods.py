"""Nominated pods: the scheduler keeps their resources on the node for which preemption, or a controller, chose them.

Source: `RunFilterPluginsWithNominatedPods` of kube-scheduler. A pod must fit on a node with the nominated pods of at
least its priority there, as if they ran, and also without them: they may go elsewhere. A pod that is nominated for
another node does not count.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from webhook.model.pods import Pod


def nominated_node(pod: Pod) -> str:
    """Return the node for which a pod without a node is nominated; "" for none."""
    return pod.status.nominated_node_name if not pod.spec.node_name else ""


def bind_nominated(pod: Pod) -> Pod:
    """Return a pod as if it ran on the node for which it is nominated; itself if there is none."""
    node = nominated_node(pod)
    return replace(pod, spec=replace(pod.spec, node_name=node)) if node else pod


def select_nominated(pods: Iterable[Pod], priority: int | None) -> tuple[Pod, ...]:
    """Return the nominated pods that a pod of a priority yields to, as if they ran; all if a priority is unknown."""
    return tuple(bind_nominated(pod) for pod in pods if nominated_node(pod) and _is_at_least(pod, priority))


def _is_at_least(pod: Pod, priority: int | None) -> bool:
    own = pod.spec.priority
    return own is None or priority is None or own >= priority
