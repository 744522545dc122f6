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
from webhook.model.usage import Observed, UsageView
from webhook.usage.frames import LENGTH, Asked, End, Fault, Frame, Head

CHILD = "webhook.usage.child"
"""Its module, which brings numpy: nothing of it is imported here."""

VIEW_MOST = 128 * 1024 * 1024
"""Bytes of all frames together."""

READ_BYTES = 64 * 1024
SAID_MOST = 300
"""Bytes of the last line on stderr that are told of a process that ended early."""

FILE_SECONDS = 300.0
"""The most that a file may take."""

DECODER: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


class Loaded(NamedTuple):
    """A view, the moment it is of (Unix seconds), how many pods stand behind it, and notes."""

    view: UsageView
    now: float
    pods: int
    notes: tuple[str, ...]


async def load(asked: Asked) -> Loaded:
    """Read use and estimate from it, without holding up who else runs on this event loop.

    Raises:
        UsageError: there is no view to be had in time; says why.
        OSError: no process can be started.
    """
    seconds = asked.prometheus.seconds if asked.prometheus is not None else FILE_SECONDS
    process = await _start()
    last_words = asyncio.create_task(_last_words(process))
    try:
        async with asyncio.timeout(seconds):
            return await _answer(process, asked, last_words)
    except TimeoutError as error:
        raise UsageError(f"use must be read and estimated within {seconds:g} s, was not") from error
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        last_words.cancel()


async def _start() -> Process:
    """The process; it finds this very code, wherever we were started from."""
    home = Path(webhook.__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    few = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", CHILD]
    return await asyncio.create_subprocess_exec(
        *command, cwd=home, env=environment | few, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )


async def _last_words(process: Process) -> str:
    """The end of what it says on stderr, read all along so that it is never held up by nobody listening."""
    assert process.stderr is not None
    said = b""
    while more := await process.stderr.read(READ_BYTES):
        said = (said + more)[-SAID_MOST:]
    lines = said.decode(errors="replace").splitlines()
    return lines[-1] if lines else ""


async def _answer(process: Process, asked: Asked, last_words: Awaitable[str]) -> Loaded:
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(asked))
    process.stdin.close()
    head: Head | None = None
    left = VIEW_MOST
    observed: dict[tuple[str, str, str], Observed] = {}
    while True:
        packed = await _frame(process, left, last_words)
        left -= len(packed)
        match _read(packed):
            case Head() as frame:
                head = frame
            case Fault(why=why, ours=ours):
                raise UsageError(f"a fault of ours while reading use: {why}" if ours else why)
            case End():
                break
            case part:
                observed |= {(namespace, workload, name): seen for namespace, workload, name, seen in part.observed}
        await asyncio.sleep(0)
    if head is None:
        raise UsageError("the process that reads use must send a view with its head, found an end without one")
    return Loaded(UsageView(observed, head.prices), head.now, head.pods, head.notes)


def _read(packed: bytes) -> Frame:
    try:
        return DECODER.decode(packed)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the process that reads use must send a view, found what is none ({error})") from error


async def _frame(process: Process, most: int, last_words: Awaitable[str]) -> bytes:
    assert process.stdout is not None
    try:
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        if length > most:
            raise UsageError(f"the view of use must have at most {VIEW_MOST >> 20} MiB, has more")
        return await process.stdout.readexactly(length)
    except asyncio.IncompleteReadError as error:
        code, said = await process.wait(), await last_words
        why = "memory may be short" if code < 0 else f"exit code {code}"
        more = f": {said}" if said else ""
        raise UsageError(f"the process that reads use ended before it had answered ({why}){more}") from error
