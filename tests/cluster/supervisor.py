"""Run one program, and end it for sure once whoever asked for it is gone, killed or not.

    python -I -S supervisor.py PROGRAM ARGUMENT...

The asker holds the other end of standard input. Each line of it is the number of a signal to send; its end means that
nobody is there any more, and kills the program and all that it started. Needs nothing but the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

STEP = 0.2
"""Seconds until a look at whether the program, or the asker, has ended by itself."""


def main() -> int:
    asker = os.getppid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while child.poll() is None and os.getppid() == asker and obey(child.pid):
            pass
    finally:
        send(child.pid, signal.SIGKILL)
        child.wait()
    return child.returncode


def obey(group: int) -> bool:
    """Wait a step for orders, and pass them on; False once there will be no more."""
    if not select.select([0], [], [], STEP)[0]:
        return True
    orders = os.read(0, 1024).split()
    for order in orders:
        send(group, int(order))
    return bool(orders)


def send(group: int, number: int) -> None:
    """Send a signal to all of a group that is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main())
