"""Background tasks: an exception is recorded and the task restarts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.server.site import serve_site
from webhook.server.app import AdmissionServer
from webhook.web import listener

Turn = Callable[[], None]


def as_companion(server: AdmissionServer, turn: Turn) -> None:
    async def companion() -> None:
        turn()

    server.tasks = [*server.tasks, companion]


def as_look(server: AdmissionServer, turn: Turn) -> None:
    async def look() -> None:
        turn()

    server.polls = [*server.polls, look]


@pytest.mark.parametrize("add", [as_companion, as_look], ids=lambda it: it.__name__)
def test_a_failed_task_is_recorded_and_restarted(
    add: Callable[[AdmissionServer, Turn], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "RESTART_SECONDS", 0.01)
    turns: list[int] = []

    def turn() -> None:
        turns.append(len(turns))
        if len(turns) <= 2:
            raise OSError("too many open files")

    with serve_site(prepare=lambda server: add(server, turn)) as site:
        site.until(lambda: len(turns) > 2)
        assert site.figure("rightslice_internal_errors_total", component="task") == 2
        assert "too many open files" in site.log.getvalue()
