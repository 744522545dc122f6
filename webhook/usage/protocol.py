"""Messages between the server and the usage worker: one request, then small frames that decode within a millisecond."""

from __future__ import annotations

import struct

import msgspec

from webhook.model.usage import ObservedUsage
from webhook.usage.prometheus_source import PrometheusSource

FRAME_LENGTH = struct.Struct(">I")
"""Prefix of each frame: its number of bytes."""


class UsageRequest(msgspec.Struct, frozen=True):
    """The source to read: a Prometheus, or a file of recorded usage."""

    prometheus: PrometheusSource | None = None
    file: str = ""


class HeadFrame(msgspec.Struct, frozen=True, tag=True):
    """The first frame: time, number of pods, prices and notes of a view."""

    now: float
    pods: int
    prices: tuple[tuple[int, int], ...]
    notes: tuple[str, ...] = ()


class ObservedFrame(msgspec.Struct, frozen=True, tag=True):
    """Usage of some containers: namespace, workload, container, and usage."""

    observed: list[tuple[str, str, str, ObservedUsage]]


class EndFrame(msgspec.Struct, frozen=True, tag=True):
    """The last frame; without it the answer is incomplete."""


class ErrorFrame(msgspec.Struct, frozen=True, tag=True):
    """The only frame if there is no view; `internal` for errors that the source did not cause."""

    reason: str
    internal: bool = False


Frame = HeadFrame | ObservedFrame | EndFrame | ErrorFrame
