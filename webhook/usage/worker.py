"""Worker process that reads usage and estimates from it, so that neither delays a review.

    python -m webhook.usage.worker < REQUEST > FRAMES

The answer is split into small frames, so that the server can answer reviews between two of them. The process has a low
CPU priority and is the first to be killed when memory is short.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from webhook.errors import UsageError
from webhook.usage.estimator import estimate_usage
from webhook.usage.history import count_pods
from webhook.usage.history_reader import PrometheusReading, read_histories
from webhook.usage.loader import FRAME_LENGTH, EndFrame, ErrorFrame, Frame, HeadFrame, ObservedFrame, UsageRequest
from webhook.usage.prometheus import PrometheusClient
from webhook.usage.record_file import read_record

MAX_MEMORY_BYTES = 2 * 1024 * 1024 * 1024
NICENESS = 10
CONTAINERS_PER_FRAME = 200


def usage_frames(request: UsageRequest) -> Iterator[Frame]:
    """Read and estimate, then yield the frames."""
    reading = asyncio.run(_read_request(request))
    view = estimate_usage(reading.histories, reading.now)
    yield HeadFrame(reading.now, count_pods(reading.histories), view.prices, reading.notes)
    # Only the audit needs the names of idle pods.
    entries = ((*key, msgspec.structs.replace(usage, idle_pods=())) for key, usage in view.observed.items())
    while some := list(islice(entries, CONTAINERS_PER_FRAME)):
        yield ObservedFrame(some)
    yield EndFrame()


def _with_error_frame(frames: Iterator[Frame]) -> Iterator[Frame]:
    """Yield the frames, and an error frame if creating them fails."""
    try:
        yield from frames
    except UsageError as error:
        yield ErrorFrame(str(error))
    except MemoryError:
        yield ErrorFrame(f"loading usage needs more than {_memory_limit() >> 20} MiB of memory")
    except Exception:
        yield ErrorFrame(traceback.format_exc()[-4000:], internal=True)


async def _read_request(request: UsageRequest) -> PrometheusReading:
    if request.prometheus is None:
        recorded = read_record(Path(request.file))
        return PrometheusReading(recorded.histories, recorded.now)
    async with PrometheusClient(request.prometheus) as prometheus:
        return await read_histories(prometheus, time.time)


def main() -> None:
    """Answer the request on standard input."""
    for frame in _with_error_frame(_answer_request()):
        packed = msgspec.msgpack.encode(frame)
        sys.stdout.buffer.write(FRAME_LENGTH.pack(len(packed)) + packed)
        sys.stdout.buffer.flush()


def _answer_request() -> Iterator[Frame]:
    _lower_priority()
    gc.disable()  # all data lives until the end, and millions of samples contain no cycles
    yield from usage_frames(msgspec.json.decode(sys.stdin.buffer.read(), type=UsageRequest))


def _lower_priority() -> None:
    """Give other processes precedence for CPU and memory."""
    os.nice(NICENESS)
    limit = _memory_limit()
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with suppress(OSError):  # not on Linux
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _memory_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    return MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MAX_MEMORY_BYTES, hard)


if __name__ == "__main__":
    main()
