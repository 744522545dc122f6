"""Series of synthetic fleets: of DCGM exporter for GPUs, and of kube-state-metrics for owners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.usage.exporter import Sample
from webhook.usage import queries

EVERY = 300
"""Seconds between two samples; Prometheus considers a series gone after five minutes without one."""


@dataclass(frozen=True, slots=True)
class Use:
    """Usage of one GPU or MIG instance by a container.

    Attributes:
        memory: Samples of the memory in use, MiB, the latest last. Text is written unchanged.
        engine: Engine activity, 0 to 1, of every sample; None for no profiling fields.
        labels: Additional or different labels of its series.
    """

    pod: str
    memory: Sequence[float | str]
    container: str = "main"
    namespace: str = "ml"
    uuid: str = ""
    engine: float | None = None
    capacity: int | None = None
    xids: Sequence[int] = ()
    every: int = EVERY
    labels: Mapping[str, str] = field(default_factory=dict)

    def series(self) -> dict[str, str]:
        """Return the labels."""
        uuid = self.uuid or f"GPU-{self.namespace}-{self.pod}-{self.container}"
        owner = {"namespace": self.namespace, "pod": self.pod, "container": self.container}
        model = {"modelName": "NVIDIA A100-SXM4-40GB", "Hostname": "node-1"}
        return {"UUID": uuid, **model, **owner, **self.labels}


def dcgm(uses: Iterable[Use], end: float) -> Iterator[Sample]:
    """Yield the series of DCGM exporter."""
    for use in uses:
        labels = use.series()
        moments = [end - use.every * back for back in range(len(use.memory) - 1, -1, -1)]
        for moment, memory in zip(moments, use.memory, strict=True):
            yield Sample(queries.FB_USED, labels, moment, memory)
            if use.capacity is not None and not isinstance(memory, str):
                yield Sample(queries.FB_FREE, labels, moment, use.capacity - memory)
            if use.engine is not None:
                yield Sample(queries.ENGINE[0], labels, moment, use.engine)
        for moment, xid in zip(moments[len(moments) - len(use.xids) :], use.xids, strict=True):
            yield Sample(queries.XID[0], labels, moment, xid)


def owner_samples(
    pod: str, owners: Sequence[tuple[str, str]], end: float, *, namespace: str = "ml", image: str = ""
) -> Iterator[Sample]:
    """Yield the series of kube-state-metrics for a pod and its owners, such as ReplicaSet and Deployment."""
    metric, label, name = queries.POD_OWNER, "pod", pod
    for kind, owner in owners or [NO_OWNER]:
        labels = {"namespace": namespace, label: name, "owner_kind": kind, "owner_name": owner}
        yield Sample(metric, labels, end, 1)
        metric, label = OWNERS.get(kind, ("", ""))
        name = owner
    info = {"namespace": namespace, "pod": pod, "container": "main", "image": image or "pytorch:2"}
    yield Sample(queries.POD_INFO, info, end, 1)


NO_OWNER = ("<none>", "<none>")
OWNERS = {"ReplicaSet": ("kube_replicaset_owner", "replicaset"), "Job": ("kube_job_owner", "job_name")}
