"""Who holds GPUs on which node: the pods behind the sums, by name, so that reports can be brought up to date.

And who belongs together: the pods of each gang, those too that wait for a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from webhook.cache.node_usage import NodeUsage, NodeUsageWriter
from webhook.model.batch import gang_of
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.pod_summary import PodSummary
from webhook.model.pods import Pod, pod_key
from webhook.model.quantity import NANO
from webhook.placement.nodes.device_plugin import ContainerRequests, multi_container_requests


class GpuPod(msgspec.Struct, frozen=True, gc=False):
    """One pod with GPUs on a node.

    Attributes:
        uid: Its uid.
        units: Units by GPU resource.
        turns: The containers that ask for whole GPUs; () where no two of them do.
    """

    uid: str
    units: Mapping[str, int]
    turns: ContainerRequests = ()


NO_GPU_PODS: Mapping[str, GpuPod] = MappingProxyType({})
NO_MEMBERS: Mapping[str, str] = MappingProxyType({})


class GpuPodIndex:
    """What readers have. The tenants of one node are never changed, only replaced."""

    def __init__(self) -> None:
        self.by_node: dict[str, Mapping[str, GpuPod]] = {}
        self.node_by_pod: dict[str, str] = {}
        self._members_by_gang: dict[str, dict[str, str]] = {}
        self._gang_by_pod: dict[str, str] = {}

    def on_node(self, node: str) -> Mapping[str, GpuPod]:
        """The pods with GPUs on a node by "namespace/name", the first to come first."""
        return self.by_node.get(node, NO_GPU_PODS)

    def has_pod(self, pod: str) -> bool:
        """Is a pod with GPUs on some node?"""
        return pod in self.node_by_pod

    def gang_members(self, gang: str) -> Mapping[str, str]:
        """The nodes of a gang's pods with GPUs, by "namespace/name"; "" for one that waits."""
        return self._members_by_gang.get(gang, NO_MEMBERS)

    def set_gang(self, pod: str, gang: str, node: str) -> None:
        """A pod belongs to a gang, or to none, and is on a node, or on none."""
        before = self._gang_by_pod.pop(pod, "")
        if before:
            members = self._members_by_gang[before]
            del members[pod]
            if not members:
                del self._members_by_gang[before]
        if gang:
            self._gang_by_pod[pod] = gang
            self._members_by_gang.setdefault(gang, {})[pod] = node

    def set_pod(self, pod: str, node: str, tenant: GpuPod | None) -> None:
        """A pod is on a node now, or on none."""
        before = self.node_by_pod.pop(pod, None)
        if before is not None and (before != node or tenant is None):
            left = {name: each for name, each in self.on_node(before).items() if name != pod}
            self.by_node[before] = left
            if not left:
                del self.by_node[before]
        if tenant is not None:
            self.node_by_pod[pod] = node
            self.by_node[node] = {**self.on_node(node), pod: tenant}


class GpuPodWriter:
    """What the one task has that writes: pods in, sums and tenants out."""

    def __init__(
        self, holdings: NodeUsage, touched: Callable[[str], None], arrived: Callable[[PodSummary], None],
        relisted: Callable[[], None],
    ) -> None:  # fmt: skip
        """Take both in charge.

        Args:
            holdings: The sums; written by nobody else.
            touched: Told the name of a node on which something changed.
            arrived: Told of each pod without GPUs that is on a node and was not known before.
            relisted: Told that all nodes may have changed.
        """
        self.index = GpuPodIndex()
        self._on_arrival = arrived
        self._usage_writer = NodeUsageWriter(holdings, lambda _, node: touched(node), relisted)
        self._incoming: GpuPodIndex | None = None

    def begin(self) -> None:
        """A list begins."""
        self._incoming = GpuPodIndex()
        self._usage_writer.begin()

    def upsert(self, pod: Pod) -> None:
        """A pod is there."""
        line = self._usage_writer.summarize(pod)
        before, tenant = self._usage_writer.set_summary(pod, line), _as_gpu_pod(pod, line)
        if line is not None and line.node and tenant is None and not (before is not None and before.node):
            self._on_arrival(line)
        gang = gang_of(pod) if line is not None and line.gpu_units() else None
        self._set_gpu_pod(pod_key(pod), line.node if line else "", tenant, gang.name if gang else "")

    def remove(self, pod: Pod) -> None:
        """A pod is gone."""
        self._set_gpu_pod(pod_key(pod), "", None)
        self._usage_writer.remove(pod)

    def swap(self) -> None:
        """The list is whole."""
        if self._incoming is not None:
            self.index = self._incoming
        self._incoming = None
        self._usage_writer.swap()

    def _set_gpu_pod(self, pod: str, node: str, tenant: GpuPod | None, gang: str = "") -> None:
        tenants = self.index if self._incoming is None else self._incoming
        tenants.set_pod(pod, node, tenant)
        tenants.set_gang(pod, gang, node)


def _as_gpu_pod(pod: Pod, line: PodSummary | None) -> GpuPod | None:
    """The pod as one that holds GPUs; None where it holds none."""
    amounts = line.requests if line and line.node else ()
    units = {name: -(-amount // NANO) for name, amount in amounts if parse_gpu_resource(name)}
    return GpuPod(pod.metadata.uid, units, multi_container_requests(pod)) if units else None
