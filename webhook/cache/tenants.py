"""Who holds GPUs on which node: the pods behind the sums, by name, so that reports can be brought up to date.

And who belongs together: the pods of each gang, those too that wait for a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from webhook.cache.holdings import Holdings, HoldingsWriter
from webhook.model.gangs import gang_of
from webhook.model.lines import Line
from webhook.model.pods import Pod, key_of
from webhook.model.quantity import NANO
from webhook.model.resources import gpu_resource
from webhook.placement.nodes.allotting import Turns, several_turns


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """One pod with GPUs on a node.

    Attributes:
        uid: Its uid.
        units: Units by GPU resource.
        turns: The containers that ask for whole GPUs; () where no two of them do.
    """

    uid: str
    units: Mapping[str, int]
    turns: Turns = ()


NOBODY: Mapping[str, Tenant] = MappingProxyType({})
NO_MEMBERS: Mapping[str, str] = MappingProxyType({})


class Tenants:
    """What readers have. The tenants of one node are never changed, only replaced."""

    def __init__(self) -> None:
        self.by_node: dict[str, Mapping[str, Tenant]] = {}
        self.nodes: dict[str, str] = {}
        self._gangs: dict[str, dict[str, str]] = {}
        self._gang: dict[str, str] = {}

    def on(self, node: str) -> Mapping[str, Tenant]:
        """The pods with GPUs on a node by "namespace/name", the first to come first."""
        return self.by_node.get(node, NOBODY)

    def knows(self, pod: str) -> bool:
        """Is a pod with GPUs on some node?"""
        return pod in self.nodes

    def members(self, gang: str) -> Mapping[str, str]:
        """The nodes of a gang's pods with GPUs, by "namespace/name"; "" for one that waits."""
        return self._gangs.get(gang, NO_MEMBERS)

    def join(self, pod: str, gang: str, node: str) -> None:
        """A pod belongs to a gang, or to none, and is on a node, or on none."""
        before = self._gang.pop(pod, "")
        if before:
            members = self._gangs[before]
            del members[pod]
            if not members:
                del self._gangs[before]
        if gang:
            self._gang[pod] = gang
            self._gangs.setdefault(gang, {})[pod] = node

    def set(self, pod: str, node: str, tenant: Tenant | None) -> None:
        """A pod is on a node now, or on none."""
        before = self.nodes.pop(pod, None)
        if before is not None and (before != node or tenant is None):
            left = {name: each for name, each in self.on(before).items() if name != pod}
            self.by_node[before] = left
            if not left:
                del self.by_node[before]
        if tenant is not None:
            self.nodes[pod] = node
            self.by_node[node] = {**self.on(node), pod: tenant}


class TenantsWriter:
    """What the one task has that writes: pods in, sums and tenants out."""

    def __init__(
        self, holdings: Holdings, touched: Callable[[str], None], arrived: Callable[[Line], None],
        relisted: Callable[[], None],
    ) -> None:  # fmt: skip
        """Take both in charge.

        Args:
            holdings: The sums; written by nobody else.
            touched: Told the name of a node on which something changed.
            arrived: Told of each pod without GPUs that is on a node and was not known before.
            relisted: Told that all nodes may have changed.
        """
        self.tenants = Tenants()
        self._arrived = arrived
        self._sums = HoldingsWriter(holdings, lambda _, node: touched(node), relisted)
        self._coming: Tenants | None = None

    def begin(self) -> None:
        """A list begins."""
        self._coming = Tenants()
        self._sums.begin()

    def put(self, pod: Pod) -> None:
        """A pod is there."""
        line = self._sums.line(pod)
        before, tenant = self._sums.set(pod, line), _tenant(pod, line)
        if line is not None and line.node and tenant is None and not (before is not None and before.node):
            self._arrived(line)
        gang = gang_of(pod) if line is not None and line.gpus() else None
        self._note(key_of(pod), line.node if line else "", tenant, gang.name if gang else "")

    def remove(self, pod: Pod) -> None:
        """A pod is gone."""
        self._note(key_of(pod), "", None)
        self._sums.remove(pod)

    def swap(self) -> None:
        """The list is whole."""
        if self._coming is not None:
            self.tenants = self._coming
        self._coming = None
        self._sums.swap()

    def _note(self, pod: str, node: str, tenant: Tenant | None, gang: str = "") -> None:
        tenants = self.tenants if self._coming is None else self._coming
        tenants.set(pod, node, tenant)
        tenants.join(pod, gang, node)


def _tenant(pod: Pod, line: Line | None) -> Tenant | None:
    """The pod as one that holds GPUs; None where it holds none."""
    amounts = line.requests if line and line.node else ()
    units = {name: -(-amount // NANO) for name, amount in amounts if gpu_resource(name)}
    return Tenant(pod.metadata.uid, units, several_turns(pod)) if units else None
