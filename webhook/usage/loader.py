"""A `UsageView` from a process of its own: asked for, waited for, and given up in time."""

from __future__ import annotations

import asyncio
import os
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
from webhook.usage.protocol import FRAME_LENGTH, EndFrame, ErrorFrame, Frame, HeadFrame, UsageRequest

DAY_SECONDS = 86_400

NOTE_AGE_SECONDS = DAY_SECONDS
"""A person is told of what is older."""

MAX_AGE_SECONDS = 30 * DAY_SECONDS
"""What is older is not used: without evidence nothing is shrunk."""

MAX_CLOCK_SKEW_SECONDS = 300
"""What clocks may differ by. What is further ahead was not recorded when it says."""

RECORD_AGAIN = "Write a new one: rightslice usage record --prometheus URL --file FILE"


WORKER_MODULE = "webhook.usage.worker"
"""Its module, which brings numpy: nothing of it is imported here."""

MAX_VIEW_BYTES = 128 * 1024 * 1024
"""Bytes of all frames together."""

READ_BYTES = 64 * 1024
MAX_STDERR_BYTES = 300
"""Bytes of the last line on stderr that are told of a process that ended early."""

FILE_TIMEOUT_SECONDS = 300.0
"""The most that a file may take."""

FRAME_DECODER: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


class LoadedUsage(NamedTuple):
    """A view, the moment it is of (Unix seconds), how many pods stand behind it, and notes."""

    view: UsageView
    now: float
    pods: int
    notes: tuple[str, ...]


async def load_usage(asked: UsageRequest) -> LoadedUsage:
    """Read use and estimate from it, without holding up who else runs on this event loop.

    Raises:
        UsageError: there is no view to be had in time; says why.
        OSError: no process can be started.
    """
    seconds = asked.prometheus.seconds if asked.prometheus is not None else FILE_TIMEOUT_SECONDS
    process = await _start_worker()
    last_words = asyncio.create_task(_last_stderr_line(process))
    try:
        async with asyncio.timeout(seconds):
            return await _collect_view(process, asked, last_words)
    except TimeoutError as error:
        raise UsageError(f"use must be read and estimated within {seconds:g} s, was not") from error
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        last_words.cancel()


async def _start_worker() -> Process:
    """The process; it finds this very code, wherever we were started from."""
    home = Path(webhook.__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    few = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", WORKER_MODULE]
    return await asyncio.create_subprocess_exec(
        *command, cwd=home, env=environment | few, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )


async def _last_stderr_line(process: Process) -> str:
    """The end of what it says on stderr, read all along so that it is never held up by nobody listening."""
    assert process.stderr is not None
    said = b""
    while more := await process.stderr.read(READ_BYTES):
        said = (said + more)[-MAX_STDERR_BYTES:]
    lines = said.decode(errors="replace").splitlines()
    return lines[-1] if lines else ""


async def _collect_view(process: Process, asked: UsageRequest, last_words: Awaitable[str]) -> LoadedUsage:
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(asked))
    process.stdin.close()
    head: HeadFrame | None = None
    left = MAX_VIEW_BYTES
    observed: dict[tuple[str, str, str], ObservedUsage] = {}
    while True:
        packed = await _read_frame(process, left, last_words)
        left -= len(packed)
        match _decode_frame(packed):
            case HeadFrame() as frame:
                head = frame
            case ErrorFrame(reason=why, internal=ours):
                raise UsageError(f"a fault of ours while reading use: {why}" if ours else why)
            case EndFrame():
                break
            case part:
                observed |= {(namespace, workload, name): seen for namespace, workload, name, seen in part.observed}
        await asyncio.sleep(0)
    if head is None:
        raise UsageError("the process that reads use must send a view with its head, found an end without one")
    return LoadedUsage(UsageView(observed, head.prices), head.now, head.pods, head.notes)


def _decode_frame(packed: bytes) -> Frame:
    try:
        return FRAME_DECODER.decode(packed)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the process that reads use must send a view, found what is none ({error})") from error


async def _read_frame(process: Process, most: int, last_words: Awaitable[str]) -> bytes:
    assert process.stdout is not None
    try:
        (length,) = FRAME_LENGTH.unpack(await process.stdout.readexactly(FRAME_LENGTH.size))
        if length > most:
            raise UsageError(f"the view of use must have at most {MAX_VIEW_BYTES >> 20} MiB, has more")
        return await process.stdout.readexactly(length)
    except asyncio.IncompleteReadError as error:
        code, said = await process.wait(), await last_words
        why = "memory may be short" if code < 0 else f"exit code {code}"
        more = f": {said}" if said else ""
        raise UsageError(f"the process that reads use ended before it had answered ({why}){more}") from error


def future_record_error(recorded: float, now: float) -> str:
    """Why recorded use cannot be of the moment that it says, both in Unix seconds; "" if it can."""
    if recorded - now <= MAX_CLOCK_SKEW_SECONDS:
        return ""
    return (
        f"must be recorded before now, found {_duration_text(recorded - now)} from "
        f"now: one of the clocks is wrong. {RECORD_AGAIN}"
    )


def old_record_error(recorded: float, now: float) -> str:
    """Why recorded use is not used, both in Unix seconds; "" if it is."""
    if now - recorded <= MAX_AGE_SECONDS:
        return ""
    return (
        f"recorded {_duration_text(now - recorded)} ago: after {_duration_text(MAX_AGE_SECONDS)} "
        f"it is not used. {RECORD_AGAIN}"
    )


def record_age_note(recorded: float, now: float) -> str:
    """How old recorded use is, where that is worth a word; else ""."""
    return f"recorded {_duration_text(now - recorded)} ago" if now - recorded > NOTE_AGE_SECONDS else ""


def _duration_text(seconds: float) -> str:
    days = round(seconds / DAY_SECONDS)
    return pluralize(days, "day") if days else pluralize(round(seconds / 60), "minute")
