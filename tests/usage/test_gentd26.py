"""A real trace through a real Prometheus is read unchanged."""

from __future__ import annotations

from math import ceil, floor
from pathlib import Path

from tests.usage.gentd26 import DUTY, MEMORY, MIB, Readings, readings, replayed
from tests.usage.prometheus import PrometheusServer, now
from tests.usage.prometheus_readings import read_from
from webhook.usage.history import GAP, UsageHistory
from webhook.usage.prometheus_source import PrometheusSource


def peaks_of(memory: Readings, pod: str, history: UsageHistory, late: float) -> list[int]:
    """Return the peaks of one pod in the bins of a history, computed from the trace."""
    bins = [GAP] * len(history.peaks_mib)
    for moment, used in memory[pod]:
        index = ceil((moment + late - history.start) / history.step_seconds) - 1  # a bin includes its end
        if 0 <= index < len(bins):
            bins[index] = max(bins[index], ceil(used / MIB))
    return bins


def test_every_pod_of_the_trace_is_read(prometheus: PrometheusServer, shared: Path) -> None:
    memory, duty = (readings(shared / "traces" / "gentd26", name) for name in (MEMORY, DUTY))
    end = float(now())
    late = end - max(moment for series in memory.values() for moment, _ in series)
    selector = prometheus.feed({"dcgm": replayed(memory, duty, end)})

    found = read_from(PrometheusSource(prometheus.url, selector=selector, days=1)).histories

    assert len(found) >= 140
    assert {history.workload for history in found} == {"StatefulSet/genai"}
    for history in found:
        assert list(history.peaks_mib) == peaks_of(memory, history.pod, history, late)
        busiest = max(percent for _, percent in duty[history.pod]) if history.pod in duty else 0
        assert history.active_milli is None or floor(10 * busiest) <= history.active_milli <= ceil(10 * busiest)
