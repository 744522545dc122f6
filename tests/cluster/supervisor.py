"""Run one program, and kill it when the process that started it has ended.

    python -I -S supervisor.py PROGRAM ARGUMENT...

The parent process holds the other end of standard input. Each line is the number of a signal to send. End of file means
that the parent has ended: the program and everything it started are killed. Needs only the standard library.
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
    parent = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while child.poll() is None and os.getppid() == parent and forward_signals(child.pid):
            pass
    finally:
        signal_group(child.pid, signal.SIGKILL)
        child.wait()
    return child.returncode


def forward_signals(group: int) -> bool:
    """Wait briefly for signal numbers, and forward them; False at the end of input."""
    if not select.select([0], [], [], POLL_SECONDS)[0]:
        return True
    numbers = os.read(0, 1024).split()
    for number in numbers:
        signal_group(group, int(number))
    return bool(numbers)


def signal_group(group: int, number: int) -> None:
    """Send a signal to the remaining processes of a group."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main())
