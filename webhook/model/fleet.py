"""Fleet: the nodes of a cluster, indexed so that a pod's constraints cost a few integer operations.

Every set of nodes is a bit mask in one Python integer: bit i is node i. Selecting by labels, taints and
names is AND, OR and NOT over masks that were made once, when the nodes changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from webhook.model.objects import Taint
from webhook.model.offers import Offer
from webhook.model.pods import NodeSelectorTerm, Toleration


class FleetNode(msgspec.Struct, frozen=True, gc=False):
    """One node as scheduling sees it.

    Attributes:
        labels: All its labels; `kubernetes.io/hostname` among them where the node has it.
        taints: Its NoSchedule and NoExecute taints (PreferNoSchedule keeps nobody out).
        cpu_milli: Allocatable CPU in millicores.
        memory: Allocatable memory in bytes.
        gpus: Allocatable units by GPU resource name.
        usable: False while it is cordoned, not ready, or its GPUs are being reconfigured.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    cpu_milli: int
    memory: int
    gpus: Mapping[str, int]
    usable: bool = True


class Fleet:
    """Immutable once made. `nodes[i]` is bit i of every mask.

    Attributes:
        nodes: Every node.
        offers: Every offer, in a fixed order (least GPU share first, then resource, product, taints).
        by_resource: The same by resource name.
        everyone: Mask of all nodes.
        usable: Mask of the nodes that take new pods.
        by_name: Index of a node by its name.
    """

    nodes: tuple[FleetNode, ...]
    offers: tuple[Offer, ...]
    by_resource: Mapping[str, tuple[Offer, ...]]
    everyone: int
    usable: int
    by_name: Mapping[str, int]

    def select(self, node_selector: Mapping[str, str], terms: Sequence[NodeSelectorTerm] | None) -> int:
        """Mask of the nodes that a node selector and required affinity terms allow.

        Args:
            node_selector: Label pairs that must all stand on the node.
            terms: Required terms, of which one must hold; None where the pod has no required affinity.
        """
        raise NotImplementedError

    def tolerated(self, tolerations: Sequence[Toleration]) -> int:
        """Mask of the nodes whose NoSchedule and NoExecute taints are all tolerated."""
        raise NotImplementedError
