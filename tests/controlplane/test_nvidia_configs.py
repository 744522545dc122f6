"""Written layouts are configurations that NVIDIA's programs accept, and read as planned."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.report.test_layout_files import H100, change
from webhook.model.enums import GpuForm
from webhook.placement.layout_plan import WHOLE_CARD, share_profile, shared_layout
from webhook.placement.mig import legal_layouts, mig_geometry
from webhook.placement.node_layouts import NodeChange, NodeLayout
from webhook.report.layout_files import (
    CONFIG_MAP_FILE,
    NOT_SHARED,
    SHARING_FIELDS,
    SHARING_FILE,
    layout_files,
)

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def read_configs(program: Path, name: str, texts: Sequence[str]) -> list[tuple[Any, str]]:
    """Return what one of NVIDIA's programs reads, and its error, for each text."""
    lines = "\n".join(json.dumps({"program": name, "text": text}) for text in texts)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True, timeout=600)
    return [(answer["read"], answer["error"]) for answer in map(json.loads, done.stdout.splitlines())]


@pytest.mark.gcc
def test_configurations_of_random_nodes_are_read(nvidia_program: Path) -> None:
    geometry, rng = mig_geometry(H100), random.Random(3)
    assert geometry is not None
    layouts = sorted(legal_layouts(geometry))
    nodes = [
        tuple(rng.choice([WHOLE_CARD, rng.choice(layouts)]) for _ in range(rng.randint(1, 16))) for _ in range(200)
    ]
    config_maps = [yaml.safe_load(layout_files([change("n", *cards)], 1)[CONFIG_MAP_FILE]) for cards in nodes]

    answers = read_configs(nvidia_program, "mig-parted", [each["data"]["config.yaml"] for each in config_maps])

    assert {error for _, error in answers} == {""}
    written = [yaml.safe_load(each["data"]["config.yaml"])["mig-configs"] for each in config_maps]
    assert [sorted(spec["mig-configs"]) for spec, _ in answers] == [sorted(each) for each in written]


INVALID = {
    "another version": ("version: v2", "unknown version"),
    "no devices": ("version: v1\nmig-configs: {a: [{mig-enabled: false}]}", "missing required field: devices"),
    "slices of a card that is not partitioned": (
        "version: v1\nmig-configs: {a: [{devices: [0], mig-enabled: false, mig-devices: {1g.10gb: 1}}]}",
        "MIG devices included when 'mig-enabled' is false",
    ),
    "a profile that cannot be": (
        "version: v1\nmig-configs: {a: [{devices: [0], mig-enabled: true, mig-devices: {g.10gb: 1}}]}",
        "invalid format for 'g.10gb'",
    ),
}


@pytest.mark.gcc
@pytest.mark.parametrize(("text", "error"), INVALID.values(), ids=INVALID.keys())
def test_invalid_configurations_are_rejected(nvidia_program: Path, text: str, error: str) -> None:
    [[_, found]] = read_configs(nvidia_program, "mig-parted", [text])

    assert error in found


@pytest.mark.parametrize("form", SHARING_FIELDS)
def test_shared_cards_are_read_as_planned(nvidia_program: Path, form: GpuForm) -> None:
    shared = change("n", shared_layout(share_profile(form, 4)), (("1g.10gb", 7),))
    files = yaml.safe_load(layout_files([shared], 1)[SHARING_FILE])["data"]

    [(config, error)] = read_configs(nvidia_program, "device-plugin", list(files.values()))

    rules = config["sharing"][SHARING_FIELDS[form]]
    assert error == ""
    assert rules["resources"] == [
        {"name": "nvidia.com/gpu", "rename": "nvidia.com/gpu.shared", "devices": "all", "replicas": 4}
    ]


def test_cards_that_are_no_longer_shared_have_a_configuration(nvidia_program: Path) -> None:
    whole = NodeChange(NodeLayout("n", H100, (shared_layout("mps/4"),)), (WHOLE_CARD,))
    files = yaml.safe_load(layout_files([whole], 1)[SHARING_FILE])["data"]

    [(config, error)] = read_configs(nvidia_program, "device-plugin", [files[NOT_SHARED]])

    assert (error, config["sharing"]["timeSlicing"].get("resources")) == ("", None)


def test_an_invalid_number_of_replicas_is_rejected(nvidia_program: Path) -> None:
    text = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}"
    [(_, error)] = read_configs(nvidia_program, "device-plugin", [text])

    assert "number of replicas must be >= 2" in error
