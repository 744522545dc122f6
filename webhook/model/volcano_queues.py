"""The queues of Volcano: how many units of a resource a job's queue is sure to give it.

Volcano's controller sums the requests of a Job's task templates in a PodGroup, and its scheduler starts the Job if its
queue has room for them. One of two plugins says how much that is, and no API shows which, so the least of both counts:
`capacity` compares with `capability`, and `proportion`, the default, with a part of the cluster by weight.

Source: Volcano 1.12, `calcPGMinResources` of `pkg/controllers/job`, `pkg/scheduler/plugins/capacity` and `proportion`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from webhook.model.api_struct import ApiStruct
from webhook.model.batch import KUEUE, VOLCANO, QueueingSystem
from webhook.model.decisions import KeepReason, KeepRequest
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.pods import ObjectMeta, Pod, QuantityText
from webhook.model.quantity import parse_whole_number
from webhook.model.queues import FlavorChoice, ResourceFlavor, WorkloadQueue

VOLCANO_API_VERSION = "scheduling.volcano.sh/v1beta1"
"""The version of its queues that is read."""

VOLCANO_GROUP, VOLCANO_SCHEDULER = "batch.volcano.sh", VOLCANO.schedulers[0]
DEFAULT_QUEUE, ROOT_QUEUE = "default", "root"

MAX_ANCESTORS = 16
"""Levels of a hierarchy of queues that are followed."""

ANY_NODE = ResourceFlavor()
"""The only flavor: a queue of Volcano does not choose nodes."""


class QueueGuarantee(ApiStruct, frozen=True):
    """The amounts that no other queue may use."""

    resource: dict[str, QuantityText] = {}


class VolcanoQueueSpec(ApiStruct, frozen=True):
    """The shares of a queue, and its parent. With `affinity` it uses some nodes only."""

    weight: int = 1
    parent: str = ""
    capability: dict[str, QuantityText] = {}
    deserved: dict[str, QuantityText] = {}
    guarantee: QueueGuarantee = QueueGuarantee()
    affinity: dict[str, Any] | None = None


class VolcanoQueue(ApiStruct, frozen=True):
    """A Queue of the cluster."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolcanoQueueSpec = VolcanoQueueSpec()


class VolcanoJobQueue(msgspec.Struct, frozen=True):
    """The queue in which a Job of Volcano waits.

    Attributes:
        name: Its name.
        lineage: The queue and its ancestors.
        others: All other queues.
        fleet: The nodes that all queues share.
        pods: Number of pods of the Job.
        kept: Why every template of the Job keeps its request, although the queue would admit a smaller one; None if it
            may be changed.
    """

    name: str
    lineage: tuple[VolcanoQueue, ...]
    others: tuple[VolcanoQueue, ...]
    fleet: Fleet
    pods: int
    kept: KeepRequest | None = None

    system = VOLCANO

    @property
    def title(self) -> str:
        """The queue, for messages."""
        return f"Queue {self.name} of Volcano"

    def choose_flavors(self, resource: str, units: int, _pod: Pod) -> FlavorChoice | None:
        """Return the choice of all nodes; it is sufficient if the queue is sure to have room for these units."""
        return FlavorChoice((ANY_NODE,), self.least_share(resource) >= units)

    def explain_rejection(self, resource: str, units: int, _pod: Pod) -> str:
        """Return why the queue might not admit units of a resource."""
        return f"it is sure to have {self.least_share(resource)}, and {units} are needed"

    def least_share(self, resource: str) -> int:
        """Return the units of a resource that the queue has in any case, whatever other queues use."""
        total = sum(node.gpus.get(resource, 0) for node in self.fleet.nodes)
        total -= sum(_whole_units(each.spec.guarantee.resource, resource) for each in self.others)
        weights = sum(max(1, each.spec.weight) for each in (*self.lineage[:1], *self.others))
        by_weight = total * max(1, self.lineage[0].spec.weight) // weights
        return min([by_weight, *(share for queue in self.lineage for share in _named_shares(queue, resource))])


ChargingQueue = WorkloadQueue | VolcanoJobQueue
"""The queue of a workload whose templates have not been charged yet."""


class UnknownQueue(msgspec.Struct, frozen=True):
    """The queue of a workload that does not exist, or that has charged the workload already.

    Attributes:
        kept: Why every template of the workload keeps its request.
    """

    kept: KeepRequest
    system: QueueingSystem = KUEUE


class QueuedPodSet(msgspec.Struct, frozen=True):
    """The pods of one template of a workload that a queue is about to charge: they are charged and started together.

    Attributes:
        earlier: Pods of the templates before it that get a smaller GPU, by its resource.
    """

    queue: ChargingQueue | UnknownQueue
    pods: int
    earlier: Mapping[str, int] = {}


class VolcanoQueues:
    """The queues of a cluster. Immutable."""

    __slots__ = ("_by_name",)

    def __init__(self, queues: Iterable[VolcanoQueue] = ()) -> None:
        """Index the queues by name."""
        self._by_name = {each.metadata.name: each for each in queues}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def find(self, name: str, fleet: Fleet, pods: int) -> VolcanoJobQueue | None:
        """Return the queue of a Job by its name; None if there is none.

        Args:
            fleet: The nodes of the cluster.
            pods: Number of pods of the Job.
        """
        lineage = tuple(self._lineage(name))
        if not lineage or lineage[0].metadata.name != name:
            return None
        others = tuple([each for key, each in self._by_name.items() if key not in (name, ROOT_QUEUE)])
        limited = next((each for each in lineage if each.spec.affinity), None)
        kept = None
        if limited is not None:
            kept = KeepRequest(KeepReason.UNMODELED_CONSTRAINT, f"affinity of Queue {limited.metadata.name}")
        return VolcanoJobQueue(name, lineage, others, fleet, pods, kept)

    def _lineage(self, name: str) -> Iterator[VolcanoQueue]:
        """Yield a queue and its ancestors, without the root unless it is written down."""
        for _ in range(MAX_ANCESTORS):
            queue = self._by_name.get(name)
            if queue is None:
                return
            yield queue
            if name == ROOT_QUEUE:
                return
            name = queue.spec.parent or ROOT_QUEUE


def _named_shares(queue: VolcanoQueue, resource: str) -> Iterator[int]:
    """Yield the units that a queue states: its capability, and other amounts that name whole GPUs."""
    spec = queue.spec
    if spec.capability:
        yield _whole_units(spec.capability, resource)
    yield from (
        _whole_units(amounts, resource) for amounts in (spec.deserved, spec.guarantee.resource) if WHOLE_GPU in amounts
    )


def _whole_units(amounts: Mapping[str, QuantityText], resource: str) -> int:
    return parse_whole_number(amounts.get(resource, 0)) or 0


NO_VOLCANO_QUEUES = VolcanoQueues()
