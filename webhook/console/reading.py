"""The newest reading of a cluster, and the task that replaces it: a page never shows parts of two readings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, time_ns
from typing import NamedTuple

from webhook.audit.evaluate import EvaluationContext
from webhook.console.pod_samples import PodSamples
from webhook.errors import RightsliceError
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.report.console.findings import ConsoleFindings
from webhook.report.console.policies import PolicyReach
from webhook.report.console.quotas import LimitObject
from webhook.report.console.state import ConsoleState, WorkloadKey
from webhook.report.layout import ClusterLayout
from webhook.report.node_topology import NodePodGpus
from webhook.usage.history import UsageHistory
from webhook.web.daemon_threads import run_in_daemon_thread

MIN_PAUSE_SECONDS = 10.0
"""Pause between two readings of a live cluster."""

PAUSES_PER_READING = 4.0
"""A reading that took long is followed by a longer pause, so that readings take at most a fifth of the time."""


PlanLayouts = Callable[[], ClusterLayout]
"""Plans layouts; blocks, and raises RightsliceError if that is impossible."""


class ClusterReading(NamedTuple):
    """One reading of a cluster, and what pages compute on demand from it.

    Attributes:
        state: What the pages show.
        context: What objects are evaluated against.
        snapshot: The nodes and their GPUs; None if no nodes are known.
        pods_by_node: The pods that hold GPUs of device plugins.
        histories: Recorded usage of each workload.
        findings: All findings in groups.
        policies: The policies, and what each matches.
        limits: The quotas and ranges.
        policy_source: Where they come from, for people.
        samples: A pod of each workload, for trials.
        plan: Plans MIG layouts for the cluster.
    """

    state: ConsoleState
    context: EvaluationContext
    snapshot: SchedulingSnapshot | None
    pods_by_node: Mapping[str, Sequence[NodePodGpus]]
    histories: Mapping[WorkloadKey, Sequence[UsageHistory]]
    findings: tuple[ConsoleFindings, ...]
    policies: tuple[PolicyReach, ...]
    limits: tuple[LimitObject, ...]
    policy_source: str
    samples: PodSamples
    plan: PlanLayouts


ReadCluster = Callable[[], ClusterReading]
"""Reads the cluster; blocks, and raises RightsliceError if that is impossible."""


class NewestReading:
    """Holds the newest reading.

    Attributes:
        current: The newest reading that succeeded.
        problem: Why the last one did not; "" if it did.
        tag: Differs between readings, and between processes.
    """

    def __init__(self, first: ClusterReading) -> None:
        self.current = first
        self.problem = ""
        self.tag = _new_tag()

    async def follow(self, read: ReadCluster) -> None:
        """Read the cluster again and again, in a thread, until this task is cancelled."""
        pause = MIN_PAUSE_SECONDS
        while True:
            await asyncio.sleep(pause)
            start = monotonic()
            await self.refresh(read)
            pause = max(MIN_PAUSE_SECONDS, PAUSES_PER_READING * (monotonic() - start))

    async def refresh(self, read: ReadCluster) -> None:
        """Read the cluster once. If that fails, keep what is known and say why it is not current."""
        try:
            self.current = await run_in_daemon_thread(read)
            self.problem = ""
        except RightsliceError as error:
            self.problem = str(error)
        except Exception as error:
            self.problem = f"internal error: {error!r}"
        self.tag = _new_tag()


def _new_tag() -> str:
    return f"{time_ns():x}"
