"""Hostile reviews against a running server: the CPU of each, and the memory that they leave behind.

The server runs as a process of its own with the shipped policies in the demo cluster. First each kind of
`benchmarks.hostile_reviews` is posted in three sizes, as an API server and as another client, to both routes; the CPU
time of the process is read before and after each. A kind counts with the least of its rounds: on a shared machine the
others measure its neighbors. Then so many reviews of all kinds follow in turn, no two alike, and memory is compared
with that after the same reviews of ordinary pods before and after.

Then two connections send the slowest reviews, each as soon as the one before it is answered, while an honest client
sends one ordinary review after another, on the other core.

Last, clients hold many connections with large reviews (`benchmarks.hostile_connections`); memory is read meanwhile, and
again when all of them are closed.

Bounds: 50 ms of CPU for any review; at most 200 MiB resident, and at most 20 MiB more than before; 100 ms for 99 of 100
reviews of the honest client.

    python -m benchmarks.hostile [--reviews N] [--rounds N]
"""

from __future__ import annotations

import argparse
import http.client
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from itertools import count, cycle, islice, product
from multiprocessing import Process
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from benchmarks.hostile_connections import ATTACKS as CONNECTION_ATTACKS
from benchmarks.hostile_connections import Attack, client_context, hold_connections
from benchmarks.hostile_reviews import BODIES, KINDS, OBJECT_BYTES, hostile_review, update_review
from benchmarks.reviews import strangers
from benchmarks.server import HERE, HOST, Contender, cpu_seconds, free_port, running
from webhook.certs.issuer import create_self_signed
from webhook.server.handlers import API_SERVER
from webhook.web.listener import raise_descriptor_limit

MAX_CPU_MS = 50.0
MAX_RESIDENT_MIB = 200.0
MAX_GROWTH_MIB = 20.0
MAX_HONEST_MS = 100.0
SETTLE_SECONDS = 3.0
"""For connections to close, and their memory to be returned."""

CONNECT_SECONDS = 1.0
"""For the attackers to start and connect: no measured review of the honest client is without them."""

HONEST = 400
"""Reviews of the honest client while others attack."""

ATTACKS = 8
"""The slowest reviews, which the attackers send in turn."""

SIZES = (15_000, 60_000, 300_000, OBJECT_BYTES)
FLOOD_SIZES = (15_000, 60_000, 300_000, 15_000, 60_000, OBJECT_BYTES)
"""Sizes in the flood of reviews: small bodies are evaluated, and can be sent in large numbers."""

ORDINARY = 1500
"""Reviews of ordinary pods before each reading of memory."""

PLACEHOLDER = "zzzzzzzz"
"""Stands in a review for the text that no other one has."""

FIRST_OF_FLOOD = 1 << 24

Body = Callable[[str, int], bytes]
Post = Callable[[str, str, bytes], int]
"""Posts a body to a path as a client of this name; returns the status."""

Connect = Callable[[], Post]
"""Opens a connection."""


def all_bodies() -> Mapping[str, Body]:
    """Return every kind of review, by its name."""
    created: dict[str, Body] = {kind: partial(hostile_review, kind) for kind in KINDS}
    updated: dict[str, Body] = {f"update of {kind}": partial(update_review, kind) for kind in KINDS}
    return {**created, **updated, **BODIES}


def main() -> int:
    """Measure and print; return 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--reviews", type=int, default=10_000, metavar="N", help="reviews of the memory test")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of the CPU test")
    options = parser.parse_args()
    with TemporaryDirectory(prefix="rightslice-hostile-") as name, serving(Path(name)) as (pid, port):
        connect = partial(_connect, port)
        post = connect()
        _post_ordinary(post)
        before = resident_mib(pid)
        slowest, attacks = measure_cpu(pid, post, options.rounds)
        highest = flood(pid, post, options.reviews)
        _post_ordinary(post)
        after = resident_mib(pid)
        p99, waited = measure_honest(pid, connect, attacks)
        held = {name: measure_held(pid, port, attack) for name, attack in CONNECTION_ATTACKS.items()}
    print(f"resident: {before:.0f} MiB before, at most {highest:.0f} MiB, {after:.0f} MiB after")
    for name, (most, left) in held.items():
        print(f"{name}: at most {most:.0f} MiB, {left:.0f} MiB after")
    print(f"an honest client during attacks on two connections: 99th percentile {p99:.0f} ms,")
    print(f"CPU time of the server: {waited:.0f} ms; the rest is for other processes of this machine")
    bounds = f"{MAX_CPU_MS:.0f} ms, {MAX_RESIDENT_MIB:.0f} MiB, {MAX_GROWTH_MIB:.0f} MiB more than before"
    print(f"bounds: {bounds}, {MAX_HONEST_MS:.0f} ms for the honest client")
    highest, after = (max(most) for most in zip((highest, after), *held.values(), strict=True))
    is_small = highest <= MAX_RESIDENT_MIB and after - before <= MAX_GROWTH_MIB
    return 0 if slowest <= MAX_CPU_MS and is_small and p99 <= MAX_HONEST_MS else 1


def unlike(body: bytes, number: int) -> bytes:
    """Return a review that differs from others in every text."""
    return body.replace(PLACEHOLDER.encode(), f"{number:08x}".encode())


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, int]]:
    """Run a server until the block ends; yields its process id and port."""
    create_self_signed([HOST], datetime.now(UTC)).write(folder)
    port = free_port()
    command = [sys.executable, "-m", "webhook.cli", "serve", "webhook", "--listen", f"{HOST}:{port}"]
    command += ["--policies", str(HERE.parent / "policies"), "--cluster", "demo", "--log-level", "warning"]
    command += ["--tls-cert", f"{folder}/tls.crt", "--tls-key", f"{folder}/tls.key"]
    with running(Contender("Rightslice", command, port)) as pid:
        yield pid, port


def _connect(port: int) -> Post:
    return partial(_post, [http.client.HTTPSConnection(HOST, port, context=client_context(), timeout=60)])


def _post(connections: list[http.client.HTTPSConnection], path: str, client: str, body: bytes) -> int:
    [connection] = connections
    headers = {"Content-Type": "application/json", "User-Agent": client}
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def _post_ordinary(post: Post) -> None:
    for body in islice(cycle(strangers(300)), ORDINARY):
        post("/mutate", API_SERVER, body)
        post("/validate", API_SERVER, body)


def measure_cpu(pid: int, post: Post, rounds: int) -> tuple[float, list[bytes]]:
    """Print the slowest reviews; return the CPU of the slowest, milliseconds, and some of the slowest."""
    number = count()
    measured: list[tuple[float, str, int]] = []
    for name, build in all_bodies().items():
        for size in SIZES:
            body = build(PLACEHOLDER, size)
            for client, path in product((API_SERVER, "other"), ("/mutate", "/validate")):
                spent = [_cpu_ms(pid, post, client, path, unlike(body, next(number))) for _ in range(rounds)]
                measured.append((min(spent), name, size))
    measured.sort(reverse=True)
    print(f"{len(measured)} reviews of {len(all_bodies())} kinds; the CPU of the slowest:")
    for slowest, name, size in measured[:10]:
        print(f"{slowest:8.1f} ms  {size:9,} bytes  {name}")
    builders = all_bodies()
    return measured[0][0], [builders[name](PLACEHOLDER, size) for _, name, size in measured[:ATTACKS]]


def measure_honest(pid: int, connect: Connect, attacks: Sequence[bytes]) -> tuple[float, float]:
    """Return the time in which 99 of 100 ordinary reviews are answered while two connections attack, milliseconds.

    Second, the same percentile of the server's CPU time from review to answer, which does not depend on other load of
    the machine.
    """
    processes = [Process(target=_attack, args=(connect, attacks), daemon=True) for _ in range(2)]
    for each in processes:
        each.start()
    time.sleep(CONNECT_SECONDS)
    try:
        post, taken, waited = connect(), list[float](), list[float]()
        post("/mutate", API_SERVER, next(iter(strangers(1))))  # an API server keeps its connections
        for body in islice(cycle(strangers(300)), HONEST):
            start, before = time.perf_counter(), cpu_seconds(pid)
            assert post("/mutate", API_SERVER, body) == HTTPStatus.OK
            taken.append((time.perf_counter() - start) * 1000)
            waited.append((cpu_seconds(pid) - before) * 1000)
    finally:
        for each in processes:
            each.kill()
    return quantiles(taken, n=100)[-1], quantiles(waited, n=100)[-1]


def _attack(connect: Connect, attacks: Sequence[bytes]) -> None:
    post = connect()
    for body in cycle(attacks):
        post("/mutate", API_SERVER, body)


def measure_held(pid: int, port: int, attack: Attack) -> tuple[float, float]:
    """Return the highest resident memory while connections are held, and that after they are closed, MiB."""
    seen = [resident_mib(pid)]
    raise_descriptor_limit(attack.held)
    hold_connections(port, attack, lambda: seen.append(resident_mib(pid)))
    time.sleep(SETTLE_SECONDS)
    return max(seen), resident_mib(pid)


def _cpu_ms(pid: int, post: Post, client: str, path: str, body: bytes) -> float:
    start = cpu_seconds(pid)
    status = post(path, client, body)
    assert status in (200, 400, 413), status
    time.sleep(0.001)  # what follows the answer, such as its log line
    return (cpu_seconds(pid) - start) * 1000


def flood(pid: int, post: Post, reviews: int) -> float:
    """Post reviews of every kind in turn; return the highest resident memory that was seen, MiB."""
    highest = resident_mib(pid)
    kinds = list(all_bodies().values())
    bodies: dict[tuple[int, int], bytes] = {}
    for number in range(reviews):
        key = number % len(kinds), FLOOD_SIZES[(number // len(kinds)) % len(FLOOD_SIZES)]
        if key not in bodies:
            bodies[key] = kinds[key[0]](PLACEHOLDER, key[1])
        post(("/mutate", "/validate")[number % 2], API_SERVER, unlike(bodies[key], FIRST_OF_FLOOD + number))
        highest = max(highest, resident_mib(pid))
    return highest


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process, MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    sys.exit(main())
