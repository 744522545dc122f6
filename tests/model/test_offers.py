"""Offers of one node, case by case."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.model.nodes import A100, GPU, SHARED, SMALL, block, node
from webhook.model.enums import GpuForm, IsolationLevel
from webhook.model.fleet import Fleet

CARD = {"gpu.product": A100, "gpu.memory": "81920", "gpu.count": "8", "gpu.replicas": "1"}
A40GB = "NVIDIA-A100-SXM4-40GB"
H100 = "NVIDIA-H100-80GB-HBM3"
GKE = "cloud.google.com/gke-"
GKE_A100 = {f"{GKE}accelerator": "nvidia-tesla-a100"}
GKE_L4 = {f"{GKE}accelerator": "nvidia-l4", f"{GKE}max-shared-clients-per-gpu": "4"}
EC2 = "karpenter.k8s.aws/instance-gpu-"


class Case(NamedTuple):
    labels: dict[str, str]
    gpus: dict[str, object]
    want: dict[str, Any] | None


"""Expected fields of the one offer; None for no offer."""


WHOLE = {
    "a whole card": Case(
        CARD, {GPU: "8"}, {"form": GpuForm.WHOLE, "memory_mib": 81920, "gpu_milli": 1000, "capacity": 8}
    ),
    "an unlabeled card is offered with unknown memory": Case(
        {}, {GPU: "8"}, {"form": GpuForm.WHOLE, "memory_mib": None, "product": "", "selector": (), "capacity": 8}
    ),
    "a missing memory label is filled from the product": Case(
        {"gpu.product": "Tesla-T4"}, {GPU: "1"}, {"memory_mib": 15109}
    ),
    "memory is never read from a name": Case({"gpu.product": "NVIDIA-Z900-80GB"}, {GPU: "1"}, {"memory_mib": None}),
    "memory in bytes, from an old release": Case(
        {"gpu.product": "Tesla-T4", "gpu.memory": "16106127360"}, {GPU: "1"}, {"memory_mib": 15360}
    ),
    "capacity is what is allocatable, not the count": Case(CARD, {GPU: "5"}, {"capacity": 5}),
    "count times replicas on an unshared node is still unshared": Case(
        CARD | {"gpu.replicas": "8"}, {GPU: "8"}, {"form": GpuForm.WHOLE, "replicas": 1, "memory_mib": 81920}
    ),
    "several models under one label: the memory is unknown": Case(
        {"gpu.product": "Tesla-V100-PCIE-16GB", "gpu.memory": "16384", "gpu.count": "1", "gpu.replicas": "1"},
        {GPU: "3"},
        {"memory_mib": None, "gpu_milli": 1000, "capacity": 3},
    ),
    "zero allocatable: no offer": Case(CARD, {GPU: "0"}, None),
    "a negative amount: no offer": Case(CARD, {GPU: "-1"}, None),
    "a fraction: no offer": Case(CARD, {GPU: "0.5"}, None),
    "an invalid quantity: no offer": Case(CARD, {GPU: "eight"}, None),
    "a whole number with a suffix": Case(CARD, {GPU: "1k"}, {"capacity": 1000}),
    "resources of other vendors are ignored": Case(CARD, {"amd.com/gpu": "8", "nvidia.com/gpumem": "8"}, None),
}

MIG = {
    "mixed: a block of labels": Case(
        CARD | block("1g.10gb", memory="9728", multiprocessors="14", count="7", replicas="1"),
        {SMALL: "7"},
        {
            "form": GpuForm.MIG,
            "isolation": IsolationLevel.HARDWARE,
            "product": A100,
            "profile": "1g.10gb",
            "memory_mib": 9728,
            "compute_milli": 129,
            "gpu_milli": 143,
            "selector": (("nvidia.com/gpu.product", A100),),
        },
    ),
    "mixed without a block: the catalog": Case(
        {"gpu.product": H100}, {SMALL: "7"}, {"memory_mib": 9850, "compute_milli": 121, "gpu_milli": 143}
    ),
    "the same profile is a quarter of a smaller card": Case(
        {"gpu.product": A40GB}, {SMALL: "4"}, {"memory_mib": 9856, "gpu_milli": 250, "compute_milli": 129}
    ),
    "the memory share is larger than the compute share": Case(
        {"gpu.product": A100}, {"nvidia.com/mig-3g.40gb": "2"}, {"gpu_milli": 500, "compute_milli": 388}
    ),
    "the full profile is a whole card without MIG overhead": Case(
        {"gpu.product": A100}, {"nvidia.com/mig-7g.80gb": "1"}, {"gpu_milli": 1000, "compute_milli": 907}
    ),
    "a card of four slices": Case(
        {"gpu.product": "NVIDIA-A30"}, {"nvidia.com/mig-1g.6gb": "4"}, {"gpu_milli": 250, "memory_mib": 5836}
    ),
    "an unknown card: labels alone": Case(
        {"gpu.product": "NVIDIA-Z900", "gpu.memory": "97887"} | block("1g.24gb", memory="23674"),
        {"nvidia.com/mig-1g.24gb": "4"},
        {"memory_mib": 23674, "gpu_milli": 250, "compute_milli": 142},
    ),
    "an unknown card without labels: compute by name, memory unknown": Case(
        {"gpu.product": "NVIDIA-Z900"}, {"nvidia.com/mig-2g.24gb": "3"}, {"memory_mib": None, "gpu_milli": 286}
    ),
    "media engines are an attribute": Case(
        {"gpu.product": A100}, {"nvidia.com/mig-1g.10gb.me": "1"}, {"profile": "1g.10gb+me", "memory_mib": 9728}
    ),
    "no media engines, as a minus": Case(
        {"gpu.product": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"},
        {"nvidia.com/mig-1g.24gb-me": "1"},
        {"profile": "1g.24gb-me", "gpu_milli": 250},
    ),
    "single: nvidia.com/gpu is a slice": Case(
        {
            "gpu.product": f"{A40GB}-MIG-1g.5gb",
            "gpu.memory": "4864",
            "gpu.count": "56",
            "gpu.replicas": "1",
            "gpu.multiprocessors": "14",
            "mig.strategy": "single",
        },
        {GPU: "56"},
        {
            "resource": GPU,
            "form": GpuForm.MIG,
            "profile": "1g.5gb",
            "memory_mib": 4864,
            "gpu_milli": 143,
            "compute_milli": 129,
            "selector": (("nvidia.com/gpu.product", f"{A40GB}-MIG-1g.5gb"),),
        },
    ),
    "single without a memory label: the catalog, not the whole card": Case(
        {"gpu.product": f"{A40GB}-MIG-3g.20gb"}, {GPU: "2"}, {"memory_mib": 19968, "gpu_milli": 500}
    ),
    "single with media engines, a full stop in the label": Case(
        {"gpu.product": f"{A40GB}-MIG-1g.5gb.me"}, {GPU: "1"}, {"profile": "1g.5gb+me", "memory_mib": 4864}
    ),
    "single, invalid: no offer despite allocatable": Case(
        {"gpu.product": f"{A40GB}-MIG-INVALID", "gpu.count": "0", "gpu.memory": "0"}, {GPU: "8"}, None
    ),
    "single without MIG: whole cards": Case(
        CARD | {"mig.strategy": "single"}, {GPU: "8"}, {"form": GpuForm.WHOLE, "memory_mib": 81920}
    ),
    "mixed, all cards partitioned: gpu.count is ignored": Case(
        CARD | {"gpu.replicas": "0", "mig.strategy": "mixed"}, {GPU: "0", SMALL: "56"}, {"resource": SMALL}
    ),
}

SHARING = {
    "time slicing, renamed": Case(
        CARD | {"gpu.replicas": "4", "gpu.sharing-strategy": "time-slicing"},
        {SHARED: "32"},
        {
            "form": GpuForm.TIME_SLICING,
            "isolation": IsolationLevel.NONE,
            "replicas": 4,
            "memory_mib": 20480,
            "compute_milli": 250,
            "gpu_milli": 250,
            "capacity": 32,
        },
    ),
    "time slicing under the plain name": Case(
        CARD | {"gpu.product": f"{A100}-SHARED", "gpu.replicas": "4"},
        {GPU: "32"},
        {"form": GpuForm.TIME_SLICING, "replicas": 4, "product": f"{A100}-SHARED"},
    ),
    "three shares: weight rounds up, compute rounds down": Case(
        CARD | {"gpu.product": f"{A100}-SHARED", "gpu.replicas": "3"},
        {GPU: "24"},
        {"gpu_milli": 334, "compute_milli": 333, "memory_mib": 27306},
    ),
    "replicas written as count times factor": Case(
        CARD | {"gpu.product": f"{A100}-SHARED", "gpu.replicas": "32"}, {GPU: "32"}, {"replicas": 4}
    ),
    "replicas missing: allocatable over count": Case(
        {"gpu.product": f"{A100}-SHARED", "gpu.memory": "81920", "gpu.count": "8"}, {GPU: "32"}, {"replicas": 4}
    ),
    "replicas and count missing: the smallest possible share": Case(
        {"gpu.product": f"{A100}-SHARED", "gpu.memory": "81920"}, {GPU: "32"}, {"replicas": 32, "memory_mib": 2560}
    ),
    "MPS by its strategy": Case(
        CARD | {"gpu.product": f"{A100}-SHARED", "gpu.replicas": "4", "gpu.sharing-strategy": "mps"},
        {GPU: "32"},
        {"form": GpuForm.MPS, "isolation": IsolationLevel.MEMORY, "memory_mib": 20480},
    ),
    "MPS by the older label": Case(
        CARD | {"gpu.replicas": "4", "mps.capable": "true"}, {SHARED: "32"}, {"form": GpuForm.MPS}
    ),
    "the strategy label overrides the older label": Case(
        CARD | {"gpu.replicas": "4", "mps.capable": "true", "gpu.sharing-strategy": "time-slicing"},
        {SHARED: "32"},
        {"form": GpuForm.TIME_SLICING},
    ),
    "a strategy without replicas is not shared": Case(
        CARD | {"gpu.sharing-strategy": "time-slicing"}, {GPU: "8"}, {"form": GpuForm.WHOLE, "replicas": 1}
    ),
    "shared slices, renamed": Case(
        CARD | block("1g.10gb", memory="9728", count="7", replicas="2"),
        {f"{SMALL}.shared": "14"},
        {
            "form": GpuForm.TIME_SLICING,
            "isolation": IsolationLevel.NONE,
            "profile": "1g.10gb",
            "memory_mib": 4864,
            "gpu_milli": 72,
            "compute_milli": 64,
        },
    ),
    "shared slices under their own name": Case(
        CARD | block("1g.10gb", product=f"{A100}-MIG-1g.10gb-SHARED", count="7", replicas="2"),
        {SMALL: "14"},
        {"form": GpuForm.TIME_SLICING, "replicas": 2},
    ),
    "a shared single slice": Case(
        {"gpu.product": f"{A40GB}-MIG-1g.5gb-SHARED", "gpu.memory": "4864", "gpu.count": "56", "gpu.replicas": "2"},
        {GPU: "112"},
        {"form": GpuForm.TIME_SLICING, "profile": "1g.5gb", "memory_mib": 2432},
    ),
    "MPS on MIG slices counts as time slicing: the plugin rejects it": Case(
        CARD | {"mps.capable": "true"} | block("1g.10gb", count="7", replicas="2"),
        {f"{SMALL}.shared": "14"},
        {"form": GpuForm.TIME_SLICING},
    ),
}

CLOUDS = {
    "GKE names the card": Case(
        {f"{GKE}accelerator": "nvidia-tesla-a100"},
        {GPU: "8"},
        {
            "form": GpuForm.WHOLE,
            "memory_mib": 40536,
            "product": "",
            "selector": ((f"{GKE}accelerator", "nvidia-tesla-a100"),),
        },
    ),
    "a GKE partition is a slice under the plain name": Case(
        {f"{GKE}accelerator": "nvidia-tesla-a100", f"{GKE}gpu-partition-size": "1g.5gb"},
        {GPU: "56"},
        {"form": GpuForm.MIG, "profile": "1g.5gb", "memory_mib": 4864, "gpu_milli": 143},
    ),
    "GKE time sharing, spelled as in a node selector": Case(
        GKE_L4 | {f"{GKE}gpu-sharing-strategy": "time-sharing"},
        {GPU: "4"},
        {"form": GpuForm.TIME_SLICING, "replicas": 4, "memory_mib": 5758},
    ),
    "GKE MPS, spelled as in auto-provisioning": Case(
        {
            f"{GKE}accelerator": "nvidia-l4",
            f"{GKE}gpu-sharing-strategy": "MPS",
            f"{GKE}max-shared-clients-per-gpu": "4",
        },
        {GPU: "4"},
        {"form": GpuForm.MPS, "isolation": IsolationLevel.MEMORY},
    ),
    "GKE allows MPS on a partition": Case(
        {
            f"{GKE}accelerator": "nvidia-tesla-a100",
            f"{GKE}gpu-partition-size": "3g.20gb",
            f"{GKE}gpu-sharing-strategy": "mps",
            f"{GKE}max-shared-clients-per-gpu": "2",
        },
        {GPU: "32"},
        {"form": GpuForm.MPS, "memory_mib": 9984, "gpu_milli": 250},
    ),
    "GKE sharing without a number of clients": Case(
        {f"{GKE}accelerator": "nvidia-l4", f"{GKE}gpu-sharing-strategy": "mps", f"{GKE}accelerator-count": "2"},
        {GPU: "16"},
        {"form": GpuForm.MPS, "replicas": 8, "memory_mib": 2879},
    ),
    "GKE's number of clients overrides GFD's replicas": Case(
        GKE_L4 | {f"{GKE}gpu-sharing-strategy": "mps", "gpu.product": "NVIDIA-L4", "gpu.replicas": "1"},
        {GPU: "4"},
        {"form": GpuForm.MPS, "replicas": 4},
    ),
    "an unknown GKE card": Case({f"{GKE}accelerator": "nvidia-z900"}, {GPU: "1"}, {"memory_mib": None}),
    "Karpenter names one product": Case(
        {f"{EC2}name": "t4", f"{EC2}memory": "16384"}, {GPU: "1"}, {"memory_mib": 15109}
    ),
    "Karpenter's nominal memory is reduced for ECC": Case(
        {f"{EC2}name": "a100", f"{EC2}memory": "40960", f"{EC2}manufacturer": "nvidia"},
        {GPU: "8"},
        {"memory_mib": 37683},
    ),
    "another manufacturer's card with the same name": Case(
        {f"{EC2}name": "t4", f"{EC2}memory": "8192", f"{EC2}manufacturer": "amd"}, {GPU: "1"}, {"memory_mib": None}
    ),
    "EKS auto mode": Case({"eks.amazonaws.com/instance-gpu-name": "l40s"}, {GPU: "4"}, {"memory_mib": 46068}),
    "CoreWeave": Case({"gpu.nvidia.com/model": "H200"}, {GPU: "8"}, {"memory_mib": 143771}),
    "an Azure name with two memory sizes": Case(
        {"karpenter.azure.com/sku-gpu-name": "A100"}, {GPU: "8"}, {"memory_mib": None}
    ),
    "GFD labels override cloud labels": Case(
        {f"{GKE}accelerator": "nvidia-tesla-a100"} | CARD, {GPU: "8"}, {"memory_mib": 81920, "product": A100}
    ),
}

CASES = {
    f"{group}: {name}": case
    for group, cases in {"whole": WHOLE, "mig": MIG, "sharing": SHARING, "clouds": CLOUDS}.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_offers(case: Case) -> None:
    offers = Fleet([node("n", case.labels, **case.gpus)]).offers
    if case.want is None:
        assert offers == ()
        return
    (offer,) = offers
    assert {field: getattr(offer, field) for field in case.want} == case.want
