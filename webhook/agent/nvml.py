"""NVML, asked so that what a machine does not have is None, and each kind of trouble is one exception.

The functions are those of `nvidia-ml-py`, which loads the driver's own `libnvidia-ml.so.1`. All of this blocks: it
runs in one thread beside the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

T = TypeVar("T")

_NOT_SUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""This card or this driver does not have it."""

_DRIVER_UNAVAILABLE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Nothing of NVML answers until it is initialised anew."""


class DriverUnavailableError(Exception):
    """There is no driver, or not the one that NVML was initialised with."""


class DriverReplacedError(DriverUnavailableError):
    """The driver is another version than the library that this process has loaded; only a new process loads another."""


class GpuQueryError(Exception):
    """One GPU does not answer as it should: it is lost, has to be reset, or nobody knows."""


def call_nvml(function: Callable[..., T], *arguments: Any) -> T | None:
    """Call a function of NVML; None where this card or driver does not have what it asks for.

    Raises:
        DriverAwayError: nothing answers.
        GpuTroubleError: this GPU does not.
    """
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NOT_SUPPORTED:
            return None
        if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            raise DriverReplacedError(str(error)) from error
        if error.value in _DRIVER_UNAVAILABLE:
            raise DriverUnavailableError(str(error)) from error
        raise GpuQueryError(str(error)) from error


def init_nvml() -> None:
    """Initialise NVML.

    Raises:
        DriverAwayError: there is no driver, or no library of it.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        replaced = error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        raise (DriverReplacedError if replaced else DriverUnavailableError)(str(error)) from error


def shutdown_nvml() -> None:
    """Let go of NVML, in whatever state it is."""
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return


def nvml_text(value: str | bytes | None) -> str:
    """A text of NVML, which older bindings give as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
