"""Written layouts are configurations that NVIDIA's mig-parted accepts, and reads as planned."""

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
from webhook.placement.layout_plan import WHOLE_CARD
from webhook.placement.mig import legal_layouts, mig_geometry
from webhook.report.layout_files import CONFIG_MAP_FILE, config_name, layout_files

LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def read_specs(program: Path, texts: Sequence[str]) -> list[Any]:
    """Return what mig-parted reads, and its error, for each text."""
    lines = "\n".join(map(json.dumps, texts))
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_configurations_of_random_nodes_are_read_and_describe_every_card_once(migparted_program: Path) -> None:
    geometry, rng = mig_geometry(H100), random.Random(3)
    assert geometry is not None
    layouts = sorted(legal_layouts(geometry))
    nodes = [
        tuple(rng.choice([WHOLE_CARD, rng.choice(layouts)]) for _ in range(rng.randint(1, 16))) for _ in range(200)
    ]
    config_maps = [yaml.safe_load(layout_files([change("n", *cards)], 1)[CONFIG_MAP_FILE]) for cards in nodes]

    answers = read_specs(migparted_program, [each["data"]["config.yaml"] for each in config_maps])

    assert {error for _, error in answers} == {""}
    for cards, (spec, _) in zip(nodes, answers, strict=True):
        entries = spec["mig-configs"][config_name(cards)]
        assert LABEL_VALUE.fullmatch(config_name(cards))
        if entries[0]["devices"] == "all":
            assert set(cards) == {WHOLE_CARD}
            continue
        found = [tuple(sorted(entry["mig-devices"].items())) for entry in entries for _ in entry["devices"]]
        assert sorted(found) == sorted(cards)
        assert sorted(index for entry in entries for index in entry["devices"]) == list(range(len(cards)))


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


@pytest.mark.parametrize(("text", "error"), INVALID.values(), ids=INVALID.keys())
def test_invalid_configurations_are_rejected(migparted_program: Path, text: str, error: str) -> None:
    [[_, found]] = read_specs(migparted_program, [text])

    assert error in found
