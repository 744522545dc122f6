"""Common rules for GPU memory limits, applied to one trace: a limit in MiB for each decision."""

from __future__ import annotations

import numpy as np

from benchmarks.gentd26 import CARD_MIB, MIB, Decision, Pod
from webhook.usage.history import Floats

MARGIN = 1.15
"""KRR's and VPA's."""


def history_peaks(cases: list[Decision]) -> Floats:
    """Return the most that each pod had used so far."""
    return np.array([each.pod.between(-np.inf, each.at).max() for each in cases])


def vpa_bucket(peaks: Floats) -> Floats:
    """Return the upper edge of VPA's bucket: 10 MB x (1.05^n - 1) / 0.05."""
    first = 1e7 / MIB
    n = np.ceil(np.log1p(0.05 * peaks / first) / np.log(1.05) - 1e-9)
    return np.asarray(first * (1.05**n - 1) / 0.05)


def constant(cases: list[Decision], gib: float) -> Floats:
    """Return the same limit for all."""
    return np.full(len(cases), gib * 1024)


def fleet_max(cases: list[Decision], pods: list[Pod]) -> Floats:
    """Return the most that any pod had used so far."""
    at = np.concatenate([pod.at for pod in pods])
    order = np.argsort(at, kind="stable")
    running = np.maximum.accumulate(np.concatenate([pod.used for pod in pods])[order])
    known = np.searchsorted(at[order], [each.at for each in cases], side="right")
    return np.asarray(running[known - 1])


def oracle(cases: list[Decision]) -> Floats:
    """Return the peak of the following hour."""
    return np.minimum([each.peak for each in cases], CARD_MIB)
