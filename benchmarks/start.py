"""Time from start to ready, memory at rest, and the time of the shortest command.

python -m benchmarks.start
"""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.server import HERE, HOST, START_SECONDS, free_port

TIMES = 5
READY_SECONDS = 2.0
RESIDENT_MIB = 120
VERSION_SECONDS = 0.3


def main() -> int:
    """Measure and print; return 1 if a bound is exceeded."""
    starts = [start() for _ in range(TIMES)]
    ready = median(seconds for seconds, _ in starts)
    resident = max(mib for _, mib in starts)
    version = median(shortest_command() for _ in range(TIMES))
    print(f"start to ready:     {ready:.2f} s (at most {READY_SECONDS})")
    print(f"resident memory:    {resident:.0f} MiB (at most {RESIDENT_MIB})")
    print(f"rightslice version: {version:.2f} s (at most {VERSION_SECONDS})")
    return int(ready > READY_SECONDS or resident > RESIDENT_MIB or version > VERSION_SECONDS)


def start() -> tuple[float, float]:
    """Start the server with the shipped policies and cluster; return seconds until ready, and MiB then."""
    port = free_port()
    command = [sys.executable, "-m", "webhook.cli", "serve", "webhook", "--self-signed", "--listen", f"{HOST}:{port}"]
    command += ["--policies", str(HERE.parent / "policies"), "--cluster", "demo", "--log-level", "warning"]
    began = time.perf_counter()
    process = subprocess.Popen(command)
    try:
        while not is_ready(port):
            if process.poll() is not None or time.perf_counter() - began > START_SECONDS:
                raise SystemExit("the server did not become ready")
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        return seconds, pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    finally:
        process.terminate()
        process.wait(20)


def is_ready(port: int) -> bool:
    """Return whether /readyz reports ready."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = http.client.HTTPSConnection(HOST, port, timeout=2, context=context)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def shortest_command() -> float:
    """Return the seconds that `rightslice version` takes."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "webhook.cli", "version"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
