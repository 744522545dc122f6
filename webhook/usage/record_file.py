"""Read and write files of recorded usage: the histories as versioned JSON, so that a later program estimates again.

A name that ends in .gz means compression. Files are untrusted: every limit is checked.
"""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from array import array
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import msgspec

from webhook.errors import UsageError, quote_text, read_problem, shorten_text
from webhook.usage.history import GAP, MAX_FAILURES, MAX_GPUS, MAX_MIB, MIB_TYPECODE, UsageHistory
from webhook.usage.loader import RECORD_AGAIN

VERSION = 1
"""Format version. Older files can be read, newer ones are rejected."""

MAX_FILE_BYTES = 256 * 1024 * 1024
"""Size limit, uncompressed: ten times the size of 20,000 containers over a week."""

MAX_CONTAINERS = 200_000
MAX_BINS = 10_000
MAX_UNIX_SECONDS = 1 << 40


class UsageRecord(NamedTuple):
    """The content of a file: histories, and the time of recording in Unix seconds."""

    histories: list[UsageHistory]
    now: float

    def moved_to(self, now: int) -> UsageRecord:
        """Return the record as if it had been made at another time, in Unix seconds."""
        later = now - int(self.now)
        histories = [
            msgspec.structs.replace(
                each,
                start=each.start + later,
                ooms=tuple(at + later for at in each.ooms),
                xids=tuple((at + later, code) for at, code in each.xids),
            )
            for each in self.histories
        ]
        return UsageRecord(histories, self.now + later)


class _VersionHead(msgspec.Struct):
    version: int = msgspec.field(name="rightsliceUsage")


class _RecordedContainer(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """One history; a gap is -1."""

    namespace: str
    workload: str
    container: str
    pod: str
    start: int
    peaks_mib: list[int]
    image: str = ""
    mean_mib: int | None = None
    capacity_mib: int | None = None
    compute_milli: int | None = None
    active_milli: int | None = None
    gpus: int = 1
    ooms: list[int] = []
    xids: list[tuple[int, int]] = []


class _RecordFile(msgspec.Struct, rename="camel"):
    version: int = msgspec.field(name="rightsliceUsage")
    now: float
    step_seconds: int
    containers: list[_RecordedContainer]


def check_record_writable(path: Path) -> None:
    """Check that the file can be written. An existing regular file will be replaced; anything else is an error.

    Raises:
        UsageError: The path is not a regular file.
        OSError: The folder is not writable.
    """
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise UsageError(f"{path}: must be a regular file or not exist, found a folder, link, pipe or device")
    with _temporary_file_beside(path) as temporary:
        temporary.close()
        Path(temporary.name).unlink()


def write_record(path: Path, recorded: UsageRecord) -> None:
    """Write a file atomically.

    Raises:
        OSError: It cannot be written.
    """
    histories = recorded.histories
    containers = [
        _RecordedContainer(
            **{name: getattr(history, name) for name in _SHARED_FIELDS},
            peaks_mib=history.peaks_mib.tolist(),
            ooms=list(history.ooms),
            xids=list(history.xids),
        )
        for history in histories
    ]
    step_seconds = histories[0].step_seconds if histories else 3600
    text = msgspec.json.encode(_RecordFile(VERSION, recorded.now, step_seconds, containers))
    with _temporary_file_beside(path) as temporary:
        try:
            temporary.write(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
            temporary.close()
            Path(temporary.name).chmod(0o644)
            Path(temporary.name).replace(path)
        except BaseException:
            Path(temporary.name).unlink()
            raise


def _temporary_file_beside(path: Path) -> Any:
    return NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False)


_SHARED_FIELDS = [name for name in _RecordedContainer.__struct_fields__ if name not in ("peaks_mib", "ooms", "xids")]


def read_record(path: Path) -> UsageRecord:
    """Read a file. Containers with nothing but gaps are dropped, unless they have kills or XIDs.

    Raises:
        UsageError: It is unreadable or invalid; says where, what must be true and how to fix it.
    """
    text = _read_record_bytes(path)
    version = _decode_record(path, text, _VersionHead).version
    if not 1 <= version <= VERSION:
        newer = ": a newer rightslice wrote it" if version > VERSION else ""
        raise UsageError(f"{path}: must be of version {VERSION}, found {version}{newer}. {RECORD_AGAIN}")
    file = _decode_record(path, text, _RecordFile)
    if error := _record_error(file):
        raise UsageError(f"{path}: {error}. {RECORD_AGAIN}")
    recorded = [one for one in file.containers if max(one.peaks_mib) > GAP or one.ooms or one.xids]
    return UsageRecord([_to_history(one, file.step_seconds) for one in recorded], file.now)


def _read_record_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as opened:
            packed = opened.read(2) == b"\x1f\x8b"
            opened.seek(0)
            text = (gzip.GzipFile(fileobj=opened) if packed else opened).read(MAX_FILE_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(
            f"{path}: must be a complete gzip file, found a truncated or damaged one. {RECORD_AGAIN}"
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: {read_problem(error)}") from error
    if len(text) > MAX_FILE_BYTES:
        raise UsageError(f"{path}: must be at most {MAX_FILE_BYTES >> 20} MiB uncompressed, found more")
    return text


def _decode_record(path: Path, text: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = shorten_text(str(error).removeprefix("JSON is malformed: "), 200)
        found = f"other JSON: {reason}" if isinstance(error, msgspec.ValidationError) else f"no valid JSON: {reason}"
        if "truncated" in reason:
            found = "a truncated file"
        if isinstance(error, RecursionError):
            found = "JSON that is nested too deeply"
        raise UsageError(f"{path}: must be a file of recorded usage, found {found}. {RECORD_AGAIN}") from error


def _record_error(file: _RecordFile) -> str:
    if not 0 <= file.now <= MAX_UNIX_SECONDS:
        return f"now must be Unix seconds, found {file.now}"
    if not 1 <= file.step_seconds <= 7 * 86_400:
        return f"stepSeconds must be 1 to 604800, found {file.step_seconds}"
    if len(file.containers) > MAX_CONTAINERS:
        return f"containers must be at most {MAX_CONTAINERS}, found {len(file.containers)}"
    errors = (
        f"containers[{index}]: {error}"
        for index, one in enumerate(file.containers)
        if (error := _container_error(one, file))
    )
    return next(errors, "") or _duplicate_error(file.containers)


def _duplicate_error(containers: list[_RecordedContainer]) -> str:
    """Return an error if a container appears twice, because it would count twice."""
    keys: set[tuple[str, str, str]] = set()
    for index, one in enumerate(containers):
        key = one.namespace, one.pod, one.container
        if key in keys:
            return f"containers[{index}]: must be unique, found {quote_text('/'.join(key), 200)} again"
        keys.add(key)
    return ""


def _container_error(one: _RecordedContainer, file: _RecordFile) -> str:
    if not 0 < len(one.peaks_mib) <= MAX_BINS:
        return f"peaksMib must be 1 to {MAX_BINS} amounts, found {len(one.peaks_mib)}"
    if min(one.peaks_mib) < GAP or max(one.peaks_mib) > MAX_MIB:
        return f"peaksMib must be 0 to {MAX_MIB} MiB, or {GAP} for a gap"
    if not 0 <= one.start <= one.start + len(one.peaks_mib) * file.step_seconds <= file.now + file.step_seconds:
        return "its bins must end no later than the file's now"
    if error := _amount_range_error(one):
        return error
    troubles = [*one.ooms, *(at for at, _ in one.xids)]
    if len(troubles) > MAX_FAILURES or any(not 0 <= at <= file.now + file.step_seconds for at in troubles):
        return f"ooms and xids must be at most {MAX_FAILURES}, no later than the file's now"
    return ""


def _amount_range_error(one: _RecordedContainer) -> str:
    bounds = {
        "meanMib": (one.mean_mib, max(0, *one.peaks_mib), "the largest of peaksMib"),
        "capacityMib": (one.capacity_mib, MAX_MIB, "MiB"),
        "computeMilli": (one.compute_milli, 1000, "thousandths of a GPU"),
        "activeMilli": (one.active_milli, 1000, "thousandths of a GPU"),
        "gpus": (one.gpus, MAX_GPUS, "GPUs and MIG instances"),
    }
    for name, (amount, most, what) in bounds.items():
        if amount is not None and not 0 <= amount <= most:
            return f"{name} must be 0 to {most} ({what}), found {amount}"
    return ""


def _to_history(one: _RecordedContainer, step_seconds: int) -> UsageHistory:
    fields = {name: getattr(one, name) for name in _SHARED_FIELDS}
    peaks_mib = array(MIB_TYPECODE, one.peaks_mib)
    return UsageHistory(
        **fields, step_seconds=step_seconds, peaks_mib=peaks_mib, ooms=tuple(one.ooms), xids=tuple(one.xids)
    )
