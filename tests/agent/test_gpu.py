"""The agent against a real NVIDIA GPU and its driver. Not part of a plain run: pytest -m gpu."""

from __future__ import annotations

import re
import shutil
import subprocess
from time import monotonic

import pytest

from webhook.agent.machine import Machine
from webhook.model.catalogue import card
from webhook.model.gpunodes import GPUNode
from webhook.placement.devices import reported
from webhook.placement.matrices import read_matrix
from webhook.placement.mig import geometry

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


PROFILE = re.compile(r"MIG (\S+) +(\d+) +\d+/\d+ +([\d.]+) +\w+ +(\d+)")
PLACES = re.compile(r"Profile ID +(\d+) Placements? *: *\{([\d,]+)\}:(\d+)")


def test_the_catalogue_promises_no_more_of_an_instance_than_the_driver() -> None:
    product = Machine(monotonic).look().product
    known, cuts = card(product), geometry(product)
    if known is None or cuts is None:
        pytest.skip(f"{product} cannot be cut")
    rows = {row: places for row, *places in PLACES.findall(smi("mig", "-i", "0", "-lgipp"))}
    profiles = PROFILE.findall(smi("mig", "-i", "0", "-lgip"))
    assert profiles
    for name, number, gib, sms in profiles:
        shape, profile = known.shapes[name.partition("+")[0]], cuts.profile(name)
        assert profile is not None
        assert 0.95 < shape.memory_mib / (float(gib) * 1024 + 16) <= 1, name
        assert shape.sms in (int(sms), None), name
        assert [",".join(map(str, profile.starts)), str(profile.size)] == rows[number], name
