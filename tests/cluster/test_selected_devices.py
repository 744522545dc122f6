"""A cluster allocates the devices that our evaluation of generated and collected selectors selects."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from tests.cluster.dryrun import DryRunClient, open_dry_run_client
from tests.cluster.nodes import add_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.random_claims import API, dry_run_claims
from tests.cluster.selector_claims import MOST, AllocatedClaim, SelectorResult, allocate_claims, results_by_claim
from tests.controlplane.build import is_minor_or_newer
from tests.controlplane.selector_texts import rejected_selectors, valid_selectors
from tests.controlplane.test_selectors import COLLECTED, ERROR, our_results
from tests.device_builders import device_class
from tests.filters.selected_devices import ANY, claim_of_all, generated_slices, random_devices_of_node

GENERATED = max(300, int(os.environ.get("RIGHTSLICE_FUZZ", "0")) // 500) if is_minor_or_newer(36) else 0
"""Generated selectors that compile, and as many that do not: 2,000 for a million. Older versions lack functions."""

SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "selectors of a cluster")
DEVICES = 6
ADMIN = {"resource.kubernetes.io/admin-access": "true"}
MISSPELLED = ("device.memory > 1", "device.driver = 'gpu.nvidia.com'", "devices.driver == ''", "device.driver")
CANNOT_ALLOCATE, RUNTIME_ERROR = "cannot allocate all claims", "CEL runtime error"


async def test_claims_get_the_devices_that_their_selectors_select(plane: Plane) -> None:
    """A claim requests all devices that each of up to 32 selectors selects, without taking them from others."""
    random = Random(SEED)
    texts = [*COLLECTED, *valid_selectors(random, GENERATED)]
    with _published_devices(plane, random_devices_of_node(random, DEVICES)) as (node, published):
        plane.add_namespace(node, ADMIN)
        async with open_dry_run_client(plane.url, plane.ca, plane.token) as client:
            results = [_result(text, published) for text in texts]
            differences = await _find_differences(client, node, results)
        plane.api.delete(f"/api/v1/namespaces/{node}")
    counts = Counter("fails" if each.fails else "selects" if each.devices else "selects nothing" for each in results)
    assert [one for one in ("fails", "selects", "selects nothing") if counts[one] * 20 < GENERATED] == [], counts
    assert not differences, "\n".join([f"seed {SEED}: {len(differences)} of {len(texts)}", *differences[:5]])


async def test_selectors_that_do_not_compile_are_rejected(plane: Plane, namespace: str) -> None:
    texts = [*MISSPELLED, *rejected_selectors(Random(SEED), GENERATED)]
    claims = [claim_of_all("claim", *texts[at : at + MOST], namespace=namespace) for at in range(0, len(texts), MOST)]
    async with open_dry_run_client(plane.url, plane.ca, plane.token) as client:
        answers = await dry_run_claims(client, namespace, claims)
    causes = [{each["field"] for each in answer.body["details"]["causes"]} for answer in answers]
    field = "spec.devices.requests[{}].exactly.selectors[0].cel.expression"
    accepted = [text for number, text in enumerate(texts) if field.format(number % MOST) not in causes[number // MOST]]
    assert not accepted, accepted[:5]


@contextmanager
def _published_devices(
    plane: Plane, devices: Sequence[dict[str, Any]]
) -> Iterator[tuple[str, Sequence[dict[str, Any]]]]:
    """Publish devices on a new node, and a class of all devices; return the name of the node, and the devices."""
    node = f"selected-{secrets.token_hex(3)}"
    labels = {"kubernetes.io/hostname": node}
    add_nodes(plane, [{"metadata": {"name": node, "labels": labels}, "status": {"allocatable": {"pods": "5000"}}}])
    slices = list(generated_slices(node, devices))
    paths = [(f"{API}/deviceclasses", device_class(ANY, "true")), *((f"{API}/resourceslices", each) for each in slices)]
    for path, each in paths:
        plane.api.create(path, each)
    try:
        yield node, devices
    finally:
        for path, each in paths:
            plane.api.delete(f"{path}/{each['metadata']['name']}")
        remove_nodes(plane, [node])


def _result(text: str, devices: Sequence[dict[str, Any]]) -> SelectorResult:
    results = our_results(text, devices)
    fails = ERROR in results
    selected = [one["device"]["name"] for one, result in zip(devices, results, strict=True) if result == "true"]
    return SelectorResult(text, frozenset(() if fails else selected), fails)


async def _find_differences(client: DryRunClient, node: str, results: Sequence[SelectorResult]) -> list[str]:
    """Return which selectors select other devices for the scheduler; those of a claim that waits are tried alone."""
    groups = results_by_claim(results)
    answers = await allocate_claims(client, node, node, groups, "claim")
    pairs = list(zip(groups, answers, strict=True))
    known = [(group, answer) for group, answer in pairs if len(group) == 1 or not answer.message]
    found = [each for group, answer in known for each in _compare(group, answer)]
    alone = [[one] for group, answer in pairs if len(group) > 1 and answer.message for one in group]
    for group, answer in zip(alone, await allocate_claims(client, node, node, alone, "alone"), strict=True):
        found += _compare(group, answer)
    return found


def _compare(group: Sequence[SelectorResult], answer: AllocatedClaim) -> Iterator[str]:
    for number, each in enumerate(group):
        devices = answer.devices.get(number, frozenset())
        expected = RUNTIME_ERROR if each.fails else CANNOT_ALLOCATE if not each.devices else ""
        if devices != each.devices or expected not in answer.message or bool(expected) != bool(answer.message):
            yield f"{each.text}\n  ours   {each[1:]}\n  theirs {sorted(devices)} {answer.message}"
