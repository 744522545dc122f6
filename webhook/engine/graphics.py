"""Pods that draw, show or decode: a MIG instance has no graphics, and the smallest of some cards no video engine.

Sources: NVIDIA's MIG user guide (graphics APIs, media engines by profile) and the container toolkit's driver
capabilities.
"""

from __future__ import annotations

from collections.abc import Iterable

from webhook.engine.asking import Ask
from webhook.engine.guarding.variables import DRIVER_CAPABILITIES, capabilities_in
from webhook.model.pods import EnvVar

_OF_GRAPHICS = frozenset({"display", "graphics", "video"})


def may_ask_graphics(asks: Iterable[Ask]) -> bool:
    """May a container that asks for a GPU name graphics, display or video among its driver capabilities?

    "all" says nothing: images write it by habit. What is held elsewhere, and cannot be read, may be anything.
    """
    return any(
        _may_name(variable) for ask in asks for variable in ask.container.env if variable.name == DRIVER_CAPABILITIES
    )


def _may_name(variable: EnvVar) -> bool:
    if variable.value_from is not None or "$(" in variable.value:
        return True
    return not _OF_GRAPHICS.isdisjoint(capabilities_in(variable.value))
