"""Judge objects from files with the same `decide` that the webhook calls.

`decide` judges the shaped pod, so one call gives what /mutate and /validate would say one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from webhook.audit.manifests import Entry, Passed
from webhook.audit.offline import without_guesses
from webhook.engine.decide import decide
from webhook.engine.limitrange import limited
from webhook.engine.templates import templates
from webhook.errors import Place, ReviewError
from webhook.model.cluster import ClusterView
from webhook.model.codes import CODES
from webhook.model.findings import Finding
from webhook.model.paths import Path, dotted
from webhook.model.pods import Pod, pod_of
from webhook.model.requests import Request
from webhook.model.stored import as_stored
from webhook.model.usage import UsageView
from webhook.policy.compiled import PolicySet
from webhook.report.results import Checked, Located, Verdict, skipped, verdict_of

POD = ("", "Pod")
DEFAULT_NAMESPACE = "default"
"""The namespace of objects that name none."""
NOT_A_WORKLOAD = "not a workload: it runs no pods"


class World(msgspec.Struct, frozen=True):
    """What objects are judged against.

    Attributes:
        namespace: For objects that name none.
        user: Username that the requests are made in.
    """

    policies: PolicySet
    view: ClusterView
    now: datetime
    usage: UsageView = UsageView()
    namespace: str = DEFAULT_NAMESPACE
    user: str = ""


def check_all(found: Iterable[Entry | Passed], world: World) -> Iterator[Checked]:
    """Judge what was found in files, in its order."""
    for each in found:
        if isinstance(each, Passed):
            yield skipped(each.place, each.reason, broken=each.broken)
        else:
            yield unread(each, world) or check(arriving(each, world), world)


def arriving(entry: Entry, world: World) -> Entry:
    """An object of a file as it comes to the webhook: a pod has been through LimitRanger once."""
    if (group_of(entry.data["apiVersion"]), entry.data["kind"]) != POD:
        return entry
    ranges = world.view.ranges(namespace_of(entry.data) or world.namespace)
    return msgspec.structs.replace(entry, data=limited(entry.data, ranges)) if ranges else entry


def unread(entry: Entry, world: World) -> Checked | None:
    """What is said of an object whose pods cannot be read; None where they can, or where it runs none."""
    kind = (group_of(entry.data["apiVersion"]), entry.data["kind"])
    if kind != POD and kind not in world.policies.templates:
        return None
    try:
        request = request_of(entry.data, world)
    except ReviewError as error:
        return _unreadable(entry, error)
    for each in templates(request, world.policies.templates.get(kind, ())):
        if each.error:
            return _unreadable(entry, ReviewError(f"{dotted(each.path)}: {each.error}", each.error_path))
    return _idle(entry)


def _idle(entry: Entry) -> Checked | None:
    """A Pod without containers, which no API server takes: a fault of the file, though no GPU is asked for."""
    spec = entry.data.get("spec")
    if (group_of(entry.data["apiVersion"]), entry.data["kind"]) != POD or not isinstance(spec, dict):
        return None
    containers = spec.get("containers")
    if containers is not None and (not isinstance(containers, list) or any(one is not None for one in containers)):
        return None
    sentence = "spec.containers: must have at least one container, found none. Write name and image of one"
    return _unreadable(entry, ReviewError(sentence, ("spec", "containers")))


def check(entry: Entry, world: World, *, operation: str = "CREATE") -> Checked:
    """Judge one object as if it were created now."""
    group_kind = (group_of(entry.data["apiVersion"]), entry.data["kind"])
    if group_kind != POD and group_kind not in world.policies.templates:
        return _no_workload(entry)
    try:
        request = request_of(entry.data, world, operation)
    except ReviewError as error:
        return _unreadable(entry, error)
    decision = decide(request, world.policies, world.view, world.usage, world.now)
    nodeless = not world.view.fleet.nodes
    if nodeless:
        decision = without_guesses(decision)
    if decision.denials:
        decision = msgspec.structs.replace(decision, gpu_milli_after=decision.gpu_milli_before)
    return msgspec.structs.replace(
        _head(entry),
        namespace=request.namespace,
        verdict=verdict_of(decision),
        findings=tuple(_located(found, entry, world.policies) for found in decision.findings),
        decision=decision,
        stored=request.load(),
        nodeless=nodeless,
    )


def request_of(data: dict[str, Any], world: World, operation: str = "CREATE") -> Request:
    """Make the request that the API server would send.

    Raises:
        ReviewError: it says it is a Pod and is not one.
    """
    metadata = _metadata(data)
    namespace = namespace_of(data) or world.namespace
    stored = as_stored(data, namespace)
    group, kind = group_of(data["apiVersion"]), data["kind"]
    return Request(
        operation=operation,
        group=group,
        kind=kind,
        namespace=namespace,
        name=_text(metadata, "name"),
        pod=_pod(stored) if (group, kind) == POD else None,
        load=lambda: stored,
        user=world.user,
    )


def not_a_pod(entry: Entry) -> Passed | None:
    """What says that it is a Pod and is not one, as a fault of its file; None where it can be read."""
    try:
        _metadata(entry.data)
        _pod(as_stored(entry.data, namespace_of(entry.data)))
    except ReviewError as error:
        return Passed(entry.place(error.path), error.sentence, broken=True)
    return None


def _metadata(data: dict[str, Any]) -> dict[str, Any]:
    metadata = data.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise ReviewError("metadata must be a map", ("metadata",), about="object: ")
    return metadata or {}


def namespace_of(data: dict[str, Any]) -> str:
    """The namespace that an object names; "" where it names none."""
    metadata = data.get("metadata")
    return _text(metadata, "namespace") if isinstance(metadata, dict) else ""


def group_of(api_version: str) -> str:
    """The API group of an apiVersion; "" for core."""
    group, slash, _ = api_version.rpartition("/")
    return group if slash else ""


def _pod(stored: dict[str, Any]) -> Pod:
    if not isinstance(stored.get("spec"), dict):
        raise ReviewError("spec: must be a map with containers", ("spec",), about="object: ")
    return pod_of(stored)


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _head(entry: Entry) -> Checked:
    metadata = entry.data.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    generated = _text(named, "generateName")
    return Checked(
        place=entry.place(),
        api_version=entry.data["apiVersion"],
        kind=entry.data["kind"],
        namespace=_text(named, "namespace"),
        name=_text(named, "name") or (f"{generated}*" if generated else "(no name)"),
        verdict=Verdict.SKIPPED,
    )


def _no_workload(entry: Entry) -> Checked:
    if not _has_containers(entry.data):
        return msgspec.structs.replace(_head(entry), reason=NOT_A_WORKLOAD, quiet=True)
    kind = entry.data["kind"]
    reason = f"no policy says where a {kind} keeps its pod templates: name them in spec.match.templates"
    return msgspec.structs.replace(_head(entry), reason=reason)


def _has_containers(data: Any) -> bool:
    """True if a list under the key `containers` is anywhere in the object."""
    stack = [data]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if isinstance(value.get("containers"), list):
                return True
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    return False


def _unreadable(entry: Entry, error: ReviewError) -> Checked:
    """An object that its kind's reader refuses."""
    return msgspec.structs.replace(_head(entry), place=entry.place(error.path), reason=error.sentence, broken=True)


def _located(found: Finding, entry: Entry, policies: PolicySet) -> Located:
    return Located(found, entry.place(_as_written(found.path, entry.data)), policy_place(found, policies))


def _as_written(path: Path, data: Any) -> Path:
    """The field as the file has it: a request that the API server filled in stands under limits."""
    if "requests" not in path or _is_there(path, data):
        return path
    return tuple("limits" if step == "requests" else step for step in path)


def _is_there(path: Path, data: Any) -> bool:
    for step in path:
        try:
            data = data[step]
        except (LookupError, TypeError):
            return False
    return True


KEYS = {
    "GPU-S": "security.deny",
    "GPU-L2": "limits.limitRanges",
    "GPU-Q303": "quotas.shared",
    "GPU-Q304": "quotas.shared",
    "GPU-Q": "limits.resourceQuotas",
    "GPU-C": "cuda.driver",
}
"""The key of a policy that speaks, where it is finer than its section, by the first letters of a code."""


def policy_place(found: Finding, policies: PolicySet) -> Place | None:
    """Where the words stand that a policy speaks by: a key, its section, or the policy."""
    policy = next((each for each in policies.policies if each.name == found.policy), None)
    if policy is None:
        return None
    section = CODES[found.code].section if found.code in CODES else ""
    key = next((key for letters, key in KEYS.items() if found.code.startswith(letters)), section)
    return policy.places.get(key) or policy.places.get(section, policy.place)
