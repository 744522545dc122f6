"""The selectors of random clusters."""

from __future__ import annotations

NVIDIA, AMD, SHARED, FABRIC = "gpu.nvidia.com", "gpu.amd.com", "shared.example.com", "fabric.example.com"

_MEMORY = f"device.capacity['{NVIDIA}'].memory.compareTo(quantity"
_ATTRIBUTES = f"device.attributes['{NVIDIA}']"

CLASSES = {
    "gpu": f"device.driver == '{NVIDIA}' && {_ATTRIBUTES}.type == 'gpu'",
    "mig": f"device.driver == '{NVIDIA}' && {_ATTRIBUTES}.type == 'mig'",
    "unguarded": f"{_ATTRIBUTES}.type == 'gpu'",
    "nvidia": f"device.driver == '{NVIDIA}'",
    "amd": f"device.driver == '{AMD}'",
    "shared": f"device.driver == '{SHARED}'",
    "fabric": f"device.driver == '{FABRIC}'",
    "any": "true",
}
"""Selector of each device class."""

SELECTORS = (
    f"{_MEMORY}('10Gi')) >= 0",
    f"{_MEMORY}('9500Mi')) >= 0",
    f"{_MEMORY}('20Gi')) < 0",
    f"{_ATTRIBUTES}.productName == 'NVIDIA A10'",
    f"{_ATTRIBUTES}.driverVersion.isGreaterThan(semver('560.0.0'))",
    f"'profile' in {_ATTRIBUTES} && {_ATTRIBUTES}.profile == '2g.20gb'",
    f"{_ATTRIBUTES}.profile == '1g.10gb'",
    f"{_ATTRIBUTES}.index < 1",
    f"device.attributes['{AMD}'].type == 'amdgpu-partition'",
    f"device.capacity['{AMD}'].memory.compareTo(quantity('48Gi')) >= 0",
    f"device.capacity['{SHARED}'].memory.isGreaterThan(quantity('10Gi'))",
    "device.allowMultipleAllocations",
    f"device.attributes['{FABRIC}'].speed >= 100",
    "device.driver.endsWith('.example.com')",
    f"device.driver == '{NVIDIA}'",
)
"""Selectors of requests."""
