"""Our server with the full decision and the shipped library, against a minimal Go webhook that decides nothing.

Both run as processes on loopback, alternating on the same core, with TLS and 16 persistent connections; the load
comes from the other core. Rounds are interleaved, so that noise affects both. The ratio holds on any machine.

There are two loads of reviews of about 6 KB. *Copies* are what a cluster sends: 25 pods of each of 40 workloads in
turn, each with its own name, uid, index and token volume; the bounds apply to it. *Strangers* are pods of 2,000
workloads, so that no cached decision helps.

The cluster is that of the demo, grown to 100 nodes, with more slices than the load can use; each pod that gets one
reduces the free slices, as in production.

    python -m benchmarks.server [--requests N] [--rounds N] [--policies DIR] [--cluster SNAPSHOT]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.fleet import demo_objects, grow, roomy
from benchmarks.reviews import copies, strangers
from webhook.certs.issuer import create_self_signed

HERE = Path(__file__).parent
HOST = "127.0.0.1"
WARM_UP = 3000
LEAST_RATIO = 1.2
MOST_P99_RATIO = 1.2
START_SECONDS = 120.0


class Round(NamedTuple):
    """One round of one server."""

    per_second: float
    cpu_us: float
    p50_us: float
    p99_us: float


Rounds = dict[str, list[Round]]
"""Rounds by the server's name."""


class Contender(NamedTuple):
    """A server under test."""

    name: str
    command: Sequence[str]
    port: int


def main() -> int:
    """Measure and print; return 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=8000, choices=range(100, 100_001), metavar="N")
    parser.add_argument("--rounds", type=int, default=5, choices=range(1, 21), metavar="N")
    parser.add_argument("--policies", default=str(HERE.parent / "policies"))
    parser.add_argument("--cluster", help="a snapshot instead of the enlarged demo")
    options = parser.parse_args()
    if shutil.which("go") is None:
        print("Go is not installed: nothing to compare with.")
        return 0
    with TemporaryDirectory(prefix="rightslice-bench-") as name:
        folder = Path(name)
        build(folder)
        create_self_signed([HOST], datetime.now(UTC)).write(folder)
        loads = write_loads(folder)
        cluster = options.cluster or str(write_cluster(folder))
        rounds = compete(contenders(folder, options.policies, cluster), loads, options)
    return report(rounds)


def write_loads(folder: Path) -> list[Path]:
    """Write the reviews of each load, one per line."""
    files = []
    for name, reviews in (("copies", copies()), ("strangers", strangers())):
        files.append(folder / f"{name}.jsonl")
        files[-1].write_bytes(b"\n".join(reviews))
    return files


def write_cluster(folder: Path) -> Path:
    """Write a snapshot with capacity for all pods."""
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": roomy(grow(demo_objects()))}))
    return file


def build(folder: Path) -> None:
    """Build the Go webhook and the load generator."""
    command = ["go", "build", "-o", f"{folder}/", "./baseline", "./load"]
    subprocess.run(command, cwd=HERE / "go", check=True)


def contenders(folder: Path, policies: str, cluster: str) -> list[Contender]:
    """Return both servers with their ports."""
    ports = free_port(), free_port()
    go = [f"{folder}/baseline", "-listen", f"{HOST}:{ports[0]}", "-cert", f"{folder}/tls.crt", "-key"]
    ours = [sys.executable, "-m", "webhook.cli", "serve", "webhook", "--listen", f"{HOST}:{ports[1]}"]
    ours += ["--policies", policies, "--cluster", cluster, "--log-level", "warning"]
    ours += ["--tls-cert", f"{folder}/tls.crt", "--tls-key", f"{folder}/tls.key"]
    return [Contender("Go", [*go, f"{folder}/tls.key"], ports[0]), Contender("Rightslice", ours, ports[1])]


def compete(servers: list[Contender], loads: list[Path], options: argparse.Namespace) -> dict[str, Rounds]:
    """Run every server with every load in turn; return the rounds by load."""
    rounds: dict[str, Rounds] = {load.stem: {server.name: [] for server in servers} for load in loads}
    with running(servers[0]) as first, running(servers[1]) as second:
        running_now = ((servers[0], first), (servers[1], second))
        for server, _ in running_now:
            post(loads[0], server.port, WARM_UP)
        for _ in range(options.rounds):
            for load in loads:
                for server, pid in running_now:
                    rounds[load.stem][server.name].append(measure(load, server.port, pid, options.requests))
    return rounds


def measure(load: Path, port: int, pid: int, requests: int) -> Round:
    """Run one round: throughput, CPU of the server per request, latencies."""
    before = cpu_seconds(pid)
    result = post(load, port, requests)
    used = cpu_seconds(pid) - before
    done = result["requests"]
    if result["failed"] or done < requests:
        raise SystemExit(f"{result['failed']} requests failed")
    return Round(done / result["seconds"], used / done * 1e6, result["p50_us"], result["p99_us"])


def post(load: Path, port: int, requests: int) -> dict[str, float]:
    """Post the reviews of a load in turn, `requests` of them over 16 connections, from the last core."""
    command = [f"{load.parent}/load", "-target", f"{HOST}:{port}", "-bodies", str(load)]
    command += ["-requests", str(requests), "-connections", "16"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=120, preexec_fn=pin(last=True))
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@contextmanager
def running(server: Contender) -> Iterator[int]:
    """Run a server on the first core until the block ends; yields its process id."""
    environment = {**os.environ, "GOMAXPROCS": "1"}
    process = subprocess.Popen(server.command, env=environment, preexec_fn=pin(last=False))
    try:
        wait_for(server.port, process)
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a port accepts connections."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection((HOST, port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the server did not start")


def pin(*, last: bool):  # type: ignore[no-untyped-def] # a callback for Popen
    """Return a function that pins a new process to the first or the last available core."""
    cores = sorted(os.sched_getaffinity(0))
    return lambda: os.sched_setaffinity(0, {cores[-1 if last else 0]})


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process with all its threads, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def free_port() -> int:
    """Return a loopback port that is not in use."""
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def report(loads: dict[str, Rounds]) -> int:
    """Print medians and ratios of each load; return 1 if the first exceeds a bound."""
    print(f"{'':24}{'reviews/s':>12}{'CPU us':>10}{'p50 us':>10}{'p99 us':>10}   (medians of the rounds)")
    for load, rounds in loads.items():
        for name, each in rounds.items():
            middle = Round(*map(median, zip(*each, strict=True)))
            figures = f"{middle.per_second:12.0f}{middle.cpu_us:10.1f}{middle.p50_us:10.0f}{middle.p99_us:10.0f}"
            print(f"{load:12}{name:12}{figures}")
    print(f"ratios to Go: reviews per second and core (at least {LEAST_RATIO}), p99 (at most {MOST_P99_RATIO})")
    held = [_holds(load, rounds) for load, rounds in loads.items()]
    return int(not held[0])


def _holds(load: str, rounds: Rounds) -> bool:
    pairs = list(zip(rounds["Rightslice"], rounds["Go"], strict=True))
    rate = median(ours.per_second / go.per_second for ours, go in pairs)
    cpu = median(go.cpu_us / ours.cpu_us for ours, go in pairs)
    p99 = median(ours.p99_us / go.p99_us for ours, go in pairs)
    print(f"{load:12} reviews {rate:.2f}, reviews per CPU second {cpu:.2f}, p99 {p99:.2f}")
    return rate >= LEAST_RATIO and p99 <= MOST_P99_RATIO


if __name__ == "__main__":
    sys.exit(main())
