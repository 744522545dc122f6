"""Load a `UsageView` in a worker process with a deadline, and check the age of recorded usage.

The worker gets one request and answers with small frames; each decodes within a millisecond.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable
from pathlib import Path
from typing import NamedTuple

import msgspec

import webhook
from webhook.errors import UsageError
from webhook.model.usage import ObservedUsage, UsageView
from webhook.report.text import pluralize
from webhook.usage.prometheus_source import PrometheusSource

FRAME_LENGTH = struct.Struct(">I")
"""Prefix of each frame: its number of bytes."""


class UsageRequest(msgspec.Struct, frozen=True):
    """The source to read: a Prometheus, or a file of recorded usage."""

    prometheus: PrometheusSource | None = None
    file: str = ""


class HeadFrame(msgspec.Struct, frozen=True, tag=True):
    """The first frame: time, number of pods, prices and notes of a view."""

    now: float
    pods: int
    prices: tuple[tuple[int, int], ...]
    notes: tuple[str, ...] = ()


class ObservedFrame(msgspec.Struct, frozen=True, tag=True):
    """Usage of some containers: namespace, workload, container, and usage."""

    observed: list[tuple[str, str, str, ObservedUsage]]


class EndFrame(msgspec.Struct, frozen=True, tag=True):
    """The last frame; without it the answer is incomplete."""


class ErrorFrame(msgspec.Struct, frozen=True, tag=True):
    """The only frame if there is no view; `internal` for errors that the source did not cause."""

    reason: str
    internal: bool = False


Frame = HeadFrame | ObservedFrame | EndFrame | ErrorFrame
DAY_SECONDS = 86_400

NOTE_AGE_SECONDS = DAY_SECONDS
"""Older recordings get a note."""

MAX_AGE_SECONDS = 30 * DAY_SECONDS
"""Older recordings are not used, so nothing is right-sized by them."""

MAX_CLOCK_SKEW_SECONDS = 300
"""Accepted difference between clocks; a recording further in the future is rejected."""

RECORD_AGAIN = "Write a new one: rightslice usage record --prometheus URL --file FILE"
WORKER_MODULE = "webhook.usage.worker"
"""The module to run. It imports numpy, so it is not imported here."""

MAX_VIEW_BYTES = 128 * 1024 * 1024
"""Size limit of all frames together."""

READ_BYTES = 64 * 1024
MAX_STDERR_BYTES = 300
"""Bytes of the last line on stderr to report of a process that ended early."""

FILE_TIMEOUT_SECONDS = 300.0
"""Time limit for a file."""

FRAME_DECODER: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


class LoadedUsage(NamedTuple):
    """A view, its time in Unix seconds, the number of pods it is based on, and notes."""

    view: UsageView
    now: float
    pods: int
    notes: tuple[str, ...]


async def load_usage(request: UsageRequest) -> LoadedUsage:
    """Read usage and estimate from it, without blocking the event loop.

    Raises:
        UsageError: No view could be loaded in time; says why.
        OSError: The process cannot be started.
    """
    seconds = request.prometheus.seconds if request.prometheus is not None else FILE_TIMEOUT_SECONDS
    process = await _start_worker()
    stderr_line = asyncio.create_task(_last_stderr_line(process))
    try:
        async with asyncio.timeout(seconds):
            return await _collect_view(process, request, stderr_line)
    except TimeoutError as error:
        raise UsageError(f"usage was not loaded within {seconds:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        stderr_line.cancel()


async def _start_worker() -> Process:
    """Start the worker from the same code, independent of the working directory."""
    home = Path(webhook.__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    single_threaded = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", WORKER_MODULE]
    return await asyncio.create_subprocess_exec(
        *command, cwd=home, env=environment | single_threaded, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )


async def _last_stderr_line(process: Process) -> str:
    """Return the last line on stderr; reading all of it keeps the process from blocking on a full pipe."""
    assert process.stderr is not None
    tail = b""
    while more := await process.stderr.read(READ_BYTES):
        tail = (tail + more)[-MAX_STDERR_BYTES:]
    lines = tail.decode(errors="replace").splitlines()
    return lines[-1] if lines else ""


async def _collect_view(process: Process, request: UsageRequest, stderr_line: Awaitable[str]) -> LoadedUsage:
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(request))
    process.stdin.close()
    head: HeadFrame | None = None
    remaining = MAX_VIEW_BYTES
    observed: dict[tuple[str, str, str], ObservedUsage] = {}
    while True:
        packed = await _read_frame(process, remaining, stderr_line)
        remaining -= len(packed)
        match _decode_frame(packed):
            case HeadFrame() as frame:
                head = frame
            case ErrorFrame(reason=reason, internal=internal):
                raise UsageError(f"internal error while loading usage: {reason}" if internal else reason)
            case EndFrame():
                break
            case part:
                observed |= {(namespace, workload, name): usage for namespace, workload, name, usage in part.observed}
        await asyncio.sleep(0)
    if head is None:
        raise UsageError("the usage worker sent no header")
    return LoadedUsage(UsageView(observed, head.prices), head.now, head.pods, head.notes)


def _decode_frame(packed: bytes) -> Frame:
    try:
        return FRAME_DECODER.decode(packed)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the usage worker sent an invalid frame ({error})") from error


async def _read_frame(process: Process, limit: int, stderr_line: Awaitable[str]) -> bytes:
    assert process.stdout is not None
    try:
        (length,) = FRAME_LENGTH.unpack(await process.stdout.readexactly(FRAME_LENGTH.size))
        if length > limit:
            raise UsageError(f"the usage view must have at most {MAX_VIEW_BYTES >> 20} MiB, found more")
        return await process.stdout.readexactly(length)
    except asyncio.IncompleteReadError as error:
        code, line = await process.wait(), await stderr_line
        cause = "memory may be short" if code < 0 else f"exit code {code}"
        raise UsageError(f"the usage worker ended early ({cause}){f': {line}' if line else ''}") from error


def future_record_error(recorded: float, now: float) -> str:
    """Return an error if a recording is from the future; "" if not. Both times are Unix seconds."""
    if recorded - now <= MAX_CLOCK_SKEW_SECONDS:
        return ""
    return (
        f"must be recorded before now, found {_duration_text(recorded - now)} from "
        f"now: one of the clocks is wrong. {RECORD_AGAIN}"
    )


def old_record_error(recorded: float, now: float) -> str:
    """Return why a recording is too old to use; "" if it is not. Both times are Unix seconds."""
    if now - recorded <= MAX_AGE_SECONDS:
        return ""
    return (
        f"recorded {_duration_text(now - recorded)} ago: after {_duration_text(MAX_AGE_SECONDS)} "
        f"it is not used. {RECORD_AGAIN}"
    )


def record_age_note(recorded: float, now: float) -> str:
    """Return a note about the age of a recording older than a day; "" for others."""
    return f"recorded {_duration_text(now - recorded)} ago" if now - recorded > NOTE_AGE_SECONDS else ""


def _duration_text(seconds: float) -> str:
    days = round(seconds / DAY_SECONDS)
    return pluralize(days, "day") if days else pluralize(round(seconds / 60), "minute")
