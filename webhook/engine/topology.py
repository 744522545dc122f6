"""Step 6, topology: GPUs of one container that NVLink joins, and pods of one workload in one NVLink domain.

Affinity says it to every scheduler, as far as labels go; the annotation `rightslice.dev/topology` says it to the
extender, which knows each link. Several nodes that form one NVLink domain share a label value, by default
`nvidia.com/gpu.clique`.
"""

from __future__ import annotations

from webhook.engine.asking import Ask
from webhook.engine.case import Case
from webhook.engine.hints import added_remark, required_already
from webhook.engine.links import MOST_JOINED, Linked, linked
from webhook.engine.reach import Reach
from webhook.engine.remarks import Remark
from webhook.engine.shape import Json, Shape
from webhook.engine.siblings import workload_label, workload_selector
from webhook.model.gangs import MOST, misread_size
from webhook.model.masks import union
from webhook.model.modes import Form, Mode
from webhook.model.pods import Pod, Requirement
from webhook.model.records import GANG_SIZE, TOPOLOGY
from webhook.model.resources import WHOLE_GPU
from webhook.policy.compiled import NVLink, Topology

WEIGHT = 50
"""Half of the scale: nearness to other GPUs should not silence what the user prefers."""

REPLICATED = frozenset({"pod-template-hash", "controller-revision-hash"})
"""Labels of workloads whose pods are copies that do not talk to each other, as those of a Job do."""

SAID = {f"nvlink={each}": each for each in NVLink}
REQUIRED = f"nvlink={NVLink.REQUIRED}"


def locality(section: Topology, shape: Shape, case: Case) -> list[Remark]:
    """Steer pods whose GPUs talk to each other to nodes that link them."""
    if shape.fit is not None or case.asked.largest < section.when_gpus_at_least:
        return []
    whole = [ask for ask in case.asked.asks if ask.resource.name == WHOLE_GPU]
    largest = max(whole, key=lambda ask: ask.count, default=None)
    if largest is None or largest.count < section.when_gpus_at_least:
        return []
    wanted = _wanted(section, case.pod)
    if wanted is NVLink.IGNORED:
        return []
    allowed = case.reach.narrowed(shape.required)
    nodes = allowed & case.reach.tolerated
    found = linked(largest.count, case.with_all_units(nodes & _with_all_cards(case)), case.view.fleet)
    if wanted is NVLink.REQUIRED and not case.leaves_one(found.nodes, allowed):
        return [_no_links(largest, case)] if _whole_cards(case.reach) else []
    before = len(shape.changed)
    if wanted is NVLink.REQUIRED:
        _require(found, shape)
    elif found.nodes != nodes & _whole_cards(case.reach):
        _prefer(found, shape)
    _domain(section, wanted, found, shape, case.reach)
    _say(wanted, shape)
    added = shape.changed[before:]
    return [added_remark(section.mode, added)] if added else []


def misread(pod: Pod) -> tuple[Remark, ...]:
    """Where a pod says what its GPUs need, or how many pods belong together, in words that nobody understands."""
    if not pod.metadata.annotations:
        return ()
    said, size = pod.metadata.annotations.get(TOPOLOGY), misread_size(pod)
    found = []
    if said is not None and said not in SAID:
        found.append(_misread(TOPOLOGY, said, ", ".join(SAID), "Write nvlink=preferred."))
    if size is not None:
        found.append(_misread(GANG_SIZE, size, f"a number of pods from 1 to {MOST}", 'Write "4" for four pods.'))
    return tuple(found)


def _misread(key: str, said: str, must: str, fix: str) -> Remark:
    message = f"must be {must} (found {said[:60]!r}), so it is as if it were not there"
    return Remark("GPU-R104", ("metadata", "annotations", key), message, fix, Mode.WARN)


def _wanted(section: Topology, pod: Pod) -> NVLink:
    """What the policy asks for; a pod's own word counts where the policy leaves it a choice."""
    if section.nvlink is not NVLink.PREFERRED:
        return section.nvlink
    return SAID.get(pod.metadata.annotations.get(TOPOLOGY, ""), section.nvlink)


def _with_all_cards(case: Case) -> int:
    """Mask of the nodes with as many `nvidia.com/gpu` as all containers need."""
    return case.view.fleet.with_units(WHOLE_GPU, case.asked.totals[WHOLE_GPU])


def _whole_cards(reach: Reach) -> int:
    """Mask of the nodes on which `nvidia.com/gpu` is a whole card."""
    offers = reach.view.fleet.by_resource.get(WHOLE_GPU, ())
    return union(offer.nodes for offer in offers if offer.form is Form.WHOLE)


def _require(found: Linked, shape: Shape) -> None:
    missing = [rule for rule in found.rules if rule not in shape.required and not required_already(shape.pod, rule)]
    if missing:
        shape.required += missing
        shape.note("nodeAffinity")


def _prefer(found: Linked, shape: Shape) -> None:
    wish = _wish(found.rules)
    if found.nodes and wish not in shape.preferred and not _preferred_already(shape.pod, found.rules):
        shape.preferred.append(wish)
        shape.note("nodeAffinity")


def _no_links(ask: Ask, case: Case) -> Remark:
    field, reach, total = (*ask.path, "resources", "limits", WHOLE_GPU), case.reach, case.asked.totals[WHOLE_GPU]
    nodes, fleet = reach.selected & reach.tolerated, case.view.fleet
    if linked(ask.count, nodes & _with_all_cards(case), fleet).nodes:
        message = f"{ask.count} GPUs must be linked by NVLink, and no node that links so many could take the whole pod"
        fix = "Ask for less beside these GPUs, or ask the admin for nvlink: preferred."
        return Remark("GPU-T301", field, message, fix, at_most=Mode.WARN)
    if ask.count < total and linked(ask.count, nodes, fleet).nodes:
        message = f"of {total} GPUs {ask.count} must be linked by NVLink, and no node that links so many has {total}"
        fix = "Ask for fewer GPUs in all containers together, or ask the admin for nvlink: preferred."
        return Remark("GPU-T301", field, message, fix, at_most=Mode.WARN)
    most = _most_linked(ask.count, reach)
    fix = f"Ask for at most {most} GPUs." if most > 1 else "Ask the admin for nvlink: preferred."
    message = f"{ask.count} GPUs must be linked by NVLink, and no node that this pod may use links so many"
    return Remark("GPU-T301", field, message, fix, at_most=Mode.WARN)


def _most_linked(count: int, reach: Reach) -> int:
    """The most GPUs below a count that some node links, as far as labels say."""
    fleet, nodes = reach.view.fleet, reach.selected & reach.tolerated
    count = min(count - 1, fleet.most(WHOLE_GPU, nodes), MOST_JOINED)
    return next((fewer for fewer in range(count, 1, -1) if linked(fewer, nodes, fleet).nodes), 0)


def _wish(rules: tuple[Requirement, ...]) -> Json:
    expressions = [{"key": rule.key, "operator": rule.operator, "values": list(rule.values)} for rule in rules]
    return {"weight": WEIGHT, "preference": {"matchExpressions": expressions}}


def _preferred_already(pod: Pod, rules: tuple[Requirement, ...]) -> bool:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    wishes = affinity.preferred if affinity else ()
    return any(set(rules) <= set(wish.preference.match_expressions) for wish in wishes)


def _domain(section: Topology, wanted: NVLink, found: Linked, shape: Shape, reach: Reach) -> None:
    """Keep the pods of one workload in one NVLink domain: where they can be, or where they must, in none other."""
    selector = workload_selector(shape.pod) if section.multi_node_domain else None
    if selector is None:
        return
    term = {"topologyKey": section.multi_node_domain, "labelSelector": selector}
    affinity = shape.pod.spec.affinity.pod_affinity if shape.pod.spec.affinity else None
    talk = workload_label(shape.pod) not in REPLICATED
    if wanted is NVLink.REQUIRED and talk and found.nodes & reach.view.fleet.carrying_label(section.multi_node_domain):
        if term not in (affinity.required if affinity else ()) and term not in shape.together:
            shape.together.append(term)
            shape.note("podAffinity")
        return
    wish = {"weight": WEIGHT, "podAffinityTerm": term}
    if wish not in (affinity.preferred if affinity else ()) and wish not in shape.near:
        shape.near.append(wish)
        shape.note("podAffinity")


def _say(wanted: NVLink, shape: Shape) -> None:
    """Tell the extender. What the user wrote stays."""
    said = f"nvlink={wanted}"
    if TOPOLOGY in shape.pod.metadata.annotations or shape.annotations.get(TOPOLOGY) in (said, REQUIRED):
        return
    shape.annotations[TOPOLOGY] = said
    shape.note("topology")
