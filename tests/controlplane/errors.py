"""Errors of building a control plane."""

from __future__ import annotations

WAY_OUT = (
    "The control plane of the tests is built through pip's index and the Go module proxy (GOPROXY). "
    "Without a way there, `make test-fast` runs every test that needs no control plane."
)


class BuildError(Exception):
    """There is no control plane to test with; the message says what was tried, what was found, and what to do."""


class ToolError(BuildError):
    """Go, or a build, failed; the message ends with what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}\n\n{WAY_OUT}")
