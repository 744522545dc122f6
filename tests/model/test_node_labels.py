"""Node labels as numbers; invalid text counts as absent."""

from __future__ import annotations

import pytest

from webhook.model.node_labels import compute_capability, cuda_version, driver_version, parse_count, parse_memory_mib

N = "nvidia.com/cuda."

NUMBERS = {
    "a count": ("8", 8),
    "leading zeros": ("05", 5),
    "empty": ("", None),
    "absent": (None, None),
    "a sign": ("-1", None),
    "a fraction": ("1.5", None),
    "other digits": ("٣", None),
    "a superscript": ("²", None),
    "a thousand digits": ("9" * 1000, None),
}
MEMORIES = {
    "MiB": ("81559", 81559),
    "bytes, as one old release wrote": ("16106127360", 15360),
    "zero, under an invalid single strategy": ("0", None),
    "no number": ("80GB", None),
}
DRIVERS = {
    "full": ({f"{N}driver-version.full": "580.95.05"}, (580, 95, 5)),
    "two parts": ({f"{N}driver-version.full": "580.95"}, (580, 95)),
    "in parts": ({f"{N}driver-version.major": "580", f"{N}driver-version.minor": "95"}, (580, 95)),
    "the revision keeps its zero": (
        {f"{N}driver-version.major": "580", f"{N}driver-version.minor": "95", f"{N}driver-version.revision": "05"},
        (580, 95, 5),
    ),
    "deprecated, the only ones on an old GFD": (
        {f"{N}driver.major": "535", f"{N}driver.minor": "230", f"{N}driver.rev": "02"},
        (535, 230, 2),
    ),
    "deprecated, with an empty revision": (
        {f"{N}driver.major": "535", f"{N}driver.minor": "230", f"{N}driver.rev": ""},
        (535, 230),
    ),
    "today's before the deprecated": ({f"{N}driver-version.full": "580.95.05", f"{N}driver.major": "1"}, (580, 95, 5)),
    "nonsense": ({f"{N}driver-version.full": "latest"}, ()),
    "none": ({}, ()),
}
RUNTIMES = {
    "full": ({f"{N}runtime-version.full": "13.0"}, (13, 0)),
    "in parts": ({f"{N}runtime-version.major": "12", f"{N}runtime-version.minor": "8"}, (12, 8)),
    "deprecated": ({f"{N}runtime.major": "12", f"{N}runtime.minor": "2"}, (12, 2)),
    "none": ({}, ()),
}


@pytest.mark.parametrize(("text", "want"), NUMBERS.values(), ids=NUMBERS)
def test_counts(text: str | None, want: int | None) -> None:
    assert parse_count(text) == want


@pytest.mark.parametrize(("text", "want"), MEMORIES.values(), ids=MEMORIES)
def test_memory(text: str, want: int | None) -> None:
    assert parse_memory_mib(text) == want


@pytest.mark.parametrize(("labels", "want"), DRIVERS.values(), ids=DRIVERS)
def test_driver_versions(labels: dict[str, str], want: tuple[int, ...]) -> None:
    assert driver_version(labels) == want


@pytest.mark.parametrize(("labels", "want"), RUNTIMES.values(), ids=RUNTIMES)
def test_cuda_versions(labels: dict[str, str], want: tuple[int, ...]) -> None:
    assert cuda_version(labels) == want


def test_compute_capability_needs_both_parts() -> None:
    major = {"nvidia.com/gpu.compute.major": "9"}
    assert compute_capability(major | {"nvidia.com/gpu.compute.minor": "0"}) == (9, 0)
    assert compute_capability(major) is None
