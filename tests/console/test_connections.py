"""Which connections the console opens while every page is requested, and a pod and a policy are tried."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.cli.conftest import Run
from tests.console.test_pages import DEMO_PAGES
from webhook.cache.bundled_files import bundled_folder

POLICY = (bundled_folder("policies") / "team-limits.yaml").read_text(encoding="utf-8")
POD = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: a, image: registry.example/a}]}}"


@contextmanager
def recorded_console(log: Path, *arguments: str) -> Iterator[str]:
    """Serve a console in a process whose connections are recorded; give its address."""
    command = [sys.executable, "-m", "tests.console.connection_log", str(log), "ui", "--listen", "127.0.0.1:0"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().rstrip("/")
        finally:
            process.terminate()


def fetch(address: str, path: str, form: dict[str, str] | None = None) -> str:
    """Return a page; with a form, what it answers to it."""
    data = urlencode(form).encode() if form is not None else None
    with urlopen(Request(address + path, data=data, headers={"Origin": address}), timeout=600) as answer:
        return str(answer.read().decode())


def use_every_page(address: str) -> None:
    """Request each page of the demo, wait for the plan of layouts, and try a pod with a policy."""
    for path in DEMO_PAGES.values():
        fetch(address, path)
    while "being planned" in fetch(address, "/layout"):
        time.sleep(0.1)
    assert "As check prints it" in fetch(address, "/try", {"objects": POD, "policies": POLICY})


def test_the_example_cluster_is_shown_without_a_connection(tmp_path: Path) -> None:
    log = tmp_path / "connections"
    with recorded_console(log, "--cluster", "demo") as address:
        use_every_page(address)

    assert log.read_text(encoding="utf-8").splitlines() == []


def test_a_connection_would_be_recorded(tmp_path: Path) -> None:
    log, closed = tmp_path / "connections", "127.0.0.1:9"
    command = [sys.executable, "-m", "tests.console.connection_log", str(log), "ui", "--cluster", "demo"]
    run = subprocess.run([*command, "--prometheus", f"http://{closed}"], capture_output=True, check=False, timeout=600)

    assert run.returncode == 3
    assert f"connect {closed}" in log.read_text(encoding="utf-8").splitlines()


def test_an_address_that_cannot_be_used_is_explained_with_one_that_can(rightslice: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        in_use = rightslice("ui", "--cluster", "demo", "--listen", address)
    without_port = rightslice("ui", "--cluster", "demo", "--listen", "foo")

    assert (in_use.code, without_port.code) == (2, 2)
    assert "Address already in use" in in_use.err
    assert "Write another port; 0 takes any that is free" in in_use.err
    assert "must be ADDRESS:PORT, for example 127.0.0.1:8080, found 'foo'" in without_port.err
