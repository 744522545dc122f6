"""GenTD26, as published: GPU memory and duty of serving pods, one sample each 57 s over 22.8 h."""

from __future__ import annotations

import csv
import io
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.usage.exporter import Sample
from webhook.usage import queries

MEMORY, DUTY = "pod_gpu_memory_used_bytes_anon", "pod_gpu_duty_cycle_anon"
MIB = 1 << 20

Readings = Mapping[str, list[tuple[float, float]]]
"""Moment (Unix seconds) and value, by pod."""


def readings(folder: Path, name: str) -> Readings:
    """Return the readings of one of the two files."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tarfile.open(folder / f"{name}.tar.gz") as packed:
        text = packed.extractfile(f"{name}.csv")
        assert text is not None
        for row in csv.DictReader(io.TextIOWrapper(text, encoding="ascii")):
            found[row["container_ip"]].append((float(row["timestamp_anon"]), float(row["value"])))
    return found


def replayed(memory: Readings, duty: Readings, end: float) -> Iterator[Sample]:
    """Yield the series of DCGM exporter with the last sample at `end`. All pods belong to one Deployment."""
    late = end - max(moment for series in memory.values() for moment, _ in series)
    for pod in memory:
        labels = {"UUID": f"GPU-{pod}", "namespace": "serving", "pod": pod, "container": "model"}
        for moment, used in memory[pod]:
            yield Sample(queries.FB_USED, labels, moment + late, used / MIB)
        for moment, percent in duty.get(pod, ()):
            yield Sample(queries.ENGINE[0], labels, moment + late, percent / 100)
        owner = {"namespace": "serving", "pod": pod, "owner_kind": "StatefulSet", "owner_name": "genai"}
        yield Sample(queries.POD_OWNER, owner, end, 1)
