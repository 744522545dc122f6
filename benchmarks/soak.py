"""Soak: memory, file descriptors and latency of a server that reviews pods for hours.

*Compressed*: a day of creates as fast as they go, with the server's clock moving by the rate of creates, so that
everything that expires does. The server has the snapshot of the demo and the shipped policies. *Live*: hours on the
live view of the synthetic API server of `benchmarks.live`, at a steady rate of creates and of pod events, with a
policy file that is written again every minute.

*Burst*: after a minute without requests, 4,000 reviews by 16 clients at once.

No two pods are alike in name, uid, image and labels, nine in ten; the others are copies. Every create is reviewed by
both routes, as an API server does.

Bounds, from ten minutes after the start (of the clock that moves), by least squares: memory grows by at most 1 MiB per
hour, and the number of open file descriptors by less than one per hour. Every review is answered with 200. In the
burst, the 99th percentile is at most 250 ms.

    python -m benchmarks.soak [--hours H] [--live-hours H] [--rate N]
"""

from __future__ import annotations

import argparse
import http.client
import ssl
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.hostile import resident_mib
from benchmarks.live import apiserver
from benchmarks.reviews import NAMESPACE, copies, strangers
from benchmarks.server import HOST, Contender, free_port, running
from webhook.cache.bundled_files import bundled_folder
from webhook.certs.issuer import create_self_signed
from webhook.server.handlers import API_SERVER

MAX_MIB_PER_HOUR = 1.0
MAX_FILES_PER_HOUR = 1.0
"""Not zero: the pool of connections to the API server holds one or two more at some times than at others."""

WARM_UP_SECONDS = 600.0
CREATES_PER_SECOND = 20.0
"""The rate of pod changes that Kubernetes states its latency goals for."""

POD_EVENTS = 50
"""Events per second that the live view follows."""

LIVE_NAMESPACE = "team-1"
"""A namespace of the synthetic API server."""

SAMPLES_PER_HOUR = 60
IDLE_SECONDS = 60.0
BURST, BURST_CLIENTS, MAX_BURST_P99 = 4000, 16, 250.0
"""Reviews, clients, milliseconds."""

COPIES_IN_TEN = 1
START_SECONDS = 120.0

SERVE = "from benchmarks.soak import serve_with_moving_clock as serve; serve()"
"""The program of the compressed soak: its arguments are the rate of creates, and those of `rightslice`."""


class Sample(NamedTuple):
    """What was read at one time.

    Attributes:
        hours: Since the start, of the clock that moves.
        resident: MiB.
        files: Open file descriptors.
        p99: Of the reviews since the last sample, milliseconds.
        slowest: Of those, milliseconds.
    """

    hours: float
    resident: float
    files: int
    p99: float
    slowest: float


def main() -> int:
    """Measure and print; return 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hours", type=float, default=24.0, metavar="H", help="hours of creates, compressed; 0: none")
    parser.add_argument("--live-hours", type=float, default=2.0, metavar="H", help="hours on the live view; 0: none")
    parser.add_argument("--rate", type=float, default=CREATES_PER_SECOND, metavar="N", help="creates per second")
    options = parser.parse_args()
    held = True
    if options.hours:
        with compressed_server(options.rate) as server:
            held = judge("compressed", run_compressed(*server, options.hours, options.rate))
            held = judge_burst(run_burst(server[1])) and held
    if options.live_hours:
        with live_server() as (pid, port, policy):
            held = judge("live", run_live(pid, port, policy, options.live_hours, options.rate)) and held
    return 0 if held else 1


# Servers


@contextmanager
def compressed_server(rate: float) -> Iterator[tuple[int, int]]:
    """Run a server on a snapshot whose clock moves with each review; yields its process id and port."""
    with TemporaryDirectory(prefix="rightslice-soak-") as name:
        create_self_signed([HOST], datetime.now(UTC)).write(Path(name))
        port = free_port()
        command = [sys.executable, "-c", SERVE, str(rate), *_arguments(port, bundled_folder("policies"))]
        command += ["--cluster", "demo", "--tls-cert", f"{name}/tls.crt", "--tls-key", f"{name}/tls.key"]
        with running(Contender("Rightslice", command, port)) as pid:
            yield pid, port


@contextmanager
def live_server() -> Iterator[tuple[int, int, Path]]:
    """Run a server on the live view; yields its process id, its port and a policy file to write again."""
    with TemporaryDirectory(prefix="rightslice-soak-") as name, apiserver() as site:
        folder, port = Path(name), free_port()
        for file in bundled_folder("policies").glob("*.yaml"):
            (folder / file.name).write_bytes(file.read_bytes())
        command = [sys.executable, "-m", "webhook.cli", *_arguments(port, folder), "--self-signed"]
        command += ["--cluster", "live", "--kubeconfig", str(site.kubeconfig)]
        site.post(f"/rate/{POD_EVENTS}")
        with running(Contender("Rightslice", command, port)) as pid:
            _wait_until_ready(port)
            yield pid, port, min(folder.glob("*.yaml"))


def _arguments(port: int, policies: Path) -> list[str]:
    listen = f"{HOST}:{port}"
    return ["serve", "webhook", "--listen", listen, "--policies", str(policies), "--log-level", "warning"]


def _wait_until_ready(port: int) -> None:
    client = Client(port)
    end = time.monotonic() + START_SECONDS
    while client.get("/readyz") != 200:
        if time.monotonic() > end:
            raise SystemExit("the server did not become ready")
        time.sleep(0.2)


def serve_with_moving_clock() -> None:
    """Serve with a clock that every reading moves by half the time between two creates, as each has two reviews."""
    from webhook.cli.main import run  # only the child needs it
    from webhook.cli.processes import webhook as process
    from webhook.server import handlers

    step, start, readings, seconds = 0.5 / float(sys.argv.pop(1)), datetime.now(UTC), count(), count()
    process.utc_now = lambda: start + timedelta(seconds=next(readings) * step)
    handlers.monotonic = lambda: next(seconds) * step  # type: ignore[attr-defined]  # imported there
    run()


# Load


class Client:
    """One connection, as an API server keeps it."""

    def __init__(self, port: int) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=60)

    def get(self, path: str) -> int:
        """Return the status of a probe, on a connection of its own."""
        return self._send("GET", path, b"")

    def post(self, path: str, body: bytes) -> float:
        """Post a review; return the milliseconds that it took.

        Raises:
            SystemExit: it was not answered with 200.
        """
        start = time.perf_counter()
        status = self._send("POST", path, body)
        if status != http.HTTPStatus.OK:
            raise SystemExit(f"{path}: HTTP {status}")
        return (time.perf_counter() - start) * 1000

    def _send(self, method: str, path: str, body: bytes) -> int:
        headers = {"Content-Type": "application/json", "User-Agent": API_SERVER}
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        response.read()
        return response.status


def pods(namespace: str = NAMESPACE) -> Iterator[bytes]:
    """Yield reviews of pods of a namespace without end: nine of ten pods are like no other."""
    templates, copied = (
        [body.replace(NAMESPACE.encode(), namespace.encode()) for body in bodies]
        for bodies in (strangers(400), copies(10, 10))
    )
    for number in count():
        if number % 10 < COPIES_IN_TEN:
            yield copied[number // 10 % len(copied)]
        else:
            yield unlike(templates[number % len(templates)], number)


def unlike(template: bytes, number: int) -> bytes:
    """Return a review whose images, labels and uid no other has."""
    body = template.replace(b"vision/model-", b"vision/model-%x-" % number).replace(b'"app-', b'"app-%x-' % number)
    return body.replace(b'"uid":"', b'"uid":"%08x' % number)


def run_compressed(pid: int, port: int, hours: float, rate: float) -> list[Sample]:
    """Post the creates of some hours as fast as they go."""
    client, samples, spent = Client(port), list[Sample](), list[float]()
    per_sample = int(rate * 3600 / SAMPLES_PER_HOUR)
    for number, body in zip(range(1, int(hours * 3600 * rate) + 1), pods(), strict=False):
        spent += (client.post("/mutate", body), client.post("/validate", body))
        if number % per_sample == 0:
            _record(samples, pid, number / rate / 3600, spent)
    return samples


def run_live(pid: int, port: int, policy: Path, hours: float, rate: float) -> list[Sample]:
    """Post creates at a steady rate for some hours, and write a policy again with each sample."""
    client, samples, spent = Client(port), list[Sample](), list[float]()
    start = time.monotonic()
    for number, body in enumerate(pods(LIVE_NAMESPACE), 1):
        time.sleep(max(0.0, start + number / rate - time.monotonic()))
        spent += (client.post("/mutate", body), client.post("/validate", body))
        passed = (time.monotonic() - start) / 3600
        if passed * SAMPLES_PER_HOUR > len(samples) + 1:
            _record(samples, pid, passed, spent)
            policy.write_text(policy.read_text() + "# written again\n")
        if passed >= hours:
            return samples
    return samples


def run_burst(port: int) -> list[float]:
    """Post reviews from several clients at once after some idle time; return the milliseconds of each, sorted."""
    bodies, clients = list(islice(pods(), BURST)), [Client(port) for _ in range(BURST_CLIENTS)]
    for client in clients:
        client.post("/validate", bodies[0])
    time.sleep(IDLE_SECONDS)

    def post_share(index: int) -> list[float]:
        return [clients[index].post("/validate", body) for body in bodies[index::BURST_CLIENTS]]

    with ThreadPoolExecutor(BURST_CLIENTS) as pool:
        return sorted(each for spent in pool.map(post_share, range(BURST_CLIENTS)) for each in spent)


def _record(samples: list[Sample], pid: int, hours: float, spent: list[float]) -> None:
    spent.sort()
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    samples.append(Sample(hours, resident_mib(pid), files, spent[len(spent) * 99 // 100], spent[-1]))
    spent.clear()
    if len(samples) % SAMPLES_PER_HOUR == 0 or len(samples) == WARM_UP_SECONDS / 3600 * SAMPLES_PER_HOUR:
        print(f"  {hours:6.2f} h: {samples[-1].resident:.1f} MiB, {files} files", flush=True)


# Bounds


def growth_per_hour(samples: list[Sample], values: list[float]) -> float:
    """Return the growth of the values of samples per hour, by least squares."""
    return linear_regression([each.hours for each in samples], values).slope


def judge(name: str, samples: list[Sample]) -> bool:
    """Print what was measured; return whether it is within the bounds."""
    settled = [each for each in samples if each.hours * 3600 >= WARM_UP_SECONDS]
    if len(settled) < 2:
        raise SystemExit(f"{name}: too short, nothing is left after {WARM_UP_SECONDS:.0f} s of warm-up")
    first, last = settled[0], settled[-1]
    growth = growth_per_hour(settled, [each.resident for each in settled])
    opened = growth_per_hour(settled, [each.files for each in settled])
    hours = last.hours
    print(f"{name}: {hours:.1f} h; resident {first.resident:.1f} MiB after warm-up, {last.resident:.1f} at the end")
    print(f"  {growth:+.2f} MiB per hour (at most {MAX_MIB_PER_HOUR:g})")
    print(f"  {opened:+.2f} files per hour (less than {MAX_FILES_PER_HOUR:g}); {first.files} and {last.files} are open")
    half = len(settled) // 2
    early, late = (sorted(each.p99 for each in part) for part in (settled[:half], settled[half:]))
    slowest = max(each.slowest for each in settled)
    print(f"  p99 {early[len(early) // 2]:.1f} ms in the first half, {late[len(late) // 2]:.1f} in the second")
    print(f"  slowest review {slowest:.0f} ms, garbage collection and reloads included")
    return growth <= MAX_MIB_PER_HOUR and opened < MAX_FILES_PER_HOUR


def judge_burst(spent: list[float]) -> bool:
    """Print the latencies of the burst; return whether they are within the bound."""
    p99 = spent[len(spent) * 99 // 100]
    print(f"burst: {len(spent)} reviews, p99 {p99:.0f} ms (at most {MAX_BURST_P99:.0f}), slowest {spent[-1]:.0f} ms")
    return p99 <= MAX_BURST_P99


if __name__ == "__main__":
    sys.exit(main())
