"""Why the volumes of a pod exclude it from nodes, in the scheduler's words and with our details."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class VolumeProblem(StrEnum):
    """The kind of a rejection.

    A pod with one of these waits for something else than a node, so no node can be chosen for it now, except with
    `UNREACHABLE`: other nodes may do.
    """

    UNKNOWN = "Unknown"
    UNBOUND = "Unbound"
    IN_USE = "InUse"
    SHARED = "Shared"
    UNREACHABLE = "Unreachable"


class VolumeRejection(NamedTuple):
    """Nodes that a volume plugin rejects for a pod.

    Attributes:
        problem: Why.
        nodes: Mask of the nodes.
        message: The scheduler's message.
        detail: Our message, with names.
    """

    problem: VolumeProblem
    nodes: int
    message: str
    detail: str
