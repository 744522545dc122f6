"""Traces in the openb format: nodes and pods as CSV, plain or gzipped, one row each.

Columns of nodes: sn, cpu_milli, memory_mib, gpu, model. Columns of pods: name, cpu_milli, memory_mib, num_gpu,
gpu_milli (of each GPU), gpu_spec (models joined by "|"; may be absent). Other columns are left out.

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

from webhook.errors import Place, SnapshotError, quoted, shorten
from webhook.placement.needs import WHOLE, Need
from webhook.placement.rooms import Machine

MOST_BYTES = 256 << 20
"""Bytes of a trace after unpacking."""

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")

MOST_GPUS = 64
"""GPUs of one node or pod."""

MOST_DIGITS = 18

Row = dict[str, str]
Item = TypeVar("Item")


def read_machines(path: Path) -> list[Machine]:
    """Read a list of nodes.

    Raises:
        SnapshotError: the file cannot be read, a row is not a node, or one is named twice; with file and line.
    """
    lines: dict[str, int] = {}
    return _read(path, NODE_COLUMNS, lambda row, place: _machine_once(row, place, lines))


def read_needs(path: Path) -> list[Need]:
    """Read a list of pods, in the order of the file.

    Raises:
        SnapshotError: the file cannot be read, or a row is not a pod; with file and line.
    """
    return _read(path, POD_COLUMNS, _need)


def _read(path: Path, columns: tuple[str, ...], item: Callable[[Row, Place], Item]) -> list[Item]:
    try:
        rows = csv.DictReader(StringIO(_text(path)), strict=True)
        missing = [column for column in columns if column not in (rows.fieldnames or ())]
        if missing:
            raise _no_trace(path, f"must have the columns {', '.join(columns)}, found none named {', '.join(missing)}")
        items = [item(row, Place(str(path), rows.line_num)) for row in rows]
    except UnicodeDecodeError as error:
        sentence = f"must be UTF-8, found other bytes from byte {error.start} on. Save the file as UTF-8"
        raise SnapshotError(Place(str(path)), sentence) from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        sentence = f"must be a CSV file, plain or gzipped, found: {shorten(str(error), 120)}. Name another file"
        raise SnapshotError(Place(str(path)), sentence) from error
    if not items:
        raise _no_trace(path, "must have rows under its header, found none")
    return items


def _no_trace(path: Path, must: str) -> SnapshotError:
    return SnapshotError(Place(str(path), 1, 1), f"{must}. Name a file in the openb format")


def _text(path: Path) -> str:
    """The file's text, unpacked where it is gzipped, without the mark that spreadsheets begin a file with."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.open(raw) if packed else raw as file:
            content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise SnapshotError(Place(str(path)), f"must be at most {MOST_BYTES >> 20} MiB. Cut it into parts")
    return content.decode("utf-8-sig")


def _machine_once(row: Row, place: Place, lines: dict[str, int]) -> Machine:
    """A node that no row before has named; `lines` has those that did, by name."""
    first = lines.setdefault(row["sn"], place.line)
    if first != place.line:
        sentence = f"sn: must be each node's own, found {quoted(row['sn'])} here and in line {first}. Leave one out"
        raise SnapshotError(place, sentence)
    return _machine(row, place)


def _machine(row: Row, place: Place) -> Machine:
    gpus = _number(row, "gpu", place, MOST_GPUS)
    cpu, memory = _number(row, "cpu_milli", place), _number(row, "memory_mib", place)
    return Machine(row["sn"], cpu, memory, gpus, row["model"] or "")


def _need(row: Row, place: Place) -> Need:
    gpus = _number(row, "num_gpu", place, MOST_GPUS)
    models = tuple(sorted(filter(None, (row.get("gpu_spec") or "").split("|"))))
    return Need(
        cpu_milli=_number(row, "cpu_milli", place),
        gpus=gpus,
        gpu_milli=_number(row, "gpu_milli", place, WHOLE) if gpus else 0,
        models=models,
        memory_mib=_number(row, "memory_mib", place),
    )


def _number(row: Row, column: str, place: Place, most: int = 1 << 40) -> int:
    text = row[column] or ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < MOST_DIGITS else -1
    if not 0 <= number <= most:
        raise SnapshotError(place, f"{column}: must be a whole number from 0 to {most}, found {quoted(text)}")
    return number
