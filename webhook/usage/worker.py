"""A process of its own that reads use and estimates from it, so that nothing of that is ever in the way of a review.

    python -m webhook.usage.worker < ASKED > FRAMES

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
from webhook.model.usage import ObservedUsage
from webhook.usage.estimator import estimate_usage
from webhook.usage.history import count_pods
from webhook.usage.history_reader import PrometheusReading, read_histories
from webhook.usage.prometheus import PrometheusClient
from webhook.usage.protocol import FRAME_LENGTH, EndFrame, ErrorFrame, Frame, HeadFrame, ObservedFrame, UsageRequest
from webhook.usage.record_file import read_record as read_file

MAX_MEMORY_BYTES = 2 * 1024 * 1024 * 1024
NICENESS = 10
CONTAINERS_PER_FRAME = 200


def usage_frames(asked: UsageRequest) -> Iterator[Frame]:
    """All there is to say. Reads and estimates first."""
    reading = asyncio.run(_read_request(asked))
    view = estimate_usage(reading.histories, reading.now)
    yield HeadFrame(reading.now, count_pods(reading.histories), view.prices, reading.notes)
    yield from _observed_frames(view.observed)
    yield EndFrame()


def _with_error_frame(made: Iterator[Frame]) -> Iterator[Frame]:
    """The same frames; where making them fails, the last one says why."""
    try:
        yield from made
    except UsageError as error:
        yield ErrorFrame(str(error))
    except MemoryError:
        yield ErrorFrame(f"must take at most {_memory_limit() >> 20} MiB to read and estimate, took more")
    except Exception:
        yield ErrorFrame(traceback.format_exc()[-4000:], internal=True)


def _observed_frames(observed: Mapping[tuple[str, str, str], ObservedUsage]) -> Iterator[ObservedFrame]:
    """As it is told; the names of idle pods are for audits, which read for themselves."""
    told = ((*key, msgspec.structs.replace(seen, idle_pods=())) for key, seen in observed.items())
    while some := list(islice(told, CONTAINERS_PER_FRAME)):
        yield ObservedFrame(some)


async def _read_request(asked: UsageRequest) -> PrometheusReading:
    if asked.prometheus is None:
        recorded = read_file(Path(asked.file))
        return PrometheusReading(recorded.histories, recorded.now)
    async with PrometheusClient(asked.prometheus) as prometheus:
        return await read_histories(prometheus, time.time)


def main() -> None:
    """Answer what standard input asks for."""
    for frame in _with_error_frame(_answer_request(sys.stdin.buffer)):
        _write_frame(frame, sys.stdout.buffer)


def _answer_request(stream: BinaryIO) -> Iterator[Frame]:
    _lower_priority()
    gc.disable()  # what is read stays until the end: looking for cycles among millions of samples finds none
    yield from usage_frames(msgspec.json.decode(stream.read(), type=UsageRequest))


def _write_frame(frame: Frame, to: BinaryIO) -> None:
    packed = msgspec.msgpack.encode(frame)
    to.write(FRAME_LENGTH.pack(len(packed)) + packed)
    to.flush()


def _lower_priority() -> None:
    """Let everybody else go first."""
    os.nice(NICENESS)
    most = _memory_limit()
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with suppress(OSError):  # not on Linux
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _memory_limit() -> int:
    """Bytes: our bound, or what whoever started us allows where that is less."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    return MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MAX_MEMORY_BYTES, hard)


if __name__ == "__main__":
    main()
