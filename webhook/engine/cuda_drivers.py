"""CUDA toolkits and the drivers that run them: minimum drivers, family floors and supported architectures.

Sources: CUDA toolkit release notes (minimum driver of each toolkit; first and last toolkit of an architecture) and the
CUDA compatibility guide (minor-version compatibility: every program of a major version runs from the family's floor
on). All for Linux.
"""

from __future__ import annotations

Version = tuple[int, ...]

FLOORS: dict[int, Version] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
"""The minimum driver of a CUDA major version, by minor-version compatibility."""

OWN_DRIVERS: dict[tuple[int, int], tuple[Version, ...]] = {
    (13, 3): ((610, 43, 2),),
    (13, 2): ((595, 45, 4), (595, 58, 3)),
    (13, 1): ((590, 44, 1), (590, 48, 1)),
    (13, 0): ((580, 65, 6), (580, 82, 7), (580, 95, 5)),
    (12, 9): ((575, 51, 3), (575, 57, 8)),
    (12, 8): ((570, 26), (570, 124, 6)),
    (12, 6): ((560, 28, 3), (560, 35, 3), (560, 35, 3), (560, 35, 5)),
    (12, 5): ((555, 42, 2), (555, 42, 6)),
    (12, 4): ((550, 54, 14), (550, 54, 15)),
    (12, 3): ((545, 23, 6), (545, 23, 8)),
    (12, 2): ((535, 54, 3), (535, 86, 9), (535, 104, 5)),
    (12, 1): ((530, 30, 2),),
    (12, 0): ((525, 60, 13), (525, 85, 12)),
    (11, 8): ((520, 61, 5),),
    (11, 7): ((515, 43, 4), (515, 48, 7)),
    (11, 6): ((510, 39, 1), (510, 47, 3)),
    (11, 5): ((495, 29, 5),),
    (11, 4): ((470, 42, 1), (470, 57, 2), (470, 57, 2), (470, 82, 1)),
    (11, 3): ((465, 19, 1),),
    (11, 2): ((460, 27, 3), (460, 32, 3)),
    (11, 1): ((455, 23), (455, 32)),
    (11, 0): ((450, 51, 5), (450, 51, 6)),
    (10, 2): ((440, 33),),
    (10, 1): ((418, 39),),
    (10, 0): ((410, 48),),
}
"""Minimum driver of each toolkit, by its update: the first release, update 1, update 2 …"""

_FIRST_TOOLKIT: dict[tuple[int, int], Version] = {(10, 0): (12, 8), (10, 3): (12, 9), (12, 0): (12, 8)}
"""The first toolkit of a compute capability: B200, B300, RTX PRO."""

_DROPPED_IN_13 = (7, 5)
"""CUDA 13 supports this compute capability and newer; Maxwell, Pascal and Volta ended with 12."""


def own_driver(toolkit: Version) -> Version:
    """Return the driver that a toolkit was released with; () if it is not in the table.

    >>> own_driver((12, 8, 1)), own_driver((12,))
    ((570, 124, 6), (525, 60, 13))
    """
    if len(toolkit) == 1:
        return FLOORS.get(toolkit[0], ())
    updates = OWN_DRIVERS.get((toolkit[0], toolkit[1]), ())
    if not updates:
        return ()
    update = toolkit[2] if len(toolkit) > 2 else 0
    return updates[min(update, len(updates) - 1)]


def missing_kernels_reason(toolkit: Version, capability: tuple[int, int] | None) -> str:
    """Return why a toolkit has no kernels for a compute capability; "" if it has, or if that is unknown."""
    if capability is None:
        return ""
    first = _FIRST_TOOLKIT.get(capability, ())
    if first and toolkit < first[: len(toolkit)]:
        return f"needs a program built with CUDA {format_version(first)} or newer"
    if toolkit[0] >= 13 and capability < _DROPPED_IN_13:
        return "is not supported by CUDA 13 or newer"
    return ""


def format_version(number: Version) -> str:
    """Return a version as text.

    >>> format_version((12, 8))
    '12.8'
    """
    return ".".join(map(str, number))


def format_driver(number: Version) -> str:
    """Return a driver version as NVIDIA writes it: the revision has two digits.

    >>> format_driver((580, 95, 5))
    '580.95.05'
    """
    return ".".join([*map(str, number[:2]), *(f"{part:02d}" for part in number[2:])])
