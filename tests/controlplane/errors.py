"""Why a control plane could not be built."""

from __future__ import annotations


class BuildError(Exception):
    """A program could not be built. Says what was tried, what went wrong, and what can be done."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}\n\nThe control plane of the tests is built through pip's index and the Go module proxy (GOPROXY). "
            "Without a way there, `make test-fast` runs every test that needs no control plane."
        )
