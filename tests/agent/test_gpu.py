"""The agent against a real NVIDIA GPU and its driver. Not part of a plain run: pytest -m gpu."""

from __future__ import annotations

import shutil
import subprocess
from time import monotonic

import pytest

from webhook.agent.machine import Machine
from webhook.model.gpunodes import GPUNode
from webhook.placement.devices import reported
from webhook.placement.matrices import read_matrix

pytestmark = pytest.mark.gpu


def smi(*arguments: str) -> str:
    """What nvidia-smi prints."""
    program = shutil.which("nvidia-smi")
    assert program is not None, "there is no nvidia-smi here, and so no driver"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


def test_what_is_seen_is_what_nvidia_smi_says() -> None:
    wanted = "index,uuid,memory.total,driver_version"
    rows = [row.split(", ") for row in smi(f"--query-gpu={wanted}", "--format=csv,noheader,nounits").splitlines()]

    status = Machine(monotonic).look()

    assert status.message == ""
    seen = [[str(gpu.index), gpu.uuid, str(gpu.memory), status.driver] for gpu in status.gpus]
    assert seen == rows


def test_links_are_those_of_topo() -> None:
    devices = reported(GPUNode(status=Machine(monotonic).look()))

    assert devices is not None
    told = read_matrix(smi("topo", "-m"))
    assert devices.topology.nvlinks == told.nvlinks
    if not any(map(any, told.nvlinks)):
        assert devices.topology.buses == told.buses


def test_two_looks_at_a_machine_at_rest_are_equal() -> None:
    machine = Machine(monotonic)

    assert machine.look() == machine.look()
