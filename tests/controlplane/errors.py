"""Errors of building a control plane."""

from __future__ import annotations

ADVICE = (
    "The control plane of the tests is built through pip's index and the Go module proxy (GOPROXY). "
    "If they cannot be reached, `make test-fast` runs every test that needs no control plane."
)


class BuildError(Exception):
    """The control plane cannot be built; the message says what was tried, what was found, and what to do."""


class ToolError(BuildError):
    """Go, or a build, failed; the message ends with what to do."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}\n\n{ADVICE}")
