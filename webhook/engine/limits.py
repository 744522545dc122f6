"""Step 5, the policy's own limits: floors, ceilings and choices for a pod, a container, and each GPU.

What a pod takes is what it may take at one time (`model.effective.may_take`): sidecars run beside the main containers,
other init containers before them. Of GPUs only those count that are asked for: what a LimitRange put in breaks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from webhook.engine.asking import NOTHING, Asked
from webhook.engine.containers import Amounts, is_short
from webhook.engine.remarks import Remark
from webhook.engine.remedies import Bound, Speaking, nearest_fitting
from webhook.model.effective import limit_or_request, may_take
from webhook.model.paths import Path
from webhook.model.pods import Amount, Container, Pod, Resources
from webhook.model.quantity import NANO, written
from webhook.model.resources import gpu_resource
from webhook.policy.compiled import AmountRule, AmountRules, Limits


def breaches(
    limits: Limits,
    pod: Pod,
    asked: Asked,
    amounts: Amounts | None,
    *,
    gpus_aside: bool = False,
    sections: Sequence[Limits] = (),
) -> list[Remark]:
    """Everything a pod asks for that the section does not allow.

    Args:
        asked: What is held against rules about GPUs; names under nvidia.com/ that are no GPUs are like any other.
        amounts: Those of its containers, to remember what passes by; None where LimitRanges put some of them in.
        gpus_aside: True if the pod will ask for other GPUs, which `allows` has let pass: only the rest is judged.
        sections: Every section that speaks with no less force, this one among them: a fix satisfies them all.
    """
    key = (amounts, gpus_aside)
    if amounts and key in limits.passed and _by_containers(pod):
        return []
    found: list[Remark] = []
    speaking = Speaking(sections or (limits,), sum(asked.totals.values()), len(asked.asks) == 1)
    if limits.per_pod.rules:
        if not gpus_aside:
            _pod_gpus(limits.per_pod, asked, speaking, found)
        _pod_totals(limits.per_pod, pod, 1, speaking, found)
    if limits.per_container.rules:
        judged = NOTHING if gpus_aside else asked
        _containers(limits.per_container, "initContainers", pod.spec.init_containers, judged, speaking, found)
        _containers(limits.per_container, "containers", pod.spec.containers, judged, speaking, found)
    if limits.per_gpu.rules and speaking.devices:
        _pod_totals(limits.per_gpu, pod, speaking.devices, speaking, found)
    if not found and amounts and _by_containers(pod) and is_short(amounts):
        limits.passed.keep(key)
    return found


def _by_containers(pod: Pod) -> bool:
    """Do the containers alone say what the pod takes?"""
    return pod.spec.resources is None and not pod.spec.overhead


def allows(limits: Limits, resource: str) -> bool:
    """May a pod ask for one unit of a GPU resource? Asked before a rewrite."""
    about = (*limits.per_pod.of(resource), *limits.per_container.of(resource))
    return not any(_fault(rule, NANO, 1) for rule in about)


def _pod_gpus(rules: AmountRules, asked: Asked, speaking: Speaking, found: list[Remark]) -> None:
    for name, count in asked.totals.items():
        for rule in rules.of(name):
            if _fault(rule, count * NANO, 1):
                first = next(ask for ask in asked.asks if ask.resource.name == name)
                field = _field(first.path, first.container, name)
                found.append(_breach((rule, 1), name, count * NANO, field, "a pod's ", speaking.about_pod(name)))


def _pod_totals(rules: AmountRules, pod: Pod, times: int, speaking: Speaking, found: list[Remark]) -> None:
    """Hold what a pod takes of everything but GPUs (those are in the totals of what it asks for)."""
    for name in rules.names or _names(pod):
        about = rules.of(name)
        if about and gpu_resource(name) is None:
            amount = may_take(pod, name)
            for rule in about:
                if _fault(rule, amount, times):
                    field = _first_field(pod, name)
                    found.append(_breach((rule, times), name, amount, field, "a pod's ", speaking.about_pod(name)))


def _first_field(pod: Pod, name: str) -> Path:
    """The first field of a pod that adds to its total of a resource."""
    spec = pod.spec
    if spec.resources is not None and (name in spec.resources.limits or name in spec.resources.requests):
        return ("spec", "resources", "limits" if name in spec.resources.limits else "requests", name)
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, container in enumerate(containers):
            if name in container.resources.limits or name in container.resources.requests:
                return _field(("spec", kind, index), container, name)
    return ("spec", "overhead", name)


def _names(pod: Pod) -> dict[str, None]:
    """Every resource that a pod names somewhere, main containers first."""
    names: dict[str, None] = {}
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        names.update(dict.fromkeys(container.resources.limits))
        names.update(dict.fromkeys(container.resources.requests))
    if pod.spec.resources is not None:
        names.update(dict.fromkeys(pod.spec.resources.limits))
        names.update(dict.fromkeys(pod.spec.resources.requests))
    names.update(dict.fromkeys(pod.spec.overhead))
    return names


def _containers(
    rules: AmountRules,
    kind: str,
    containers: tuple[Container, ...],
    asked: Asked,
    speaking: Speaking,
    found: list[Remark],
) -> None:
    for index, container in enumerate(containers):
        resources = container.resources
        for name in resources.limits:
            _container(rules, container, ("spec", kind, index), name, asked, speaking, found)
        for name in resources.requests:
            if name not in resources.limits:
                _container(rules, container, ("spec", kind, index), name, asked, speaking, found)


def _container(
    rules: AmountRules,
    container: Container,
    path: Path,
    name: str,
    asked: Asked,
    speaking: Speaking,
    found: list[Remark],
) -> None:
    about = rules.of(name)
    if not about or (gpu_resource(name) is not None and not asked.holds(path, name)):
        return
    amount = limit_or_request(container.resources, name)
    for rule in about:
        if _fault(rule, amount, 1):
            field = _field(path, container, name)
            found.append(_breach((rule, 1), name, amount, field, "", speaking.about_container(name)))


def _field(path: Path, container: Container, name: str) -> Path:
    side = "limits" if name in container.resources.limits else "requests"
    return (*path, "resources", side, name)


def _fault(rule: AmountRule, amount: int, times: int) -> str | None:
    """The code of the first thing wrong with an amount; nothing asked for breaks no rule."""
    if not amount:
        return None
    if rule.max is not None and amount > rule.max * times:
        return "GPU-L103"
    if rule.min is not None and amount < rule.min * times:
        return "GPU-L101"
    if rule.allowed and amount not in [choice * times for choice in rule.allowed]:
        return "GPU-L102"
    return None


def _breach(bound: Bound, name: str, amount: int, path: Path, whose: str, together: Sequence[Bound]) -> Remark:
    """Say what a rule asks of an amount that breaks it, and what would satisfy all that speak together."""
    rule, times = bound
    code = _fault(rule, amount, times) or ""
    if code == "GPU-L103":
        must = f"at most {written((rule.max or 0) * times)}"
    elif code == "GPU-L101":
        must = f"at least {written((rule.min or 0) * times)}"
    else:
        must = f"one of {', '.join(written(choice * times) for choice in rule.allowed)}"
    each = f" ({times} GPUs)" if times > 1 else ""
    message = f"{whose}{name} must be {must}{each} (found {written(amount)})"
    return Remark(code, path, message, nearest_fitting(together, amount))


def defaults(limits: Limits, pod: Pod, asked: Asked) -> dict[int, dict[str, Amount]]:
    """Requests to add, by container index: what `default` gives to containers that ask for GPUs.

    Only a container that names the resource neither in limits nor in requests is given one, in a pod that does not
    say what it takes of it as a whole: no container may ask for more than that.
    """
    whole = _named(pod.spec.resources)
    additions: dict[int, dict[str, Amount]] = {}
    for ask in asked.asks:
        if ask.path[1] != "containers" or not ask.count:
            continue
        named = (*whole, *_named(ask.container.resources))
        each = [(rule, 1) for rule in limits.per_container.rules]
        for rule, times in (*each, *[(rule, ask.count) for rule in limits.per_gpu.rules]):
            name = rule.resource
            if rule.default is not None and name not in named:
                index = ask.path[2]
                assert isinstance(index, int)
                additions.setdefault(index, {})[name] = written(rule.default * times)
    return additions


def _named(resources: Resources | None) -> tuple[str, ...]:
    return (*resources.limits, *resources.requests) if resources is not None else ()
