"""Background tasks: an exception is recorded and the task restarts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.server.site import serve_site
from webhook.server.handlers import AdmissionServer
from webhook.web import listener

RunOnce = Callable[[], None]


def as_task(server: AdmissionServer, run_once: RunOnce) -> None:
    async def task() -> None:
        run_once()

    server.tasks = [*server.tasks, task]


def as_poll(server: AdmissionServer, run_once: RunOnce) -> None:
    async def poll() -> None:
        run_once()

    server.polls = [*server.polls, poll]


@pytest.mark.parametrize("add", [as_task, as_poll], ids=lambda it: it.__name__)
def test_a_failed_task_is_recorded_and_restarted(
    add: Callable[[AdmissionServer, RunOnce], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "RESTART_SECONDS", 0.01)
    runs: list[int] = []

    def run_once() -> None:
        runs.append(len(runs))
        if len(runs) <= 2:
            raise OSError("too many open files")

    with serve_site(prepare=lambda server: add(server, run_once)) as site:
        site.until(lambda: len(runs) > 2)
        assert site.metric("rightslice_internal_errors_total", component="task") == 2
        assert "too many open files" in site.log.getvalue()
