"""The console at full size: `rightslice ui` over 5,000 nodes and 150,000 pods, 30,000 of them with GPUs, each its own
workload, from a synthetic API server or from a snapshot of it.

Its process is measured from outside: CPU and memory until the first page, the time of each page, of a trial and of
pages while it runs, and peak memory; over the API server also the time of pages while the cluster is read again.

    python -m benchmarks.console
    python -m benchmarks.console snapshot
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import unescape
from pathlib import Path

from benchmarks.apiserver import GPU_PODS, NODES, PODS
from benchmarks.live import Figure, Site, apiserver, ending, status, used_by
from tests.cluster.processes import free_port
from webhook.cache.bundled_files import bundled_folder
from webhook.console.guard import FORM_TYPE

LISTS = ("/", "/workloads", "/workloads?sort=-wasted", "/workloads?q=7&page=9", "/nodes", "/nodes?sort=-free")
OTHERS = ("/findings", "/policies", "/try")
LINKS = {"/workloads": "/workload", "/nodes": "/node", "/policies": "/policy"}
"""Lists, and the page that the first row of each links to."""

ROUNDS = 5
READING_SECONDS = 60.0
"""Time in which pages are requested while the cluster is read again."""

MOST_CPU, MOST_PAGE, MOST_BUSY, MOST_FIRST, MOST_PEAK = 180.0, 1.0, 3.0, 1024.0, 1536.0
"""Seconds, seconds, seconds, MiB, MiB."""

MOST_SNAPSHOT_CPU, MOST_SNAPSHOT_PEAK = 300.0, 4096.0
"""Seconds, MiB."""

MOST_TRIAL = 900.0
"""Seconds: 50,000 workloads are evaluated twice."""

SNAPSHOT_KINDS = {"nodes": "Node", "namespaces": "Namespace", "pods": "Pod"}


def main() -> int:
    """Measure and print; return 1 if a bound is exceeded."""
    print(f"{NODES} nodes, {PODS} pods, {GPU_PODS} of them with GPUs; load {os.getloadavg()[0]:.1f}", flush=True)
    exceeded = False
    measure = of_snapshot if sys.argv[1:] == ["snapshot"] else of_console
    with apiserver() as site:
        for figure in measure(site):
            print(figure, flush=True)
            exceeded |= figure.value > figure.most
    return int(exceeded)


def of_console(site: Site) -> Iterator[Figure]:
    """Start the console over it, and measure that process."""
    port = free_port()
    command = [sys.executable, "-m", "webhook.cli", "ui", "--listen", f"127.0.0.1:{port}", "--cluster", "live"]
    command += ["--kubeconfig", str(site.kubeconfig), "--policies", str(bundled_folder("policies"))]
    command += ["--prometheus", "none"]
    with started(command) as process:
        paths = paths_of(port)
        yield Figure("CPU until the first page", used_by(process.pid), MOST_CPU, "s")
        yield Figure("memory then", status(process.pid, "VmRSS"), MOST_FIRST, "MiB")
        yield from page_figures(port, paths)
        yield from trial_figures(port, paths, MOST_BUSY)
        yield Figure("slowest page while reading again", slowest_page(port, paths), MOST_BUSY, "s")
        yield Figure("peak memory", status(process.pid, "VmHWM"), MOST_PEAK, "MiB")


def of_snapshot(site: Site) -> Iterator[Figure]:
    """Save the cluster, start the console over the files, and measure that process."""
    port = free_port()
    command = [sys.executable, "-m", "webhook.cli", "ui", "--listen", f"127.0.0.1:{port}"]
    command += ["--cluster", str(save_snapshot(site)), "--policies", str(bundled_folder("policies"))]
    with started(command) as process:
        yield Figure("CPU until the first page", used_by(process.pid), MOST_SNAPSHOT_CPU, "s")
        paths = paths_of(port)
        yield from page_figures(port, paths)
        yield from trial_figures(port, paths, MOST_PAGE)
        yield Figure("peak memory", status(process.pid, "VmHWM"), MOST_SNAPSHOT_PEAK, "MiB")


def save_snapshot(site: Site) -> Path:
    """Write the lists of the cluster to files, a page each; return their folder."""
    folder = site.folder / "snapshot"
    folder.mkdir()
    for name, kind in SNAPSHOT_KINDS.items():
        token, number = "0", 0
        while token:
            url = f"{site.url}/api/v1/{name}?limit=2000&continue={token}"
            with urllib.request.urlopen(url, context=site.tls, timeout=60) as answer:
                page = json.load(answer)
            token, number = page["metadata"].get("continue", ""), number + 1
            items = [{"apiVersion": "v1", "kind": kind, **item} for item in page["items"]]
            text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
            (folder / f"{name}-{number:04}.json").write_text(text, encoding="utf-8")
    return folder


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a console for the block, which starts when the console serves pages."""
    start = time.monotonic()
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        print(f"first page after {time.monotonic() - start:.0f} s", flush=True)
        yield process


def paths_of(port: int) -> list[str]:
    """Return the addresses that are requested."""
    return [*LISTS, *OTHERS, *(linked_page(port, path, linked) for path, linked in LINKS.items())]


def page_figures(port: int, paths: Sequence[str]) -> Iterator[Figure]:
    """Yield the time of each page alone."""
    for path in paths:
        yield Figure(path[:44], min(page_seconds(port, [path] * ROUNDS)), MOST_PAGE, "s")


def trial_figures(port: int, paths: Sequence[str], most_page: float) -> Iterator[Figure]:
    """Try a policy on all workloads, and request pages until it has ended."""
    address = f"http://127.0.0.1:{port}"
    policy = (bundled_folder("policies") / "team-limits.yaml").read_text(encoding="utf-8")
    form = urllib.parse.urlencode({"objects": "", "policies": policy})
    start, slowest = time.monotonic(), 0.0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/try", form, {"Origin": address, "Content-Type": FORM_TYPE})
    with connection.getresponse() as answer:
        result = answer.headers["Location"].partition("#")[0]
    yield Figure("form of the trial", time.monotonic() - start, MOST_PAGE, "s")
    while "<progress" in (page := fetch(port, result)):
        slowest = max(slowest, *page_seconds(port, [*paths, result]))
    [evaluated] = re.findall(r"One pod of each of ([0-9]+) ", page)
    yield Figure(f"trial of {evaluated} workloads", time.monotonic() - start, MOST_TRIAL, "s")
    yield Figure("slowest page while it runs", slowest, most_page, "s")


def slowest_page(port: int, paths: Sequence[str]) -> float:
    """Request the pages in turn until the time has passed; return the longest time of one."""
    slowest, deadline = 0.0, time.monotonic() + READING_SECONDS
    while time.monotonic() < deadline:
        slowest = max(slowest, *page_seconds(port, paths))
    return slowest


def page_seconds(port: int, paths: Sequence[str]) -> Iterator[float]:
    """Yield the time of each page."""
    for path in paths:
        start = time.monotonic()
        fetch(port, path)
        yield time.monotonic() - start


def linked_page(port: int, path: str, linked: str) -> str:
    """Return the address of the page that the first row of a list links to."""
    found = re.search(f'<th scope="row"><a href="({linked}[^"]*)"', fetch(port, path))
    assert found is not None, path
    return unescape(found[1])


def fetch(port: int, path: str) -> str:
    """Return a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    with connection.getresponse() as answer:
        assert answer.status == 200, (path, answer.status)
        return answer.read().decode()


if __name__ == "__main__":
    sys.exit(main())
