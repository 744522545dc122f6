"""LimitRanges and ResourceQuotas: our prediction and findings for a pod equal a real API server's decision."""

from __future__ import annotations

import os

from tests.cluster.plane import Plane
from tests.cluster.pod_comparison import compare_pods

PODS = 20
NAMESPACES = max(60, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 50 // PODS)
"""One pod for every fifty quantities: 20,000 for a million."""

SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "limits")


async def test_verdicts_defaults_and_messages_equal_the_api_servers(plane: Plane) -> None:
    result = await compare_pods(plane.url, plane.ca, plane.token, seed=SEED, namespaces=NAMESPACES, pods=PODS)

    assert not result.differences, f"{len(result.differences)} differ:" + "".join(result.differences[:5])
    assert sum(result.statuses.values()) == NAMESPACES * PODS
    assert min(result.statuses[status] for status in (201, 403, 422)) > 50, result.statuses
