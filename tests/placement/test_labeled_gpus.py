"""GPUs that the labels of a node state."""

from __future__ import annotations

import pytest

from webhook.placement.labeled_gpus import GPU_COUNT_LABEL, LabeledGpus, labeled_gpus

CASES = {
    "cards": ("NVIDIA-H100-80GB-HBM3", LabeledGpus(8)),
    "slices of a known product": ("NVIDIA-A100-SXM4-40GB-MIG-3g.20gb", LabeledGpus(8, "3g.20gb", 2)),
    "slices of an unknown product": ("X-MIG-2g.20gb", LabeledGpus(8, "2g.20gb", 3)),
    "a profile that no card has": ("X-MIG-0g.5gb", LabeledGpus(8, "0g.5gb", 7)),
}


@pytest.mark.parametrize(("product", "want"), CASES.values(), ids=CASES)
def test_the_product_says_whether_the_count_is_of_cards_or_of_slices(product: str, want: LabeledGpus) -> None:
    assert labeled_gpus({"nvidia.com/gpu.product": product, GPU_COUNT_LABEL: "8"}) == want
