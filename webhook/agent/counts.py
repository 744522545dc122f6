"""What the agent counts, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from webhook.model.gpunodes import GPUNodeStatus


class AgentMetrics(Collector):
    """The figures of one agent.

    Attributes:
        looks, kubelet, writes: How each look at NVML, call of the kubelet and write to the cluster ended.
        look_seconds: How long the last look took.
        status: What was seen last.
    """

    def __init__(self) -> None:
        self.discoveries: Counter[str] = Counter()
        self.kubelet_calls: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        self.discovery_seconds = 0.0
        self.status = GPUNodeStatus()

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand; the names are those of `collect`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of it as Prometheus metrics."""
        yield _counter_family("looks", "Looks at the GPUs through NVML.", self.discoveries)
        yield _counter_family("kubelet_calls", "Calls of the kubelet's PodResources.", self.kubelet_calls)
        yield _counter_family("writes", "Writes of the GPUNode.", self.writes)
        yield _gauge_family("look_seconds", "How long the last look at the GPUs took.", self.discovery_seconds)
        gpus = self.status.gpus
        yield _gauge_family("gpus", "GPUs that were seen.", len(gpus))
        yield _gauge_family("gpus_unhealthy", "Those of them that should not be used.", sum(not gpu.healthy for gpu in gpus))
        yield _gauge_family("gpus_held", "Those that a pod holds, or a part of.", sum(map(_is_allocated, gpus)))
        yield _gauge_family("nvlinks_down", "NVLinks that should be up.", sum(gpu.links_down for gpu in gpus))


def _is_allocated(gpu: object) -> bool:
    return bool(getattr(gpu, "pods", ())) or any(one.pod for one in getattr(gpu, "instances", ()))


def _counter_family(name: str, text: str, counts: Counter[str]) -> Metric:
    family = CounterMetricFamily(f"rightslice_agent_{name}", text, labels=("result",))
    for result, count in counts.items():
        family.add_metric((result,), count)
    return family


def _gauge_family(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"rightslice_agent_{name}", text, value=value)
