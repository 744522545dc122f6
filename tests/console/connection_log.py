"""Runs the command line of Rightslice, and writes each connection that it opens to a file, a line each.

    python -m tests.console.connection_log FILE COMMAND...

An audit hook of the interpreter sees every connection, datagram and name that Python code asks for, whichever library
does it, and every process that could do so unseen. A hook cannot be removed.
"""

from __future__ import annotations

import os
import sys

EVENTS = {
    "socket.connect": "connect",
    "socket.sendto": "send",
    "socket.sendmsg": "send",
    "socket.getaddrinfo": "resolve",
    "socket.gethostbyname": "resolve",
    "subprocess.Popen": "start",
    "os.exec": "start",
    "os.posix_spawn": "start",
    "os.fork": "start",
}


def watch_connections(file: str) -> None:
    """Write the events of this process to a file from now on."""
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def record(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS:
            os.write(log, f"{EVENTS[event]} {_target(event, arguments)}\n".encode())

    sys.addaudithook(record)


def _target(event: str, arguments: tuple[object, ...]) -> str:
    """Return host and port of a connection or a name, and all arguments of anything else."""
    if event == "socket.getaddrinfo":
        return f"{arguments[0]}:{arguments[1]}"
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host, port, *_ = arguments[1]
        return f"{host}:{port}"
    return repr(arguments)


if __name__ == "__main__":
    _, log_file, *command = sys.argv
    watch_connections(log_file)
    from webhook.cli.main import run

    sys.argv = ["rightslice", *command]
    run()
