"""The first review of a claim in the largest cluster: milliseconds of CPU, while nothing about its devices is known.

5,000 nodes publish eight H100s each, with all MIG devices that could be made of them: 760,000 devices with counters.
Each claim is reviewed as after a change of a slice, with the whole shipped library of policies: those that users
write, two that are right-sized, and the costliest ones that are known. A server stops any review after 45 ms.

Bound: these 45 ms.

Usage: python -m benchmarks.first_claims [NODES]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from time import thread_time

import msgspec
import orjson

from benchmarks.api_objects import Json
from benchmarks.decide import NOW
from tests.builders import make_node
from tests.device_builders import partitionable_gpus
from tests.engine.test_claim_review import ATTRIBUTES, CLASSES, COSTLY, MEMORY, claim, request
from tests.example_cluster import request_of, view_of
from webhook.cache.bundled_files import bundled_folder
from webhook.cache.device_index import DeviceIndex
from webhook.engine.decide import decide
from webhook.model.claims import DeviceClass
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.resource_slices import ResourceSlice
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.web.limits import MAX_CPU_SECONDS
from webhook.web.listener import freeze_and_tune_gc

NODES, CARDS_PER_NODE, ROUNDS = 5_000, 8, 3
MAX_MS = MAX_CPU_SECONDS * 1000
NEED = {"annotations": {"rightslice.dev/gpu-memory": "8Gi"}}
PLACEHOLDER = "node-placeholder"
PROFILE = f"'profile' in {ATTRIBUTES} && {ATTRIBUTES}.profile == '1g.10gb'"
DIFFERENT_CARDS = [{"distinctAttribute": "gpu.nvidia.com/parentUUID"}]


def needing_little(data: Json) -> Json:
    """Return a claim that declares its need."""
    return data | {"metadata": data["metadata"] | NEED}


USUAL: Mapping[str, Json] = {
    "two cards": claim(request(count=2)),
    "more cards than a node has": claim(request(count=9)),
    "all cards": claim(request(allocationMode="All")),
    "a bound on memory": claim(request(f"{MEMORY}.compareTo(quantity('10Gi')) >= 0", name="mig")),
    "a profile": claim(request(PROFILE, name="mig")),
    "a product that no device has": claim(request(f"{ATTRIBUTES}.productName == 'NVIDIA B200'")),
    "a key that no device has": claim(request(f"{ATTRIBUTES}.memory == '80Gi'")),
    "slices of different cards": claim(request(name="mig", count=8), constraints=DIFFERENT_CARDS),
    "slices of more cards than a node has": claim(request(name="mig", count=9), constraints=DIFFERENT_CARDS),
    "a card that is right-sized": needing_little(claim(request())),
    "a bound that is right-sized": needing_little(claim(request(f"{MEMORY}.compareTo(quantity('10Gi')) >= 0"))),
}


class PublishingCluster:
    """A cluster whose nodes publish equal cards."""

    def __init__(self, nodes: int) -> None:
        names = [f"node-{number:05d}" for number in range(nodes)]
        self._index, decoder = DeviceIndex(lambda: None), msgspec.json.Decoder(ResourceSlice)
        texts = [orjson.dumps(each) for each in partitionable_gpus(PLACEHOLDER, CARDS_PER_NODE)]
        for name, text in product(names, texts):
            self._changing = decoder.decode(text.replace(PLACEHOLDER.encode(), name.encode()))
            self._index.slices.upsert(self._changing)
        self._view = view_of(*[make_node(name, {}) for name in names], *CLASSES)
        self._classes = [msgspec.convert(each, DeviceClass) for each in CLASSES]

    def view_after_change(self) -> ClusterView:
        """Return the view after a slice changed: nothing that follows from devices is known."""
        self._index.slices.remove(self._changing)
        self._index.slices.upsert(self._changing)
        asyncio.run(self._index.update_pools(self._view.fleet))
        return self._view.with_devices(self._index.take_view(self._classes))


def measure(claims: Mapping[str, Json], cluster: PublishingCluster, policies: PolicySet) -> dict[str, float]:
    """Return the least CPU of the first review of each claim, in milliseconds."""
    return {name: min(first_review_ms(data, cluster, policies) for _ in range(ROUNDS)) for name, data in claims.items()}


def first_review_ms(data: Json, cluster: PublishingCluster, policies: PolicySet) -> float:
    """Return the CPU of a review after a slice changed."""
    new, view = request_of(data), cluster.view_after_change()
    start = thread_time()
    decide(new, policies, view, UsageView(), NOW)
    return (thread_time() - start) * 1000


def rows(found: Mapping[str, float]) -> Iterator[str]:
    """Yield the slowest claims."""
    slowest = sorted(found.items(), key=lambda item: -item[1])[:5]
    yield from (f"{milliseconds:8.1f} ms  {name}" for name, milliseconds in slowest)


def main() -> int:
    """Print the figures; return 1 if a bound is exceeded."""
    files = sorted(bundled_folder("policies").glob("*.yaml"))
    policies = load_policies((file.name, file.read_text(encoding="utf-8")) for file in files).policies
    assert policies is not None
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else NODES
    cluster = PublishingCluster(nodes)
    freeze_and_tune_gc()
    usual, costly = (measure(claims, cluster, policies) for claims in (USUAL, COSTLY))
    print(
        f"{nodes} nodes with {CARDS_PER_NODE} cards; CPU of the first review of {len(usual)} claims that users write:"
    )
    print("\n".join(rows(usual)))
    print(f"of {len(costly)} that cost much:")
    print("\n".join(rows(costly)))
    return 0 if max(*usual.values(), *costly.values()) <= MAX_MS else 1


if __name__ == "__main__":
    sys.exit(main())
