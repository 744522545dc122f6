"""GPUs that the labels of a node state: cards, or with MIG strategy single the slices of them.

Where slices have the name of whole GPUs, `gpu.count` counts slices, and `gpu.product` names their profile. Source: GPU
feature discovery, `internal/lm/mig-strategy.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from webhook.model.advertised_resources import USUAL_SLICES
from webhook.model.gpu_resources import MIG_PREFIX, GpuResource, parse_gpu_resource
from webhook.model.node_labels import MIG_MARK, PRODUCT_LABEL, SHARED_MARK, parse_count, read_cloud_labels
from webhook.placement.mig import MEDIA_SUFFIX, mig_geometry

GPU_COUNT_LABEL = "nvidia.com/gpu.count"


class LabeledGpus(NamedTuple):
    """GPUs of a node as its labels state them.

    Attributes:
        units: Cards, or slices of `profile`.
        profile: The MIG profile of each; "" for cards.
        per_card: Slices that fit on a card.
    """

    units: int
    profile: str = ""
    per_card: int = 1

    @property
    def cards(self) -> int:
        """Physical GPUs."""
        return -(-self.units // self.per_card)


def labeled_gpus(labels: Mapping[str, str]) -> LabeledGpus:
    """Return the GPUs that NVIDIA's labels state; none without these labels."""
    product = labels.get(PRODUCT_LABEL, "")
    name = product.lower().removesuffix(SHARED_MARK).partition(MIG_MARK)[2]
    resource = parse_gpu_resource(f"{MIG_PREFIX}{name}")
    count = parse_count(labels.get(GPU_COUNT_LABEL)) or 0
    if resource is None:
        return LabeledGpus(count)
    return LabeledGpus(count, resource.profile, _slices_per_card(product, resource))


def labeled_or_cloud_gpus(labels: Mapping[str, str]) -> LabeledGpus:
    """Return the GPUs that NVIDIA's labels state, otherwise those of a cloud's."""
    found = labeled_gpus(labels)
    return found if found.units else LabeledGpus(read_cloud_labels(labels).gpus or 0)


def _slices_per_card(product: str, resource: GpuResource) -> int:
    """Return the slices of one profile that fit on a card."""
    if MEDIA_SUFFIX in resource.profile:
        return 1
    geometry = mig_geometry(product)
    profile = geometry.profile(resource.profile) if geometry else None
    return len(profile.starts) if profile else max(1, USUAL_SLICES // max(1, resource.slices))
