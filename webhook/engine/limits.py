"""Step 5, the policy's own limits: floors, ceilings and choices for a pod, a container, and each GPU.

What a pod takes is what it may take at one time (`model.effective.may_take`): sidecars run beside the main containers,
other init containers before them. Of GPUs only those count that are asked for: what a LimitRange put in breaks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from webhook.engine.gpu_requests import NO_GPU_REQUESTS, PodGpuRequests
from webhook.engine.violations import Violation
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.pod_amounts import ContainerAmounts, is_cacheable
from webhook.model.pod_resources import limit_or_request, max_consumption
from webhook.model.pods import Container, Pod, QuantityText, ResourceRequirements
from webhook.model.quantity import NANO, format_nano
from webhook.policy.policy_set import AmountRule, AmountRuleSet, LimitRules

AmountBound = tuple[AmountRule, int]
"""A rule, and what its amounts are multiplied by."""


class BindingLimits(NamedTuple):
    """What a fix has to satisfy: every section that speaks about the pod, and how many devices the pod asks for.

    Attributes:
        alone: True if one container asks for all the GPUs, so that its amount is the pod's.
    """

    sections: Sequence[LimitRules]
    devices: int
    single_container: bool

    def pod_bounds(self, name: str) -> list[AmountBound]:
        """The rules over a pod's total of a resource, with what their amounts are multiplied by."""
        found = [(rule, 1) for section in self.sections for rule in section.per_pod.rules_for(name)]
        if parse_gpu_resource(name) is not None:
            return found + self._each_container_bounds(name) if self.single_container else found
        per_gpu = (
            [rule for section in self.sections for rule in section.per_gpu.rules_for(name)] if self.devices else []
        )
        return found + [(rule, self.devices) for rule in per_gpu]

    def container_bounds(self, name: str) -> list[AmountBound]:
        """The same over what one container asks for."""
        if self.single_container and parse_gpu_resource(name) is not None:
            return self.pod_bounds(name)
        return self._each_container_bounds(name)

    def _each_container_bounds(self, name: str) -> list[AmountBound]:
        return [(rule, 1) for section in self.sections for rule in section.per_container.rules_for(name)]


def find_limit_violations(
    limits: LimitRules,
    pod: Pod,
    asked: PodGpuRequests,
    amounts: ContainerAmounts | None,
    *,
    gpus_aside: bool = False,
    sections: Sequence[LimitRules] = (),
) -> list[Violation]:
    """Everything a pod asks for that the section does not allow.

    Args:
        asked: What is held against rules about GPUs; names under nvidia.com/ that are no GPUs are like any other.
        amounts: Those of its containers, to remember what passes by; None where LimitRanges put some of them in.
        gpus_aside: True if the pod will ask for other GPUs, which `allows_resource` has let pass: only the rest is
        judged.
        sections: Every section that speaks with no less force, this one among them: a fix satisfies them all.
    """
    key = (amounts, gpus_aside)
    if amounts and key in limits.passed_checks and _is_sized_by_containers(pod):
        return []
    found: list[Violation] = []
    speaking = BindingLimits(sections or (limits,), sum(asked.totals.values()), len(asked.requests) == 1)
    if limits.per_pod.rules:
        if not gpus_aside:
            _check_pod_gpus(limits.per_pod, asked, speaking, found)
        _check_pod_totals(limits.per_pod, pod, 1, speaking, found)
    if limits.per_container.rules:
        judged = NO_GPU_REQUESTS if gpus_aside else asked
        _check_containers(limits.per_container, "initContainers", pod.spec.init_containers, judged, speaking, found)
        _check_containers(limits.per_container, "containers", pod.spec.containers, judged, speaking, found)
    if limits.per_gpu.rules and speaking.devices:
        _check_pod_totals(limits.per_gpu, pod, speaking.devices, speaking, found)
    if not found and amounts and _is_sized_by_containers(pod) and is_cacheable(amounts):
        limits.passed_checks.remember(key)
    return found


def _is_sized_by_containers(pod: Pod) -> bool:
    """Do the containers alone say what the pod takes?"""
    return pod.spec.resources is None and not pod.spec.overhead


def allows_resource(limits: LimitRules, resource: str) -> bool:
    """May a pod ask for one unit of a GPU resource? Asked before a rewrite."""
    about = (*limits.per_pod.rules_for(resource), *limits.per_container.rules_for(resource))
    return not any(_violated_code(rule, NANO, 1) for rule in about)


def _check_pod_gpus(
    rules: AmountRuleSet, asked: PodGpuRequests, speaking: BindingLimits, found: list[Violation]
) -> None:
    for name, count in asked.totals.items():
        for rule in rules.rules_for(name):
            if _violated_code(rule, count * NANO, 1):
                first = next(ask for ask in asked.requests if ask.resource.name == name)
                field = _amount_field(first.path, first.container, name)
                found.append(
                    _limit_violation((rule, 1), name, count * NANO, field, "a pod's ", speaking.pod_bounds(name))
                )


def _check_pod_totals(
    rules: AmountRuleSet, pod: Pod, times: int, speaking: BindingLimits, found: list[Violation]
) -> None:
    """Hold what a pod takes of everything but GPUs (those are in the totals of what it asks for)."""
    for name in rules.names or _resource_names_of_pod(pod):
        about = rules.rules_for(name)
        if about and parse_gpu_resource(name) is None:
            amount = max_consumption(pod, name)
            for rule in about:
                if _violated_code(rule, amount, times):
                    field = _first_field_of(pod, name)
                    found.append(
                        _limit_violation((rule, times), name, amount, field, "a pod's ", speaking.pod_bounds(name))
                    )


def _first_field_of(pod: Pod, name: str) -> FieldPath:
    """The first field of a pod that adds to its total of a resource."""
    spec = pod.spec
    if spec.resources is not None and (name in spec.resources.limits or name in spec.resources.requests):
        return ("spec", "resources", "limits" if name in spec.resources.limits else "requests", name)
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, container in enumerate(containers):
            if name in container.resources.limits or name in container.resources.requests:
                return _amount_field(("spec", kind, index), container, name)
    return ("spec", "overhead", name)


def _resource_names_of_pod(pod: Pod) -> dict[str, None]:
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


def _check_containers(
    rules: AmountRuleSet,
    kind: str,
    containers: tuple[Container, ...],
    asked: PodGpuRequests,
    speaking: BindingLimits,
    found: list[Violation],
) -> None:
    for index, container in enumerate(containers):
        resources = container.resources
        for name in resources.limits:
            _check_container(rules, container, ("spec", kind, index), name, asked, speaking, found)
        for name in resources.requests:
            if name not in resources.limits:
                _check_container(rules, container, ("spec", kind, index), name, asked, speaking, found)


def _check_container(
    rules: AmountRuleSet,
    container: Container,
    path: FieldPath,
    name: str,
    asked: PodGpuRequests,
    speaking: BindingLimits,
    found: list[Violation],
) -> None:
    about = rules.rules_for(name)
    if not about or (parse_gpu_resource(name) is not None and not asked.includes(path, name)):
        return
    amount = limit_or_request(container.resources, name)
    for rule in about:
        if _violated_code(rule, amount, 1):
            field = _amount_field(path, container, name)
            found.append(_limit_violation((rule, 1), name, amount, field, "", speaking.container_bounds(name)))


def _amount_field(path: FieldPath, container: Container, name: str) -> FieldPath:
    side = "limits" if name in container.resources.limits else "requests"
    return (*path, "resources", side, name)


def _violated_code(rule: AmountRule, amount: int, times: int) -> str | None:
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


def _limit_violation(
    bound: AmountBound, name: str, amount: int, path: FieldPath, whose: str, together: Sequence[AmountBound]
) -> Violation:
    """Say what a rule asks of an amount that breaks it, and what would satisfy all that speak together."""
    rule, times = bound
    code = _violated_code(rule, amount, times) or ""
    if code == "GPU-L103":
        must = f"at most {format_nano((rule.max or 0) * times)}"
    elif code == "GPU-L101":
        must = f"at least {format_nano((rule.min or 0) * times)}"
    else:
        must = f"one of {', '.join(format_nano(choice * times) for choice in rule.allowed)}"
    each = f" ({times} GPUs)" if times > 1 else ""
    message = f"{whose}{name} must be {must}{each} (found {format_nano(amount)})"
    return Violation(code, path, message, nearest_allowed_amounts(together, amount))


def policy_default_requests(limits: LimitRules, pod: Pod, asked: PodGpuRequests) -> dict[int, dict[str, QuantityText]]:
    """Requests to add, by container index: what `default` gives to containers that ask for GPUs.

    Only a container that names the resource neither in limits nor in requests is given one, in a pod that does not
    say what it takes of it as a whole: no container may ask for more than that.
    """
    whole = _named_resources_of(pod.spec.resources)
    additions: dict[int, dict[str, QuantityText]] = {}
    for ask in asked.requests:
        if ask.path[1] != "containers" or not ask.count:
            continue
        named = (*whole, *_named_resources_of(ask.container.resources))
        each = [(rule, 1) for rule in limits.per_container.rules]
        for rule, times in (*each, *[(rule, ask.count) for rule in limits.per_gpu.rules]):
            name = rule.resource
            if rule.default is not None and name not in named:
                index = ask.path[2]
                assert isinstance(index, int)
                additions.setdefault(index, {})[name] = format_nano(rule.default * times)
    return additions


def _named_resources_of(resources: ResourceRequirements | None) -> tuple[str, ...]:
    return (*resources.limits, *resources.requests) if resources is not None else ()


def nearest_allowed_amounts(together: Sequence[AmountBound], amount: int) -> str:
    """One sentence with the nearest amounts above and below that every rule allows."""
    least = max((rule.min * times for rule, times in together if rule.min is not None), default=0)
    most = min((rule.max * times for rule, times in together if rule.max is not None), default=None)
    listed = [{choice * times for choice in rule.allowed} for rule, times in together if rule.allowed]
    choices = set.intersection(*listed) if listed else {least if most is None or amount < least else most}
    fitting = [choice for choice in choices if choice >= least and (most is None or choice <= most)]
    above = min((choice for choice in fitting if choice > amount), default=None)
    below = max((choice for choice in fitting if choice < amount), default=None)
    words = [format_nano(choice) for choice in (above, below) if choice is not None]
    return f"Write {', or '.join(words)}." if words else "No amount suits every policy that speaks: ask the admin."
