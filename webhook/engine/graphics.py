"""Pods that draw, show or decode: a MIG instance has no graphics, and the smallest of some cards no video engine.

Sources: NVIDIA's MIG user guide (graphics APIs, media engines by profile) and the container toolkit's driver
capabilities.
"""

from __future__ import annotations

from collections.abc import Iterable

from webhook.engine.asking import GpuRequest
from webhook.engine.guarding.variables import DRIVER_CAPABILITIES, parse_capabilities
from webhook.model.pods import EnvVar

_GRAPHICS_CAPABILITIES = frozenset({"display", "graphics", "video"})


def may_need_graphics(asks: Iterable[GpuRequest]) -> bool:
    """May a container that asks for a GPU name graphics, display or video among its driver capabilities?

    "all" says nothing: images write it by habit. What is held elsewhere, and cannot be read, may be anything.
    """
    return any(
        _may_name_graphics(variable) for ask in asks for variable in ask.container.env if variable.name == DRIVER_CAPABILITIES
    )


def _may_name_graphics(variable: EnvVar) -> bool:
    if variable.value_from is not None or "$(" in variable.value:
        return True
    return not _GRAPHICS_CAPABILITIES.isdisjoint(parse_capabilities(variable.value))
