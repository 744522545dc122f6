"""Read traces in the openb format: nodes and pods as CSV, plain or gzipped, one row each.

Columns of nodes: sn, cpu_milli, memory_mib, gpu, model. Columns of pods: name, cpu_milli, memory_mib, num_gpu,
gpu_milli (of each GPU), gpu_spec (models joined by "|"; optional). Other columns are ignored.

Source: alibaba/clusterdata, cluster-trace-gpu-v2023.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import TypeVar

from webhook.errors import SnapshotError, SourceLocation, quote_text
from webhook.model.fleet import MAX_MEMORY
from webhook.placement.capacity import GPU_MILLI, EmptyNode, PodDemand

MAX_TRACE_BYTES = 256 << 20
"""Size limit of a trace, uncompressed."""

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")

MAX_TRACE_GPUS = 64
"""Most GPUs of one node or pod."""

MAX_DIGITS = 18

Row = dict[str, str]
Item = TypeVar("Item")


def read_trace_nodes(path: Path) -> list[EmptyNode]:
    """Read a list of nodes.

    Raises:
        SnapshotError: The file is unreadable, a row is invalid, or a node appears twice; with file and line.
    """
    lines: dict[str, int] = {}
    return _read_trace_rows(path, NODE_COLUMNS, lambda row, place: _parse_unique_node(row, place, lines))


def read_trace_pods(path: Path) -> list[PodDemand]:
    """Read a list of pods, in the order of the file.

    Raises:
        SnapshotError: The file is unreadable, or a row is invalid; with file and line.
    """
    return _read_trace_rows(path, POD_COLUMNS, _parse_trace_pod)


def _read_trace_rows(path: Path, columns: tuple[str, ...], item: Callable[[Row, SourceLocation], Item]) -> list[Item]:
    try:
        rows = csv.DictReader(StringIO(_read_trace_text(path)), strict=True)
        missing = [column for column in columns if column not in (rows.fieldnames or ())]
        if missing:
            raise _trace_error(
                path, f"must have the columns {', '.join(columns)}, found none named {', '.join(missing)}"
            )
        items = [item(row, SourceLocation(str(path), rows.line_num)) for row in rows]
    except UnicodeDecodeError as error:
        sentence = f"must be UTF-8, found other bytes from byte {error.start} on. Save the file as UTF-8"
        raise SnapshotError(SourceLocation(str(path)), sentence) from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        sentence = f"must be a CSV file, plain or gzipped, found: {error}. Name another file"
        raise SnapshotError(SourceLocation(str(path)), sentence) from error
    if not items:
        raise _trace_error(path, "must have rows under its header, found none")
    return items


def _trace_error(path: Path, must: str) -> SnapshotError:
    return SnapshotError(SourceLocation(str(path), 1, 1), f"{must}. Name a file in the openb format")


def _read_trace_text(path: Path) -> str:
    """Read and decompress the text, without a byte order mark."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.open(raw) if packed else raw as file:
            content = file.read(MAX_TRACE_BYTES + 1)
    if len(content) > MAX_TRACE_BYTES:
        raise SnapshotError(SourceLocation(str(path)), f"must be at most {MAX_TRACE_BYTES >> 20} MiB. Split it")
    return content.decode("utf-8-sig")


def _parse_unique_node(row: Row, place: SourceLocation, lines: dict[str, int]) -> EmptyNode:
    first = lines.setdefault(row["sn"], place.line)
    if first != place.line:
        sentence = f"sn: must be unique, found {quote_text(row['sn'])} here and in line {first}. Remove one"
        raise SnapshotError(place, sentence)
    gpus = _parse_trace_number(row, "gpu", place, MAX_TRACE_GPUS)
    cpu, memory = _parse_trace_number(row, "cpu_milli", place), _parse_trace_memory(row, place)
    return EmptyNode(row["sn"], cpu, memory, gpus, row["model"] or "")


def _parse_trace_pod(row: Row, place: SourceLocation) -> PodDemand:
    gpus = _parse_trace_number(row, "num_gpu", place, MAX_TRACE_GPUS)
    models = tuple(sorted(filter(None, (row.get("gpu_spec") or "").split("|"))))
    return PodDemand(
        cpu_milli=_parse_trace_number(row, "cpu_milli", place),
        gpus=gpus,
        gpu_milli=_parse_trace_number(row, "gpu_milli", place, GPU_MILLI) if gpus else 0,
        models=models,
        memory=_parse_trace_memory(row, place),
    )


def _parse_trace_memory(row: Row, place: SourceLocation) -> int:
    return _parse_trace_number(row, "memory_mib", place, MAX_MEMORY >> 20) << 20


def _parse_trace_number(row: Row, column: str, place: SourceLocation, most: int = 1 << 40) -> int:
    text = row[column] or ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < MAX_DIGITS else -1
    if not 0 <= number <= most:
        raise SnapshotError(place, f"{column}: must be a whole number from 0 to {most}, found {quote_text(text)}")
    return number
