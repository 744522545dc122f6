"""Run one program, and kill it when the process that started it has ended.

    python -I -S supervisor.py PROGRAM ARGUMENT...

The asker holds the other end of standard input. Each line of it is the number of a signal to send; its end means that
that process has ended, and kills the program and all that it started. Needs only the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

POLL_SECONDS = 0.2
"""Seconds between checks whether the program, or the process that started it, has ended."""


def main() -> int:
    asker = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while child.poll() is None and os.getppid() == asker and forward_signals(child.pid):
            pass
    finally:
        signal_group(child.pid, signal.SIGKILL)
        child.wait()
    return child.returncode


def forward_signals(group: int) -> bool:
    """Wait briefly for signal numbers, and forward them; False at the end of input."""
    if not select.select([0], [], [], POLL_SECONDS)[0]:
        return True
    orders = os.read(0, 1024).split()
    for order in orders:
        signal_group(group, int(order))
    return bool(orders)


def signal_group(group: int, number: int) -> None:
    """Send a signal to all of a group that is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main())
