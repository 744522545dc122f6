"""Properties for nodes with any labels and amounts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import make_node
from tests.model.nodes import A100, GPU, SHARED, reachable_nodes, read_node
from webhook.model.fleet import Fleet
from webhook.model.node_labels import PRODUCT_LABEL
from webhook.model.objects import Node

PROFILES = st.sampled_from(["1g.10gb", "3g.40gb", "7g.80gb", "4g.24gb", "1g.24gb.me", "2g.48gb-me", "99g.1gb"])
RESOURCES = st.one_of(
    st.sampled_from([GPU, SHARED, "nvidia.com/gpumem", "cpu", "nvidia.com/mig-", "amd.com/gpu"]),
    PROFILES.map(lambda p: f"nvidia.com/mig-{p}"),
    PROFILES.map(lambda p: f"nvidia.com/mig-{p}.shared"),
)
ODD_AMOUNTS = ["8", "-1", "0.5", "1k", "1e3", "", "x", "9" * 40, "1E", "8Gi", 1e300, float("nan"), 10**30, -(10**30)]
AMOUNTS = st.integers(-2, 60) | st.sampled_from(ODD_AMOUNTS)
ODD_TEXTS = ["", "0", "-1", "81559", "16106127360", "true", "mps", "1e3", "٣", "nvidia-l4", "1g.5gb", "t4", "9" * 30]
TEXTS = st.sampled_from(ODD_TEXTS) | st.integers(0, 64).map(str)
SUFFIXES = ["", "-SHARED", "-MIG-1g.10gb", "-MIG-", "-MIG-INVALID", "-MIG-1g.10gb-SHARED"]
PRODUCTS = st.builds(str.__add__, st.sampled_from(["", A100, "NVIDIA-A30", "Z"]), st.sampled_from(SUFFIXES))
LABEL_KEYS = st.sampled_from(
    [
        *(f"nvidia.com/gpu.{f}" for f in ("memory", "count", "replicas", "sharing-strategy", "multiprocessors")),
        *(f"nvidia.com/mig-1g.10gb.{f}" for f in ("memory", "count", "replicas", "multiprocessors", "product")),
        *(f"cloud.google.com/gke-{f}" for f in ("accelerator", "gpu-partition-size", "gpu-sharing-strategy")),
        "cloud.google.com/gke-max-shared-clients-per-gpu",
        "karpenter.k8s.aws/instance-gpu-name",
        "karpenter.k8s.aws/instance-gpu-memory",
        "nvidia.com/cuda.driver-version.full",
        "nvidia.com/gpu.compute.major",
        "nvidia.com/mps.capable",
    ]
)


@st.composite
def odd_nodes(draw: st.DrawFn) -> Node:
    """Draw nodes with any labels and any amounts."""
    labels = draw(st.dictionaries(LABEL_KEYS, TEXTS, max_size=8))
    if product := draw(PRODUCTS):
        labels[PRODUCT_LABEL] = product
    data = make_node(draw(st.uuids()).hex, labels)
    data["status"]["allocatable"] = draw(st.dictionaries(RESOURCES, AMOUNTS, max_size=4))
    data["status"]["capacity"] = draw(st.dictionaries(RESOURCES, AMOUNTS, max_size=4))
    return read_node(data)


@settings(max_examples=200)
@given(st.lists(odd_nodes(), max_size=4))
def test_capacities_add_up_to_allocatable(nodes: list[Node]) -> None:
    fleet = Fleet(nodes)
    for resource in fleet.resources():
        labeled = [
            one for one in fleet.nodes if "mig-" in resource or "-MIG-INVALID" not in one.labels.get(PRODUCT_LABEL, "")
        ]
        allocatable = sum(one.gpus.get(resource, 0) for one in labeled)
        assert sum(offer.capacity for offer in fleet.by_resource[resource]) == allocatable
    for offer in fleet.offers:
        assert 1 <= offer.gpu_milli <= 1000
        assert 0 <= offer.compute_milli <= 1000
        assert offer.replicas >= 1
        assert offer.memory_mib is None or offer.memory_mib >= 0
        assert offer.nodes & ~fleet.nodes_advertising(offer.resource) == 0


@settings(max_examples=200)
@given(st.lists(odd_nodes(), max_size=4))
def test_selector_reaches_its_own_size_only(nodes: list[Node]) -> None:
    fleet = Fleet(nodes)
    for offer in fleet.offers:
        if offer.selector:
            reached = reachable_nodes(fleet, offer)
            same = [o for o in fleet.by_resource[offer.resource] if o.selector == offer.selector]
            assert offer.nodes & ~reached == 0
            assert reached == sum(o.nodes for o in same)
