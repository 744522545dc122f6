"""What a process that reads use is asked, and what it answers: small frames, each decoded within a millisecond."""

from __future__ import annotations

import struct

import msgspec

from webhook.model.usage import ObservedUsage
from webhook.usage.prometheus_source import PrometheusSource

FRAME_LENGTH = struct.Struct(">I")
"""What stands before each frame: how many bytes it has."""


class UsageRequest(msgspec.Struct, frozen=True):
    """Where use is read from: a Prometheus, or a file of recorded use."""

    prometheus: PrometheusSource | None = None
    file: str = ""


class HeadFrame(msgspec.Struct, frozen=True, tag=True):
    """The first frame: everything of a view but what was observed, the moment of it, and notes."""

    now: float
    pods: int
    prices: tuple[tuple[int, int], ...]
    notes: tuple[str, ...] = ()


class ObservedFrame(msgspec.Struct, frozen=True, tag=True):
    """Some of what was observed: namespace, workload, container, and what it was."""

    observed: list[tuple[str, str, str, ObservedUsage]]


class EndFrame(msgspec.Struct, frozen=True, tag=True):
    """The last frame: without it, something was cut off."""


class ErrorFrame(msgspec.Struct, frozen=True, tag=True):
    """The only frame where there is no view; `ours` where the fault is not in what was read."""

    reason: str
    internal: bool = False


Frame = HeadFrame | ObservedFrame | EndFrame | ErrorFrame
