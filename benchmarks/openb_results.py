"""Published results of FGD on the openb lists, and the most that any placement can reach.

Percent of the cluster's GPUs allocated when as many have been requested as there are, mean and standard deviation
over ten seeds. Source: the result files next to FGD's code (hkust-adsl/kubernetes-scheduler-simulator). The bounds are
our own: a linear program over node configurations that may choose which pods to leave out.
"""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """Results for one list."""

    fgd: float
    fgd_sd: float
    bound: float


KNOWN = {
    "default": Known(95.23, 0.11, 96.90),
    "cpu050": Known(95.00, 0.11, 96.88),
    "cpu100": Known(95.21, 0.14, 96.89),
    "cpu200": Known(94.82, 0.16, 96.92),
    "cpu250": Known(93.20, 0.29, 96.89),
    "gpushare40": Known(93.96, 0.07, 95.65),
    "gpushare60": Known(91.25, 0.13, 93.34),
    "gpushare80": Known(89.08, 0.11, 91.42),
    "gpushare100": Known(86.64, 0.16, 89.17),
    "gpuspec10": Known(94.66, 0.19, 96.83),
    "gpuspec20": Known(94.66, 0.14, 96.90),
    "gpuspec25": Known(93.91, 0.11, 96.88),
    "gpuspec33": Known(87.84, 0.18, 96.31),
    "multigpu20": Known(95.53, 0.16, 97.35),
    "multigpu30": Known(96.36, 0.10, 97.64),
    "multigpu40": Known(96.91, 0.10, 97.96),
    "multigpu50": Known(97.09, 0.11, 98.33),
}
