"""Index of the pods that use GPUs: by node, with the GPUs they hold, and by gang."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from webhook.model.batch import gang_of
from webhook.model.pod_summary import PodSummary
from webhook.model.pods import Pod, pod_key
from webhook.placement.nodes.device_plugin import ContainerRequests, multi_container_requests


class GpuPod(msgspec.Struct, frozen=True, gc=False):
    """One pod with GPUs on a node.

    Attributes:
        uid: Its uid.
        units: Units by GPU resource.
        container_requests: Its containers that request whole GPUs; () if fewer than two do.
    """

    uid: str
    units: Mapping[str, int]
    container_requests: ContainerRequests = ()


NO_GPU_PODS: Mapping[str, GpuPod] = MappingProxyType({})
NO_MEMBERS: Mapping[str, str] = MappingProxyType({})


class GpuPodIndex:
    """The pods with GPUs. Mappings that are returned never change."""

    def __init__(self) -> None:
        self._by_node: dict[str, Mapping[str, GpuPod]] = {}
        self._node_by_pod: dict[str, str] = {}
        self._members_by_gang: dict[str, dict[str, str]] = {}
        self._gang_by_pod: dict[str, str] = {}

    def on_node(self, node: str) -> Mapping[str, GpuPod]:
        """Return the pods on a node by "namespace/name", in order of arrival."""
        return self._by_node.get(node, NO_GPU_PODS)

    def has_pod(self, pod: str) -> bool:
        """Return True if the pod is on a node."""
        return pod in self._node_by_pod

    def gang_members(self, gang: str) -> Mapping[str, str]:
        """Return the nodes of a gang's pods by "namespace/name"; "" for a pod without a node."""
        return self._members_by_gang.get(gang, NO_MEMBERS)

    def set_gang(self, pod: str, gang: str, node: str) -> None:
        """Store the gang ("" for none) and node of a pod."""
        before = self._gang_by_pod.pop(pod, "")
        if before:
            members = self._members_by_gang[before]
            del members[pod]
            if not members:
                del self._members_by_gang[before]
        if gang:
            self._gang_by_pod[pod] = gang
            self._members_by_gang.setdefault(gang, {})[pod] = node

    def set_pod(self, pod: str, node: str, entry: GpuPod | None) -> None:
        """Store a pod on a node, or remove it."""
        before = self._node_by_pod.pop(pod, None)
        if before is not None and (before != node or entry is None):
            remaining = {name: each for name, each in self.on_node(before).items() if name != pod}
            self._by_node[before] = remaining
            if not remaining:
                del self._by_node[before]
        if entry is not None:
            self._node_by_pod[pod] = node
            self._by_node[node] = {**self.on_node(node), pod: entry}


class GpuPodTracker:
    """Keeps a `GpuPodIndex` from pod events.

    Attributes:
        index: The pods as they are now.
    """

    def __init__(
        self,
        on_node_change: Callable[[str], None],
        on_cpu_pod: Callable[[PodSummary], None],
        on_relist: Callable[[], None],
    ) -> None:
        """Start empty.

        Args:
            on_node_change: Called with the node of each pod that changed.
            on_cpu_pod: Called with each pod without GPUs that is newly on a node.
            on_relist: Called when all nodes may have changed.
        """
        self.index = GpuPodIndex()
        self._on_node_change, self._on_cpu_pod, self._on_relist = on_node_change, on_cpu_pod, on_relist
        self._incoming: GpuPodIndex | None = None

    def on_list_start(self) -> None:
        """Collect the list in an index of its own."""
        self._incoming = GpuPodIndex()

    def on_pod(self, pod: Pod, before: PodSummary | None, after: PodSummary | None) -> None:
        """Store one pod."""
        node = after.node if after else ""
        units = dict(after.gpu_units()) if after and node else {}
        entry = GpuPod(pod.metadata.uid, units, multi_container_requests(pod)) if units else None
        if after is not None and node and entry is None and not (before is not None and before.node):
            self._on_cpu_pod(after)
        gang = gang_of(pod) if after is not None and after.gpu_units() else None
        index = self.index if self._incoming is None else self._incoming
        index.set_pod(pod_key(pod), node, entry)
        index.set_gang(pod_key(pod), gang.name if gang else "", node)
        if self._incoming is None and before != after:
            for summary in (before, after):
                if summary is not None and summary.node:
                    self._on_node_change(summary.node)

    def on_list_end(self) -> None:
        """Replace the index by the list."""
        if self._incoming is not None:
            self.index, self._incoming = self._incoming, None
        self._on_relist()
