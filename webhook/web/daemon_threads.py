"""Runs blocking work in threads that do not delay the end of the process: `asyncio.to_thread` would wait for them."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class _DaemonThread(threading.Thread):
    """A thread that does not delay the end of the process."""


def run_in_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Call a function that may take long or hang forever. It goes on if its result is no longer awaited."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        set_outcome: Callable[[Any], None] = future.set_result
        outcome: T | BaseException
        try:
            outcome = work()
        except BaseException as error:
            set_outcome, outcome = future.set_exception, error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if future.done() else set_outcome(outcome))

    _DaemonThread(target=run, daemon=True).start()
    return future


def exit_if_threads_run() -> None:
    """End the process with exit code 0 if such a thread runs.

    At its usual end Python ends threads that return from native code, which makes C++ (HiGHS) abort the process.
    """
    if any(isinstance(each, _DaemonThread) for each in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
