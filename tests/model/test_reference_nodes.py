"""Every node of the reference labels: products, strategies, and the live example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.model.nodes import GPU, SHARED, block, node, only
from webhook.model.enums import GpuForm
from webhook.model.fleet import Fleet
from webhook.model.node_labels import compute_capability, cuda_version, driver_version


@pytest.fixture(scope="module")
def facts(shared: Path) -> dict[str, Any]:
    """Return the reference labels."""
    data: dict[str, Any] = yaml.safe_load((shared / "reference" / "gpu-node-labels.yaml").read_text())
    return data


def test_every_product_with_its_memory_and_compute_capability(facts: dict[str, Any]) -> None:
    for product in facts["products"]:
        for memory in product["mem_mib"] or [None]:
            major, minor = product["cc"].split(".")
            labels = {"gpu.product": product["gfd"], "gpu.compute.major": major, "gpu.compute.minor": minor}
            labels |= {"gpu.memory": str(memory)} if memory else {}
            whole = only(node("n", labels, **{GPU: "8"}))
            assert (whole.form, whole.memory_mib, whole.capacity) == (GpuForm.WHOLE, memory, 8), product
            assert whole.compute_capability == (int(major), int(minor))
            assert whole.selector == (("nvidia.com/gpu.product", product["gfd"]),)

            shared = only(node("n", labels | {"gpu.replicas": "4", "gpu.count": "8"}, **{SHARED: "32"}))
            assert (shared.form, shared.gpu_milli) == (GpuForm.TIME_SLICING, 250)
            assert shared.memory_mib == (memory // 4 if memory else None)


def test_old_and_new_version_labels_agree(facts: dict[str, Any]) -> None:
    examples = {row["key"]: row["example"] for row in facts["gfd_labels"] if "example" in row}
    new = {key: value for key, value in examples.items() if "-version" in key}
    old = {
        key: value
        for key, value in examples.items()
        if key.startswith(("nvidia.com/cuda.driver.", "nvidia.com/cuda.runtime."))
    }
    assert driver_version(new) == driver_version(old) == (580, 95, 5)
    assert cuda_version(new) == cuda_version(old) == (13, 0)
    assert compute_capability(examples) == (9, 0)


def test_live_balanced_node_offers_three_profiles(facts: dict[str, Any]) -> None:
    live = {
        key: str(value)
        for key, value in facts["gfd_mixed_strategy_per_profile"]["live_example_h100_all_balanced"].items()
    }
    counts = {
        f"nvidia.com/{key.removesuffix('.count')}": value for key, value in live.items() if key.endswith(".count")
    }
    labels = live | {"gpu.product": "NVIDIA-H100-80GB-HBM3", "mig.strategy": "mixed", "gpu.count": "1"}
    offers = Fleet([node("n", labels, **counts, **{GPU: "0"})]).offers
    assert [(o.profile, o.capacity, o.memory_mib, o.compute_milli, o.gpu_milli) for o in offers] == [
        ("1g.10gb", 2, 9984, 121, 143),
        ("2g.20gb", 1, 20096, 242, 286),
        ("3g.40gb", 1, 40320, 454, 500),
    ]


def test_each_strategy_offers_what_it_advertises(facts: dict[str, Any]) -> None:
    model = "NVIDIA-A100-SXM4-80GB"
    sliced = {"gpu.product": f"{model}-MIG-1g.10gb", "gpu.memory": "9728", "mig.strategy": "single"}
    nodes = {
        "none": node("n", {"gpu.product": model}, **{GPU: "8"}),
        "single_valid": node("n", sliced, **{GPU: "56"}),
        "single_invalid": node("n", sliced | {"gpu.product": f"{model}-MIG-INVALID"}, **{GPU: "0"}),
        "single_no_mig": node("n", {"gpu.product": model, "mig.strategy": "single"}, **{GPU: "8"}),
        "mixed": node(
            "n",
            {"gpu.product": model, "mig.strategy": "mixed"} | block("1g.10gb", count="7"),
            **{GPU: "7", "nvidia.com/mig-1g.10gb": "7"},
        ),
    }
    assert nodes.keys() == facts["strategy_semantics"].keys()
    assert {name: {(o.resource, o.form) for o in Fleet([one]).offers} for name, one in nodes.items()} == {
        "none": {(GPU, GpuForm.WHOLE)},
        "single_valid": {(GPU, GpuForm.MIG)},
        "single_invalid": set(),
        "single_no_mig": {(GPU, GpuForm.WHOLE)},
        "mixed": {(GPU, GpuForm.WHOLE), ("nvidia.com/mig-1g.10gb", GpuForm.MIG)},
    }


def test_every_gke_product_has_a_known_memory(facts: dict[str, Any]) -> None:
    key = "cloud.google.com/gke-accelerator"
    (row,) = (row for row in facts["cloud_labels"]["gke"] if row.get("key") == key)
    for value in row["values"]:
        assert only(node("n", {key: value}, **{GPU: "1"})).memory_mib, value
