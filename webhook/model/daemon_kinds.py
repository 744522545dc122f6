"""Kinds of pods that run on every new node of a group too: those of DaemonSets, and static pods.

A pod of a DaemonSet has the node selector and the tolerations of its template, but not the node affinity of it: the
controller replaces that (`pkg/controller/daemon/util/daemonset_util.go` of Kubernetes).
"""

from __future__ import annotations

import msgspec

from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.model.bounded_cache import request_cache
from webhook.model.pod_resources import ResourceAmounts
from webhook.model.pods import DEFAULT_NAMESPACE, Pod, Toleration, is_daemon_pod

MAX_KINDS = 1024
"""Kinds that are counted. A cluster has some dozens."""

MAX_SELECTOR_LABELS = 8
"""Labels of a node selector that are kept; with more, the pods count on every node."""


class DaemonKind(msgspec.Struct, frozen=True, gc=False):
    """Equal pods of one DaemonSet, or one static pod of many nodes.

    Attributes:
        owner: The name of the DaemonSet; of a static pod its name without that of its node.
        is_static: True for a static pod, which the kubelet of a node creates.
        labels: The node selector.
    """

    namespace: str
    owner: str
    is_static: bool
    requests: ResourceAmounts
    labels: tuple[tuple[str, str], ...]
    tolerations: tuple[Toleration, ...]


_shared_kind = request_cache(MAX_KINDS)(DaemonKind)


UNCOUNTED = DaemonKind("", "", is_static=False, requests=(), labels=(), tolerations=())
"""Stands for kinds beyond the most that are counted."""


def is_lasting_pod(pod: Pod) -> bool:
    """Return whether a node always has such a pod: one of a DaemonSet, or a static one."""
    return is_daemon_pod(pod) or MIRROR_ANNOTATION in pod.metadata.annotations


def daemon_kind(pod: Pod, requests: ResourceAmounts) -> DaemonKind | None:
    """Return the kind of a pod on a node; None if neither a DaemonSet nor a kubelet created it."""
    if not pod.spec.node_name or not is_lasting_pod(pod):
        return None
    owners = [each.name for each in pod.metadata.owner_references if each.kind == "DaemonSet"]
    is_static, namespace = not owners, pod.metadata.namespace or DEFAULT_NAMESPACE
    name = pod.metadata.name.removesuffix(f"-{pod.spec.node_name}") if is_static else owners[0]
    labels = tuple(sorted(pod.spec.node_selector.items()))
    kept = labels if len(labels) <= MAX_SELECTOR_LABELS else ()
    return _shared_kind(namespace, name, is_static, requests, kept, pod.spec.tolerations)
