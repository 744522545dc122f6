"""The webhook does no harm: pods accepted without it are accepted with it, and no quota is bypassed."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.installation import Installation
from tests.cluster.no_harm.admission_trials import try_pods, try_random_namespaces
from tests.cluster.no_harm.corpus import corpus_pods

PODS = 20
WORLDS = max(30, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 50 // PODS)
"""A pod for every fifty quantities: 20,000 of a million."""

SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "safety")


async def test_no_random_pod_is_rejected_and_no_quota_is_bypassed(sizing: Installation) -> None:
    tried = await try_random_namespaces(sizing.plane, seed=SEED, worlds=WORLDS, pods=PODS)

    assert tried.violations[:3] == ()
    assert tried.pods == WORLDS * PODS
    assert tried.accepted > tried.pods / 6, tried
    assert min(tried.changed, tried.accounted, tried.over_quota) > tried.pods / 100, tried


async def test_no_real_pod_is_rejected_by_the_webhook(sizing: Installation, shared: Path) -> None:
    pods = corpus_pods(shared)

    tried = await try_pods(sizing.plane, pods, seed=SEED, worlds=max(1, WORLDS // 50))

    assert tried.violations[:3] == ()
    assert tried.accepted > len(pods) / 4, tried
    assert min(tried.changed, tried.accounted) > 5, tried
