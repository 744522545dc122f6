"""Lint and fix LimitRanges and ResourceQuotas that the API server accepts but that do not do what they appear to.

Lint ResourceSlices: GPUs that are published twice, and what to do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from webhook.engine.linting.limit_ranges import fix_limit_range, lint_limit_range, written_default_limits
from webhook.engine.linting.objects import as_mapping
from webhook.engine.linting.quotas import QuotaScopes, fix_quota, lint_quota, scopes_covering_all_gpus
from webhook.errors import abbreviate_names
from webhook.model.claims import DeviceClasses, DeviceSelector, required_driver
from webhook.model.dra.device_pools import DevicePools
from webhook.model.dra.twice_published import DEVICE_PLUGIN, devices_published_twice
from webhook.model.findings import Finding
from webhook.model.fleet import Fleet
from webhook.model.limit_ranges import ResourceList
from webhook.well_known import Json

LIMIT_RANGE, QUOTA = "LimitRange", "ResourceQuota"
LINTED_KINDS = (LIMIT_RANGE, QUOTA)
NO_DEFAULT_LIMITS = ResourceList()


def lint_all_objects(objects: Sequence[Json], classes: Collection[str] = ()) -> list[list[Finding]]:
    """Return the findings of each object, in order; objects of one namespace are checked together."""
    covering: defaultdict[str, Counter[QuotaScopes]] = defaultdict(Counter)
    defaults: defaultdict[str, ResourceList] = defaultdict(ResourceList)
    for one in objects:
        covering[_object_namespace(one)].update(scopes_covering_all_gpus(one))
        defaults[_object_namespace(one)] |= written_default_limits(one)
    return [
        lint_object(one, covering[name] - Counter(scopes_covering_all_gpus(one)), classes, defaults[name])
        for one, name in zip(objects, map(_object_namespace, objects), strict=True)
    ]


def _object_namespace(data: Json) -> str:
    return str(as_mapping(data.get("metadata")).get("namespace", "default"))


def lint_object(
    data: Any,
    covering: Collection[QuotaScopes] = (),
    classes: Collection[str] = (),
    defaults: ResourceList = NO_DEFAULT_LIMITS,
) -> list[Finding]:
    """Return the findings of an object, none for another kind.

    Args:
        data: The object, as written or as stored.
        covering: The scopes of other quotas of its namespace that count every form of GPU.
        classes: The DeviceClasses of the cluster; empty if unknown.
        defaults: The default limits of its namespace's LimitRanges.
    """
    kind = as_mapping(data).get("kind")
    if kind == LIMIT_RANGE:
        return list(lint_limit_range(data, defaults))
    return list(lint_quota(data, covering, classes)) if kind == QUOTA else []


def fix_object(data: Json, findings: Iterable[Finding], classes: Collection[str] = ()) -> Json:
    """Return the corrected object, ready to be applied."""
    return fix_limit_range(data) if data["kind"] == LIMIT_RANGE else fix_quota(data, findings, classes)


class DeviceProblem(NamedTuple):
    """A problem with the devices of a cluster, and what to do."""

    summary: str
    advice: str


def find_device_problems(pools: DevicePools, classes: DeviceClasses, fleet: Fleet) -> Iterator[DeviceProblem]:
    """Yield the GPUs that are published twice, by who publishes them."""
    for (first, second), mask in devices_published_twice(pools, fleet).items():
        nodes = fleet.names_of(mask)
        if first == DEVICE_PLUGIN:
            yield _twice_by_plugin(second, nodes)
        else:
            yield _twice_by_drivers(first, second, nodes, classes)


def _twice_by_plugin(driver: str, nodes: Sequence[str]) -> DeviceProblem:
    summary = f"GPUs of {_count_nodes(nodes)} are published twice, by {DEVICE_PLUGIN} and by {driver}"
    advice = (
        f"a pod and a claim can get the same GPU: remove one of the two from {abbreviate_names(nodes)} "
        "(NVIDIA: label nvidia.com/gpu.deploy.device-plugin=false for the GPU operator's device plugin, or "
        "resources.gpus.enabled=false of the DRA driver's chart)"
    )
    return DeviceProblem(summary, advice)


def _twice_by_drivers(one: str, other: str, nodes: Sequence[str], classes: DeviceClasses) -> DeviceProblem:
    summary = f"devices of {_count_nodes(nodes)} are published twice, by {one} and by {other}"
    open_classes = sorted(name for name, spec in classes.items() if not any(map(_required, spec.selectors)))
    advice = f"two claims can get the same device: remove one of the drivers from {abbreviate_names(nodes)}"
    if open_classes:
        named = f"class{'es' if len(open_classes) > 1 else ''} {abbreviate_names(open_classes)}"
        advice = f"{advice}; {named} may take devices of both: write device.driver == '{one}' in a selector"
    return DeviceProblem(summary, advice)


def _count_nodes(nodes: Sequence[str]) -> str:
    return f"{len(nodes)} nodes" if len(nodes) > 1 else "1 node"


def _required(selector: DeviceSelector) -> str:
    return required_driver(selector.cel.expression)
