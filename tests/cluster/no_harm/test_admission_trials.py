"""The webhook does no harm: pods accepted without it are accepted with it, and no quota is bypassed."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.installation import Installation
from tests.cluster.no_harm.admission_trials import try_pods, try_random_namespaces
from tests.cluster.no_harm.corpus import corpus_pods

PODS = 20
NAMESPACES = max(30, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 50 // PODS)
"""One pod for every fifty quantities: 20,000 for a million."""

SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "safety")


async def test_no_random_pod_is_rejected_and_no_quota_is_bypassed(sizing: Installation) -> None:
    total = await try_random_namespaces(sizing.plane, seed=SEED, namespaces=NAMESPACES, pods=PODS)

    assert total.violations[:3] == ()
    assert total.pods == NAMESPACES * PODS
    assert total.accepted > total.pods / 6, total
    assert min(total.changed, total.accounted, total.over_quota) > total.pods / 100, total


async def test_no_real_pod_is_rejected_by_the_webhook(sizing: Installation, shared: Path) -> None:
    pods = corpus_pods(shared)

    total = await try_pods(sizing.plane, pods, seed=SEED, namespaces=max(1, NAMESPACES // 50))

    assert total.violations[:3] == ()
    assert total.accepted > len(pods) / 4, total
    assert min(total.changed, total.accounted) > 5, total
