"""Cost of reading usage from a real Prometheus: CPU, memory, and delays of reviews.

    python -m benchmarks.usage                      # 20,000 containers over a day
    python -m benchmarks.usage --containers 2000

A fleet is generated, scraped by a Prometheus that is built from source, and loaded as `serve webhook` loads it,
several times. Measured are the CPU of the process that reads and estimates, the CPU of the server, the memory of the
view, and the longest delay of the server's event loop, compared with an idle one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.controlplane.build import prometheus_program
from tests.usage.exporter import Sample
from tests.usage.fleets import Use, dcgm, owner_samples
from tests.usage.prometheus import PrometheusServer, now
from webhook.model.usage import ObservedUsage, UsageView
from webhook.usage.loader import FRAME_LENGTH, WORKER_MODULE, LoadedUsage, UsageRequest, load_usage
from webhook.usage.prometheus_source import PrometheusSource

MIB = 1 << 20
LOOK = 0.01
"""Seconds between two looks at whether the event loop comes round; looking is most of the CPU that it counts."""

EVERY = 1800
"""Seconds between two samples: what is read are bins of at least as much, whatever lies in one."""


def gpus(containers: int, hours: int, end: float) -> Iterator[Sample]:
    """Yield GPUs, each of its own workload around its own level."""
    for i in range(containers):
        level = 2000 + 37 * i % 60_000
        memory = [level + (i * 31 + step * 17) % 2000 for step in range(hours * 3600 // EVERY)]
        held = Use(f"p{i}", memory, namespace=f"team-{i % 50}", engine=0.4, capacity=81_920, every=EVERY)
        yield from dcgm([held], end)


def owners(containers: int, end: float) -> Iterator[Sample]:
    """Yield their owners."""
    for i in range(containers):
        yield from owner_samples(f"p{i}", [("StatefulSet", f"w{i}")], end, namespace=f"team-{i % 50}")


def cpu(who: int) -> float:
    """Return CPU seconds so far: of this process, or of ended ones."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


async def longest_turn(until: asyncio.Event) -> float:
    """Return the longest delay of the event loop."""
    worst, last = 0.0, time.perf_counter()
    while not until.is_set():
        await asyncio.sleep(LOOK)
        moment = time.perf_counter()
        worst, last = max(worst, moment - last), moment
    return worst


async def measured(request: UsageRequest) -> tuple[LoadedUsage, float]:
    """Measure one load and the longest delay during it."""
    done = asyncio.Event()
    beside = asyncio.create_task(longest_turn(done))
    loaded = await load_usage(request)
    done.set()
    return loaded, await beside


async def idle(seconds: float) -> float:
    """Return the longest delay without a load."""
    done = asyncio.Event()
    beside = asyncio.create_task(longest_turn(done))
    await asyncio.sleep(seconds)
    done.set()
    return await beside


def size_of(view: UsageView) -> int:
    """Return the bytes that a copy of a view takes."""
    packed = [msgspec.msgpack.encode((*key, seen)) for key, seen in view.observed.items()]
    decoder = msgspec.msgpack.Decoder(tuple[str, str, str, ObservedUsage])
    gc.collect()
    tracemalloc.start()
    copy = {(namespace, workload, name): seen for namespace, workload, name, seen in map(decoder.decode, packed)}
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert copy == view.observed
    return taken


def most_held(request: UsageRequest) -> int:
    """The most memory that a process held which reads and estimates, bytes.

    Looked at in `/proc`, when it begins to answer: `ru_maxrss` of a child counts ours at the moment it was started.
    """
    with subprocess.Popen(
        [sys.executable, "-m", WORKER_MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(msgspec.json.encode(request))
        reader.stdin.close()
        reader.stdout.read(FRAME_LENGTH.size)
        status = Path(f"/proc/{reader.pid}/status").read_text(encoding="ascii")
        reader.stdout.read()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024


def say(line: str) -> None:
    """Print a line of the result."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Generate, load, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--containers", type=int, default=20_000)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--loads", type=int, default=3)
    flags = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        PrometheusServer(prometheus_program(), Path(folder)) as prometheus,
    ):
        end = now()
        samples = {"dcgm": gpus(flags.containers, flags.hours, end), "ksm": owners(flags.containers, end)}
        fed = prometheus.feed(samples, within=1800)
        prometheus.stop_exporters()
        request = UsageRequest(PrometheusSource(prometheus.url, selector=fed, days=max(1, flags.hours // 24)))
        say(f"{flags.containers} containers, {flags.hours} h; idle: longest delay {1000 * asyncio.run(idle(5)):.1f} ms")
        view = UsageView()
        for _ in range(flags.loads):
            before, ours, wall = cpu(resource.RUSAGE_CHILDREN), cpu(resource.RUSAGE_SELF), time.perf_counter()
            loaded, worst = asyncio.run(measured(request))
            say(
                f"{len(loaded.view.observed)} in view of {loaded.pods} pods: "
                f"reading and estimating {cpu(resource.RUSAGE_CHILDREN) - before:.1f} s of CPU, "
                f"the server {cpu(resource.RUSAGE_SELF) - ours:.2f} s, wall {time.perf_counter() - wall:.1f} s, "
                f"longest turn {1000 * worst:.1f} ms"
            )
            view = loaded.view
        say(f"the view: {size_of(view) / MIB:.1f} MiB")
        say(f"a reader used at most {most_held(request) / MIB:.0f} MiB")


if __name__ == "__main__":
    main()
