"""The agent against a real NVIDIA GPU and its driver. Not part of a plain run: pytest -m gpu."""

from __future__ import annotations

import re
import shutil
import subprocess
from time import monotonic

import pytest

from webhook.agent.discovery import GpuDiscovery
from webhook.model.gpu_node import GPUNode
from webhook.model.mig_catalog import mig_card_spec
from webhook.placement.devices import devices_from_report
from webhook.placement.mig import mig_geometry
from webhook.placement.topology import parse_topology_matrix

pytestmark = pytest.mark.gpu


def smi(*arguments: str) -> str:
    """Return the output of nvidia-smi."""
    program = shutil.which("nvidia-smi")
    assert program is not None, "nvidia-smi must be installed"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


def test_discovery_matches_nvidia_smi() -> None:
    wanted = "index,uuid,memory.total,driver_version"
    rows = [row.split(", ") for row in smi(f"--query-gpu={wanted}", "--format=csv,noheader,nounits").splitlines()]

    status = GpuDiscovery(monotonic).discover()

    assert status.message == ""
    found = [[str(gpu.index), gpu.uuid, str(gpu.memory_mib), status.driver_version] for gpu in status.gpus]
    assert found == rows


def test_links_match_nvidia_smi_topo() -> None:
    devices = devices_from_report(GPUNode(status=GpuDiscovery(monotonic).discover()))

    assert devices is not None
    topology = parse_topology_matrix(smi("topo", "-m"))
    assert devices.topology.nvlinks == topology.nvlinks
    if not any(map(any, topology.nvlinks)):
        assert devices.topology.pcie_paths == topology.pcie_paths


def test_repeated_discoveries_are_equal() -> None:
    machine = GpuDiscovery(monotonic)

    assert machine.discover() == machine.discover()


PROFILE = re.compile(r"MIG (\S+) +(\d+) +\d+/\d+ +([\d.]+) +\w+ +(\d+)")
PLACES = re.compile(r"Profile ID +(\d+) Placements? *: *\{([\d,]+)\}:(\d+)")


def test_catalog_matches_the_drivers_mig_profiles() -> None:
    product = GpuDiscovery(monotonic).discover().product
    known, cuts = mig_card_spec(product), mig_geometry(product)
    if known is None or cuts is None:
        pytest.skip(f"{product} cannot be partitioned")
    rows = {row: places for row, *places in PLACES.findall(smi("mig", "-i", "0", "-lgipp"))}
    profiles = PROFILE.findall(smi("mig", "-i", "0", "-lgip"))
    assert profiles
    for name, number, gib, sms in profiles:
        shape, profile = known.profiles[name.partition("+")[0]], cuts.profile(name)
        assert profile is not None
        assert 0.95 < shape.memory_mib / (float(gib) * 1024 + 16) <= 1, name
        assert shape.sms in (int(sms), None), name
        assert [",".join(map(str, profile.starts)), str(profile.memory_units)] == rows[number], name
