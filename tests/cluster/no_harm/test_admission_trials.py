"""Our webhook does no harm: what an API server takes without it, it takes with it; and no quota is left behind."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.installation import Installed
from tests.cluster.no_harm.admission_trials import try_pods, try_worlds
from tests.cluster.no_harm.corpus import corpus_pods

PODS = 20
WORLDS = max(30, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 50 // PODS)
"""A pod for every fifty quantities: 20,000 of a million."""

SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "safety")


async def test_no_pod_is_refused_because_of_us_and_no_quota_is_left_behind(sizing: Installed) -> None:
    tried = await try_worlds(sizing.plane, seed=SEED, worlds=WORLDS, pods=PODS)

    assert tried.breaks[:3] == ()
    assert tried.pods == WORLDS * PODS
    assert tried.taken > tried.pods / 6, tried
    assert min(tried.changed, tried.weighed, tried.over) > tried.pods / 100, tried


async def test_no_real_pod_is_refused_because_of_us(sizing: Installed, shared: Path) -> None:
    pods = corpus_pods(shared)

    tried = await try_pods(sizing.plane, pods, seed=SEED, worlds=max(1, WORLDS // 50))

    assert tried.breaks[:3] == ()
    assert tried.taken > len(pods) / 4, tried
    assert min(tried.changed, tried.weighed) > 5, tried
