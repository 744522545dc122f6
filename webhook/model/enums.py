"""The small closed sets of words that everything else is written in."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class PolicyMode(IntEnum):
    """What a policy section may do. Ordered: the strictest of several is their maximum."""

    AUDIT = 0
    WARN = 1
    ENFORCE = 2

    def __str__(self) -> str:
        return self.name.lower()


class IsolationLevel(IntEnum):
    """What keeps neighbours on one card apart. Ordered: more is safer.

    * NONE: time slicing; neither memory nor faults are kept apart.
    * MEMORY: MPS; memory is limited, a fatal fault still ends every client.
    * HARDWARE: a whole card or a MIG instance.
    """

    NONE = 0
    MEMORY = 1
    HARDWARE = 2

    def __str__(self) -> str:
        return self.name.lower()


class GpuForm(StrEnum):
    """The forms in which a node can advertise a GPU."""

    WHOLE = "whole"
    MIG = "mig"
    MPS = "mps"
    TIME_SLICING = "timeSlicing"


class EvidenceSource(StrEnum):
    """Where a figure of a demand comes from."""

    DECLARED = "declared"
    OBSERVED = "observed"
    DEFAULT = "default"
