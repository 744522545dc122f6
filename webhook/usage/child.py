"""A process of its own that reads use and estimates from it, so that nothing of that is ever in the way of a review.

    python -m webhook.usage.child < ASKED > FRAMES

What comes back is in small frames, each of which is decoded within a millisecond: the reader serves reviews between
two of them. The process is the first to be ended where memory is short, and the last to be given a processor.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from webhook.errors import UsageError
from webhook.model.usage import Observed
from webhook.usage.estimating import estimate
from webhook.usage.files import read as read_file
from webhook.usage.frames import LENGTH, Asked, End, Fault, Frame, Head, Part
from webhook.usage.history import pods_in
from webhook.usage.prometheus import Prometheus
from webhook.usage.reading import Reading, read

MEMORY_MOST = 2 * 1024 * 1024 * 1024
NICENESS = 10
CONTAINERS_A_FRAME = 200


def frames(asked: Asked) -> Iterator[Frame]:
    """All there is to say. Reads and estimates first."""
    reading = asyncio.run(_reading(asked))
    view = estimate(reading.histories, reading.now)
    yield Head(reading.now, pods_in(reading.histories), view.prices, reading.notes)
    yield from _parts(view.observed)
    yield End()


def _told(made: Iterator[Frame]) -> Iterator[Frame]:
    """The same frames; where making them fails, the last one says why."""
    try:
        yield from made
    except UsageError as error:
        yield Fault(str(error))
    except MemoryError:
        yield Fault(f"must take at most {_memory_most() >> 20} MiB to read and estimate, took more")
    except Exception:
        yield Fault(traceback.format_exc()[-4000:], ours=True)


def _parts(observed: Mapping[tuple[str, str, str], Observed]) -> Iterator[Part]:
    """As it is told; the names of idle pods are for audits, which read for themselves."""
    told = ((*key, msgspec.structs.replace(seen, idle_pods=())) for key, seen in observed.items())
    while some := list(islice(told, CONTAINERS_A_FRAME)):
        yield Part(some)


async def _reading(asked: Asked) -> Reading:
    if asked.prometheus is None:
        recorded = read_file(Path(asked.file))
        return Reading(recorded.histories, recorded.now)
    async with Prometheus(asked.prometheus) as prometheus:
        return await read(prometheus, time.time)


def main() -> None:
    """Answer what standard input asks for."""
    for frame in _told(_answer(sys.stdin.buffer)):
        _send(frame, sys.stdout.buffer)


def _answer(stream: BinaryIO) -> Iterator[Frame]:
    _step_back()
    gc.disable()  # what is read stays until the end: looking for cycles among millions of samples finds none
    yield from frames(msgspec.json.decode(stream.read(), type=Asked))


def _send(frame: Frame, to: BinaryIO) -> None:
    packed = msgspec.msgpack.encode(frame)
    to.write(LENGTH.pack(len(packed)) + packed)
    to.flush()


def _step_back() -> None:
    """Let everybody else go first."""
    os.nice(NICENESS)
    most = _memory_most()
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with suppress(OSError):  # not on Linux
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _memory_most() -> int:
    """Bytes: our bound, or what whoever started us allows where that is less."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    return MEMORY_MOST if hard == resource.RLIM_INFINITY else min(MEMORY_MOST, hard)


if __name__ == "__main__":
    main()
