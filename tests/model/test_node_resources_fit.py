"""NodeResourcesFit: which amounts a node has too little of, and how many pods it takes."""

from __future__ import annotations

import pytest

from webhook.model.filters.node_resources_fit import PODS_RESOURCE, Amounts, count_fitting_pods, find_shortages
from webhook.model.quantity import NANO

HCA = "rdma/hca"

SHORTAGES: dict[str, tuple[Amounts, Amounts, list[tuple[str, str]]]] = {
    "as much as is free": ({HCA: 2 * NANO}, {HCA: 2 * NANO}, []),
    "more than is free": ({HCA: 2 * NANO}, {HCA: NANO}, [(HCA, "1 rdma/hca free, 2 requested")]),
    "not advertised": ({HCA: NANO}, {}, [(HCA, "offers no rdma/hca")]),
    "zero of what is not advertised": ({HCA: 0}, {}, []),
    "zero of what is overcommitted": ({HCA: 0}, {HCA: -NANO}, []),
    "overcommitted": ({HCA: NANO}, {HCA: -NANO}, [(HCA, "0 rdma/hca free, 1 requested")]),
}

FITTING: dict[str, tuple[Amounts, Amounts, int]] = {
    "the scarcest resource decides": ({HCA: 2 * NANO}, {HCA: 7 * NANO, PODS_RESOURCE: 9 * NANO}, 3),
    "the pod limit decides": ({HCA: NANO}, {HCA: 7 * NANO, PODS_RESOURCE: 2 * NANO}, 2),
    "a pod without requests counts against the pod limit": ({}, {PODS_RESOURCE: 4 * NANO}, 4),
    "a node without a known limit takes the most": ({}, {}, 10),
    "zero fits where nothing is advertised": ({HCA: 0}, {}, 10),
    "one that is not advertised fits nowhere": ({HCA: NANO}, {}, 0),
}


@pytest.mark.parametrize("name", SHORTAGES)
def test_a_node_lacks_what_is_requested_beyond_what_is_free(name: str) -> None:
    requested, free, expected = SHORTAGES[name]
    assert list(find_shortages(requested, free)) == expected


@pytest.mark.parametrize("name", FITTING)
def test_pods_fit_until_a_resource_or_the_pod_limit_is_used_up(name: str) -> None:
    requested, free, expected = FITTING[name]
    assert count_fitting_pods(requested, free, 10) == expected
