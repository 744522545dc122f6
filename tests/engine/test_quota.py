"""Quota: which quotas count a pod, what they leave, and what a rewrite may not do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.make import make_pod
from webhook.engine.quota import escapes, excesses
from webhook.model.objects import ResourceQuota
from webhook.model.pods import pod_of

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> ResourceQuota:
    """A quota that the controller has counted."""
    data = {
        "metadata": {"name": "team"},
        "spec": {"hard": hard} | spec,
        "status": {"hard": hard, "used": used or {}},
    }
    return msgspec.convert(data, ResourceQuota)


EXCESSES = {
    "room left": (quota({f"requests.{GPU}": "4"}, {f"requests.{GPU}": "1"}), 3, ""),
    "too many, some would fit": (
        quota({f"requests.{GPU}": "32"}, {f"requests.{GPU}": "31"}),
        3,
        "quota team allows 32 nvidia.com/gpu, 31 in use, 3 asked; 1 would fit",
    ),
    "full": (quota({f"requests.{GPU}": "1"}, {f"requests.{GPU}": "1"}), 1, "0 would fit"),
    "over already": (quota({f"requests.{GPU}": "1"}, {f"requests.{GPU}": "3"}), 1, "0 would fit"),
    "limits. keys are never enforced": (quota({f"limits.{GPU}": "0"}), 1, ""),
    "bare keys are never enforced": (quota({GPU: "0"}), 1, ""),
    "an unreadable ceiling says nothing": (quota({f"requests.{GPU}": "many"}), 1, ""),
}


@pytest.mark.parametrize(("limit", "count", "words"), EXCESSES.values(), ids=EXCESSES)
def test_excesses(limit: ResourceQuota, count: int, words: str) -> None:
    found = list(excesses([limit], pod_of(make_pod().build()), {GPU: count}))
    assert bool(found) is bool(words)
    assert all(words in remark.message for remark in found)


ESCAPES = {
    "nothing counted: nothing to escape": ([], False),
    "source counted, target not": ([quota({f"requests.{GPU}": "8"})], True),
    "both counted, with room": ([quota({f"requests.{GPU}": "8", f"requests.{SLICE}": "1"})], False),
    "target full": (
        [quota({f"requests.{GPU}": "8", f"requests.{SLICE}": "1"}, {f"requests.{SLICE}": "1"})],
        True,
    ),
    "only the target counted, full": ([quota({f"requests.{SLICE}": "0"})], True),
    "counted in two quotas of different scope": (
        [quota({f"requests.{GPU}": "8"}), quota({f"requests.{SLICE}": "8"})],
        True,
    ),
    "a quota that counts pods without CPU and memory": (
        [quota({f"requests.{GPU}": "8"}, scopes=["BestEffort"])],
        True,
    ),
    "a quota that does not hold": ([quota({f"requests.{GPU}": "8"}, scopes=["Terminating"])], False),
}


@pytest.mark.parametrize(("quotas", "want"), ESCAPES.values(), ids=ESCAPES)
def test_escapes(quotas: list[ResourceQuota], want: bool) -> None:
    assert escapes(quotas, pod_of(make_pod().build()), GPU, SLICE, 1) is want


def test_a_quota_on_the_accounting_resource_covers_both_forms() -> None:
    both = quota({f"requests.{GPU}": "8", "requests.rightslice.dev/gpu-milli": "8000"})
    pod = pod_of(make_pod().build())
    assert escapes([both], pod, GPU, SLICE, 1)
    assert not escapes([both], pod, GPU, SLICE, 1, accounted="rightslice.dev/gpu-milli")
