"""The pods that come of what files and clusters hold, as the webhook would let them in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from webhook.audit.checking import World, arriving, check, request_of, unread
from webhook.audit.manifests import Entry, Passed
from webhook.audit.simulating import Coming
from webhook.engine.templates import miscounts
from webhook.engine.workloads import pods_of
from webhook.errors import ReviewError, shorten
from webhook.model.fleet import Fleet
from webhook.model.masks import bits
from webhook.model.paths import Path, dotted
from webhook.model.pods import Pod, Volume, pod_of
from webhook.placement.nodes.cluster import Wanted
from webhook.placement.nodes.daemons import as_daemon, homes
from webhook.report.diff import apply
from webhook.report.results import Checked, Verdict


def placeable(found: Iterable[Entry | Passed], world: World) -> Iterator[Entry | Passed]:
    """The same; an object whose pods cannot be read, or that no API server takes so many of, comes out as a fault."""
    for each in found:
        yield _fault(each, world) or each if isinstance(each, Entry) else each


def _fault(entry: Entry, world: World) -> Passed | None:
    said = unread(entry, world)
    return Passed(said.place, f"{said.title}: {said.reason}", broken=True) if said else _miscounted(entry, world)


def _miscounted(entry: Entry, world: World) -> Passed | None:
    try:
        request = request_of(entry.data, world)
    except ReviewError:
        return None
    faults = (
        fault for one, _, _ in pods_of(request, world.policies, world.view) for fault in miscounts(entry.data, one.path)
    )
    for path, value in faults:
        must = f"must be a whole number, 0 or more, found {shorten(repr(value))}"
        return Passed(entry.place(path), f"{dotted(path)}: {must}. Write how many there are to be", broken=True)
    return None


class Shaped(NamedTuple):
    """A pod that comes of an object, as the webhook would let it in.

    Attributes:
        checked: What was said of it.
        pod: The pod.
        replicas: How many there are of it.
        everywhere: True for one of a DaemonSet, which wants one on every node that lets it in: that many, and at
            least 1.
    """

    checked: Checked
    pod: Pod
    replicas: int = 1
    everywhere: bool = False


def shaped_pods(entry: Entry, world: World) -> Iterator[Shaped]:
    """The pods that come of an object that can be read; none of what runs no pods."""
    checked = check(arriving(entry, world), world)
    if checked.verdict is Verdict.SKIPPED:
        return
    if checked.kind == "Pod":
        yield Shaped(checked, pod_of(apply(checked.stored, checked.decision.patch)))
        return
    for template, coming, _ in pods_of(request_of(entry.data, world), world.policies, world.view):
        said = check(Entry(coming.load(), entry.document, entry.prefix), world)
        called = msgspec.structs.replace(said, name=f"{checked.name.removesuffix('-*')}-*")
        pod = _claiming(pod_of(apply(said.stored, said.decision.patch)), entry.data, template.path)
        yield _daemon(called, pod, world) if checked.kind == "DaemonSet" else Shaped(called, pod, template.replicas)


def _claiming(pod: Pod, workload: Mapping[str, Any], template: Path) -> Pod:
    """A pod of a template with the volumes that its controller adds, of the claims that it makes for each pod."""
    beside: Any = workload
    for step in template[:-1]:
        beside = beside[step]
    claims = beside.get("volumeClaimTemplates") if isinstance(beside, dict) else None
    if not isinstance(claims, list) or not claims:
        return pod
    volumes = (*pod.spec.volumes, *(Volume(persistent_volume_claim={"claimName": ""}) for _ in claims))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, volumes=volumes))


def _daemon(checked: Checked, template: Pod, world: World) -> Shaped:
    pod = as_daemon(template, on_host=checked.stored["spec"].get("hostNetwork") is True)
    return Shaped(checked, pod, max(1, homes(pod, world.view.fleet).bit_count()), everywhere=True)


def denials(checked: Checked) -> tuple[str, ...]:
    """The codes for which the webhook would refuse a pod; () where it lets it in."""
    return tuple(dict.fromkeys(finding.code for finding in checked.decision.denials))


def coming_of(shaped: Shaped, wanted: Wanted, fleet: Fleet) -> list[Coming]:
    """Its replicas as they come to a cluster; of a DaemonSet's, each wants the node that it is made for."""
    codes = denials(shaped.checked)
    refused = f"refused by the webhook: {', '.join(codes)}" if codes else ""
    nodes = list(bits(homes(shaped.pod, fleet))) if shaped.everywhere else []
    each = [Coming(msgspec.structs.replace(wanted, selected=1 << node), refused) for node in nodes]
    return each or [Coming(wanted, refused)] * shaped.replicas
