"""GenTD26: GPU memory of 144 serving pods over a day, and the protocol for comparing limits on it.

Source: alibaba/clusterdata, cluster-trace-v2026-GenAI. The published clock runs at 0.95: an hour is 3,420 s of it.
"""

from __future__ import annotations

import csv
import io
import tarfile
from array import array
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from webhook.usage.history import GAP, MIB_TYPECODE, Floats, UsageHistory

WHERE = "https://github.com/alibaba/clusterdata, cluster-trace-v2026-GenAI"
FILE = "pod_gpu_memory_used_bytes_anon"
DUTY_FILE = "pod_gpu_duty_cycle_anon"
HOUR = 3420
STEP = 57
CARD_MIB = 48 * 1024.0
WARM_UP_HOURS = 2
LEAST_SAMPLES, LEAST_FUTURE = 200, 20
MIB = 2**20


class Pod(NamedTuple):
    """Samples of one pod: seconds of trace time, ascending, and MiB."""

    name: str
    at: Floats
    used: Floats

    def between(self, after: float, until: float) -> Floats:
        """Return the usage between two times."""
        low, high = np.searchsorted(self.at, (after, until), side="right")
        return self.used[low:high]


class Decision(NamedTuple):
    """A moment at which a limit is chosen for a pod, and the usage in the following hour."""

    pod: Pod
    at: float
    peak: float
    mean: float


def archive_in(folder: Path, file: str = FILE) -> Path:
    """Return the path of a file of the trace in a folder."""
    return folder / f"{file}.tar.gz"


def read_trace(folder: Path) -> list[Pod]:
    """Return every pod of the trace."""
    return _read_samples(folder, FILE, MIB)


def read_duty(folder: Path) -> list[Pod]:
    """Return the pods of the trace with their GPU duty, in percent, instead of memory."""
    return _read_samples(folder, DUTY_FILE, 1)


def _read_samples(folder: Path, file: str, unit: float) -> list[Pod]:
    with tarfile.open(archive_in(folder, file)) as archive:
        inside = archive.extractfile(f"{file}.csv")
        assert inside is not None
        rows = list(csv.DictReader(io.TextIOWrapper(inside, "ascii")))
    samples: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        at, value = float(row["timestamp_anon"]), float(row["value"]) / unit
        samples.setdefault(row["container_ip"], []).append((at, value))
    return [Pod(name, *np.array(sorted(each)).T) for name, each in samples.items()]


def synthetic_trace(seed: int = 7) -> list[Pod]:
    """Generate twelve pods over ten hours that sometimes need more, for runs without a trace."""
    rng = np.random.default_rng(seed)
    at = STEP * np.arange(600.0)
    return [Pod(f"pod-{i}", at, _walk(rng, at.size)) for i in range(12)]


def _walk(rng: np.random.Generator, size: int) -> Floats:
    level = 22_000 + 2000 * np.cumsum(rng.normal(0, 0.05, size))
    bursts = np.repeat(rng.random(size // 20) < 0.03, 20) * rng.uniform(4000, 16_000)
    return np.clip(level + bursts, 1000, CARD_MIB)


def history_of(pod: Pod) -> UsageHistory:
    """Return a pod's record for the estimator: one bin per sample, ending at the sample."""
    bins = ((pod.at - pod.at[0]) // STEP).astype(int)
    peaks_mib = array(MIB_TYPECODE, [GAP]) * (int(bins[-1]) + 1)
    for index, used in zip(bins.tolist(), pod.used.tolist(), strict=True):
        peaks_mib[index] = ceil(used)
    return UsageHistory("gentd26", "Deployment/serve", "main", pod.name, int(pod.at[0]) - STEP, STEP, peaks_mib)


def decisions(pods: list[Pod]) -> list[Decision]:
    """Return each hour of each pod with enough samples, after its first two, by time."""
    return sorted((each for pod in pods if pod.at.size >= LEAST_SAMPLES for each in _of(pod)), key=lambda each: each.at)


def _of(pod: Pod) -> list[Decision]:
    found = []
    at = float(pod.at[0]) + WARM_UP_HOURS * HOUR
    while at + HOUR <= pod.at[-1]:
        future = pod.between(at, at + HOUR)
        if future.size >= LEAST_FUTURE:
            found.append(Decision(pod, at, float(future.max()), float(future.mean())))
        at += HOUR
    return found


class Score(NamedTuple):
    """Result of limits: percent of pod-hours exceeded, of pods ever exceeded, mean limit in GiB, and slack."""

    overrun: float
    pods: float
    limit: float
    slack: float


def score(cases: list[Decision], limits: Floats) -> Score:
    """Evaluate one limit for each decision, in MiB; none is above the card."""
    limits = np.minimum(limits, CARD_MIB)
    over = np.array([each.peak for each in cases]) > limits
    hit = {each.pod.name for each, overrun in zip(cases, over, strict=True) if overrun}
    slack = 1 - np.array([each.mean for each in cases]) / limits
    pods = len({each.pod.name for each in cases})
    return Score(100 * over.mean(), 100 * len(hit) / pods, limits.mean() / 1024, 100 * slack.mean())
