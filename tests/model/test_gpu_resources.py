"""gpu_resources: parsing resource names."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from webhook.model.field_paths import format_path, json_pointer
from webhook.model.gpu_resources import GpuResource, parse_gpu_resource

NAMES = {
    "nvidia.com/gpu": GpuResource("nvidia.com/gpu", mig=False, shared=False),
    "nvidia.com/gpu.shared": GpuResource("nvidia.com/gpu.shared", mig=False, shared=True),
    "nvidia.com/mig-3g.40gb": GpuResource("nvidia.com/mig-3g.40gb", True, False, "3g.40gb", 3),
    "nvidia.com/mig-1g.5gb.shared": GpuResource("nvidia.com/mig-1g.5gb.shared", True, True, "1g.5gb", 1),
    "nvidia.com/gpumem": None,
    "nvidia.com/mig-": None,
    "nvidia.com/mig-1g": None,
    "nvidia.com/mig-1c.3g.20gb": None,
    "nvidia.com/mig-1g.5gb.odd": None,
    "amd.com/gpu": None,
    "gpu": None,
    "": None,
}


@pytest.mark.parametrize(("name", "want"), NAMES.items(), ids=NAMES)
def test_names(name: str, want: GpuResource | None) -> None:
    assert parse_gpu_resource(name) == want


def test_every_profile_is_parsed_from_its_resource_name(shared: Path) -> None:
    for product in yaml.safe_load((shared / "reference" / "mig-profiles.yaml").read_text())["products"]:
        for row in product["profiles"]:
            read = parse_gpu_resource(row["resource"])
            assert read is not None
            assert (read.profile, read.slices) == (row["name"], row["g"])


def test_paths_in_messages_and_patches() -> None:
    path = ("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu", "a~b")
    assert format_path(path) == "spec.containers[0].resources.limits['nvidia.com/gpu']['a~b']"
    assert json_pointer(path) == "/spec/containers/0/resources/limits/nvidia.com~1gpu/a~0b"
    assert (format_path(()), json_pointer(())) == ("", "")
