"""The end of a process while native code runs in a thread that must not delay it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, atexit, threading, time
from webhook.web.daemon_threads import exit_if_threads_run, run_in_daemon_thread

async def main():
    thread = run_in_daemon_thread(lambda: time.sleep({seconds}))
    if not {seconds}:
        await thread
        for each in threading.enumerate():
            if each is not threading.current_thread():
                each.join()
    print("served")

atexit.register(print, "finalized")
asyncio.run(main())
exit_if_threads_run()
print("no thread runs")
"""

ENDS = {
    "a thread that runs ends with the process, before the interpreter would end it": (600, ["served"]),
    "without such a thread the process ends as usual": (0, ["served", "no thread runs", "finalized"]),
}


@pytest.mark.parametrize(("seconds", "lines"), ENDS.values(), ids=ENDS)
def test_ends(seconds: int, lines: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM.format(seconds=seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines() == lines
