"""Enumerations shared by all packages."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class PolicyMode(IntEnum):
    """The enforcement mode of a policy section. Ordered: the strictest of several is their maximum."""

    AUDIT = 0
    WARN = 1
    ENFORCE = 2

    def __str__(self) -> str:
        return _MODE_NAMES[self]


_MODE_NAMES = ("audit", "warn", "enforce")
"""An index costs a tenth of reading the name of a member of an enumeration."""


class IsolationLevel(IntEnum):
    """The isolation between pods on one GPU. Ordered: more is safer.

    * NONE: time-slicing, which isolates neither memory nor errors.
    * MEMORY: MPS, which limits memory; a fatal error still ends every client.
    * HARDWARE: a whole GPU or a MIG slice.
    """

    NONE = 0
    MEMORY = 1
    HARDWARE = 2

    def __str__(self) -> str:
        return self.name.lower()


class FullCapacityAction(IntEnum):
    """The handling of a pod when no slice or share is free. Ordered: the most careful of several is their minimum.

    * KEEP: keep the request.
    * GROW: rewrite it if a node group that may grow offers the slice or share.
    * WAIT: rewrite it, and let the pod wait.
    """

    KEEP = 0
    GROW = 1
    WAIT = 2


class GpuForm(StrEnum):
    """The forms in which a node can advertise a GPU."""

    WHOLE = "whole"
    MIG = "mig"
    MPS = "mps"
    TIME_SLICING = "timeSlicing"


class EvidenceSource(StrEnum):
    """The source of an estimated demand."""

    DECLARED = "declared"
    OBSERVED = "observed"
    DEFAULT = "default"
