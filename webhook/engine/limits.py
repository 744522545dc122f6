"""Check the limits of a policy, which bound amounts per pod, container and GPU, and compute its default requests.

A pod's amount of a resource is the most that it can use at one time (`pod_resources.max_consumption`). A sum of GPUs
adds the amounts of all names, also of those that init containers use at another time. Injected GPUs do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from webhook.engine.amount_bounds import (
    AmountBound,
    bounds_of_gpus,
    describe_bound,
    nearest_allowed_amounts,
    nearest_amounts,
    violated_code,
)
from webhook.engine.claimed_gpus import NO_CLAIMED_GPUS, ClaimedGpus, RequestAlternatives, units_of_requests
from webhook.engine.gpu_requests import NO_GPU_REQUESTS, PodGpuRequests, init_then_main_containers
from webhook.engine.limit_sums import NO_RULES, GpuCounts, sum_violations, summing_rules
from webhook.engine.policy_findings import PolicyFinding
from webhook.errors import abbreviate_names
from webhook.model.annotations import KEEP_ANNOTATION
from webhook.model.dra.extended_resources import field_of_amount, requested_units
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import SHARED_SUFFIX, WHOLE_GPU, parse_gpu_resource
from webhook.model.pod_amounts import ContainerAmounts
from webhook.model.pod_resources import find_unreadable_amounts, limit_or_request, max_consumption
from webhook.model.pods import Container, Pod, PodSpec, QuantityText, ResourceRequirements
from webhook.model.quantity import NANO, format_nano, parse_whole_number, suggest_quantity
from webhook.policy.policy_set import AmountRule, AmountRuleSet, LimitRules

GPU_PREFIXES = ("nvidia.com/", "amd.com/")
"""Prefixes of the names under which GPUs of claims count."""

EXCLUDE_SHARES = "For whole devices only, write !device.allowMultipleAllocations in a selector."


class BindingLimits(NamedTuple):
    """The limits that a fix has to satisfy.

    Attributes:
        sections: Every section that applies to the pod with the same or a stricter mode.
        devices: The number of GPUs that the pod requests.
        single_container: True if one container requests all the GPUs, so that its amount is the pod's.
    """

    sections: Sequence[LimitRules]
    devices: int
    single_container: bool

    def pod_bounds(self, name: str) -> list[AmountBound]:
        """Return the bounds of a pod's total of a resource other than GPUs."""
        bounds = [(rule, 1) for section in self.sections for rule in section.per_pod.rules_for(name)]
        if not self.devices:
            return bounds
        return bounds + [(rule, self.devices) for each in self.sections for rule in each.per_gpu.rules_for(name)]

    def container_bounds(self, name: str) -> list[AmountBound]:
        """Return the bounds of one container's amount of a resource other than GPUs."""
        return [(rule, 1) for section in self.sections for rule in section.per_container.rules_for(name)]

    def pod_gpu_rules(self) -> list[AmountRule]:
        """Return the rules for the GPUs of a pod."""
        rules = [rule for section in self.sections for rule in section.per_pod.rules]
        return rules + self._each_container_rules() if self.single_container else rules

    def container_gpu_rules(self) -> list[AmountRule]:
        """Return the rules for the GPUs of one container."""
        return self.pod_gpu_rules() if self.single_container else self._each_container_rules()

    def _each_container_rules(self) -> list[AmountRule]:
        return [rule for section in self.sections for rule in section.per_container.rules]


def find_limit_violations(
    limits: LimitRules,
    pod: Pod,
    gpu_requests: PodGpuRequests,
    amounts: ContainerAmounts | None,
    *,
    skip_gpu_amounts: bool = False,
    sections: Sequence[LimitRules] = (),
    claimed: ClaimedGpus = NO_CLAIMED_GPUS,
) -> list[PolicyFinding]:
    """Return every amount of a pod that a section does not allow.

    Args:
        gpu_requests: The GPU requests that count.
        claimed: The GPUs of claims and device classes, which count too.
        amounts: The pod's amounts as a cache key for accepted pods; None if LimitRanges set some of them.
        skip_gpu_amounts: True if GPU amounts are not checked: the pod will request other GPUs, which
            `allows_resource` has accepted, or it is resized, which changes no GPUs.
        sections: Every section that applies with the same or a stricter mode, including this one: a fix satisfies all.
    """
    key: tuple[object, ...] | None = None
    if amounts and pod.spec.resources is None and not pod.spec.overhead:
        key = (
            amounts,
            skip_gpu_amounts,
            claimed.requests_key(pod.spec) if claimed is not NO_CLAIMED_GPUS else (),
        )
        if key in limits.passed_checks:
            return []
    violations: list[PolicyFinding] = []
    devices = sum(gpu_requests.totals.values()) + claimed.devices
    binding = BindingLimits(sections or (limits,), devices, len(gpu_requests.containers) == 1 and not claimed.devices)
    if limits.per_pod.rules:
        if not skip_gpu_amounts:
            violations += _check_pod_gpus(limits.per_pod, pod, gpu_requests, claimed, binding)
        violations += _check_pod_totals(limits.per_pod, pod, 1, binding)
    if limits.per_container.rules:
        counted = NO_GPU_REQUESTS if skip_gpu_amounts else gpu_requests
        violations += _check_containers(limits.per_container, pod.spec, counted, claimed, binding)
    if limits.per_gpu.rules and binding.devices:
        violations += _check_pod_totals(limits.per_gpu, pod, binding.devices, binding)
    violations += unreadable_amount_violations(pod)
    if violations and claimed.units and (before := claimed.before_sizing()) is not claimed:
        forbidden = [name for name in claimed.units if not allows_resource(limits, name)]
        denying = find_limit_violations(
            limits, pod, gpu_requests, None, skip_gpu_amounts=skip_gpu_amounts, sections=sections, claimed=before
        )
        return violations if forbidden else _warn_of_sizing(violations, denying)
    if not violations and key is not None:
        limits.passed_checks.store(key, True)
    return violations


def _warn_of_sizing(violations: Sequence[PolicyFinding], before: Sequence[PolicyFinding]) -> list[PolicyFinding]:
    """Return what denied a pod before its claims were right-sized, and the rest as warnings: it must stay allowed."""
    about = "; a warning, because its claims as requested are allowed"
    fix = f'To keep what a claim requests, annotate it, or its template, with {KEEP_ANNOTATION}: "true".'
    more = (one for one in violations if one not in before)
    return [*before, *[replace(one, message=one.message + about, fix=fix, at_most=PolicyMode.WARN) for one in more]]


def unreadable_amount_violations(pod: Pod) -> Iterator[PolicyFinding]:
    """Yield every amount that cannot be computed and would count as zero, except GPUs, which are always checked."""
    for path, amount, error in find_unreadable_amounts(pod):
        if parse_gpu_resource(str(path[-1])) is None:
            fix = "Write an amount of at most 64 bits." if error.is_quantity else suggest_quantity(amount)
            yield PolicyFinding("GPU-L106", path, str(error), fix)


def allows_resource(limits: LimitRules, resource: str) -> bool:
    """Return whether the limits allow one unit of a GPU resource in a pod."""
    rules = (*limits.per_pod.rules_for(resource), *limits.per_container.rules_for(resource))
    return not any(violated_code(rule, NANO, 1) for rule in rules)


def policy_default_requests(
    limits: LimitRules, pod: Pod, gpu_requests: PodGpuRequests
) -> dict[int, dict[str, QuantityText]]:
    """Return the default requests of containers that request GPUs, by container index.

    A container gets one only for a resource that neither it nor the pod level names: no container may request more
    than the pod level.
    """
    whole = _named_resources_of(pod.spec.resources)
    additions: dict[int, dict[str, QuantityText]] = {}
    for request in gpu_requests.requests:
        if request.path[1] != "containers" or not request.count:
            continue
        named = (*whole, *_named_resources_of(request.container.resources))
        each = [(rule, 1) for rule in limits.per_container.rules]
        for rule, times in (*each, *[(rule, request.count) for rule in limits.per_gpu.rules]):
            name = rule.resource
            if rule.default is not None and name not in named:
                index = request.path[2]
                assert isinstance(index, int)
                additions.setdefault(index, {})[name] = format_nano(rule.default * times)
    return additions


def _amounts_beside_claims(bounds: Sequence[AmountBound], amount: int, others: int, way: str) -> str:
    """Return what to request in a way, or else by the name in a field, so that it is allowed together with the others.

    Args:
        others: What is requested in other ways.
        way: "claims" or "device classes"; "" for the name in a field.
    """
    left = [one - others for one in nearest_amounts(bounds, amount) if one >= others]
    written = ", or ".join(format_nano(one) for one in left if one)
    if way:
        return f"By all {way} together, request {written}." if written else f"Request none by {way}."
    if not written:
        return "Remove it." if left else "Request fewer by claims."
    return f"Write {written}{', or remove it' if 0 in left else ''}."


def unknown_claim_violations(limits: LimitRules, claimed: ClaimedGpus) -> Iterator[PolicyFinding]:
    """Yield the claims of a pod that cannot be checked yet, if the limits bound GPUs."""
    if limits.per_gpu.rules or any(map(_bounds_gpus, (*limits.per_pod.rules, *limits.per_container.rules))):
        for one in claimed.missing:
            message = f"limits of GPUs cannot be checked: the {one.text} is not known"
            yield PolicyFinding("GPU-L108", one.path, message, one.fix)


def _bounds_gpus(rule: AmountRule) -> bool:
    return rule.matches(WHOLE_GPU) or rule.resource.startswith(GPU_PREFIXES)


_KindViolation = tuple[str, PolicyFinding]
"""The name of a kind of device, and a violation by devices of this kind."""


def _join_kinds(found: Iterable[_KindViolation], claimed: ClaimedGpus) -> Iterator[PolicyFinding]:
    """Yield violations, as one those in which a request that may get several kinds of devices differs in these only."""
    alike: dict[PolicyFinding, list[str]] = {}
    for name, one in found:
        alike.setdefault(replace(one, message=one.message.replace(name, "{}", 1)), []).append(name)
    for one, names in alike.items():
        are_shares = all(map(_is_share, names)) and _way_of_request(one.path) == "claims"
        fix = f"{one.fix} {EXCLUDE_SHARES}" if are_shares and _may_exclude_shares(names, claimed) else one.fix
        yield replace(one, message=one.message.replace("{}", abbreviate_names(names), 1), fix=fix)


def _is_share(name: str) -> bool:
    return name.endswith(SHARED_SUFFIX)


def _may_exclude_shares(names: Sequence[str], claimed: ClaimedGpus) -> bool:
    """Return whether each request of claims that may get shares of some names may get other devices instead."""
    giving = [one.units for some in claimed.claims.values() for one in some if not one.units.keys().isdisjoint(names)]
    return not any(all(map(_is_share, units)) for units in giving)


def _check_pod_gpus(
    rules: AmountRuleSet, pod: Pod, gpu_requests: PodGpuRequests, claimed: ClaimedGpus, binding: BindingLimits
) -> Iterator[PolicyFinding]:
    totals: Mapping[str, int] = gpu_requests.totals or claimed.units
    if gpu_requests.totals and claimed.units:
        totals = Counter(gpu_requests.totals) + Counter(claimed.units)
    summed = NO_RULES
    if rules.globs and len(totals) > 1:
        counts = GpuCounts(gpu_requests.totals, claimed.requests_of_pod(pod) if claimed.units else ())
        if summed := summing_rules(rules, counts):
            field_of = partial(_field_of_gpu, gpu_requests, claimed)
            yield from sum_violations(summed, counts, "a pod's {}", field_of, binding.pod_gpu_rules())
    yield from _join_kinds(_check_gpus_by_name(rules, totals, gpu_requests, claimed, binding, summed), claimed)


def _check_gpus_by_name(
    rules: AmountRuleSet,
    totals: Mapping[str, int],
    gpu_requests: PodGpuRequests,
    claimed: ClaimedGpus,
    binding: BindingLimits,
    summed: Sequence[AmountRule],
) -> Iterator[_KindViolation]:
    for name, count in totals.items():
        for rule in rules.rules_for(name):
            if rule not in summed and violated_code(rule, count * NANO, 1):
                field = _field_of_gpu(gpu_requests, claimed, name)
                way = _way_of_request(claimed.fields[name]) if name in claimed.units else ""
                subject = f"a pod's {name}{f' with {way}' if way else ''}"
                of_claims, bounds = claimed.units.get(name, 0), bounds_of_gpus(binding.pod_gpu_rules(), name, totals)
                found = _limit_violation((rule, 1), subject, count * NANO, field, bounds)
                yield name, _with_fix_beside_claims(found, name, count, of_claims, bounds)


def _field_of_gpu(gpu_requests: PodGpuRequests, claimed: ClaimedGpus, name: str) -> FieldPath:
    """Return the first field of a pod that requests GPUs of a name."""
    first = next((one for one in gpu_requests.requests if one.resource.name == name), None)
    return claimed.fields[name] if first is None else _amount_field(first.path, first.container, name)


def _with_fix_beside_claims(
    found: PolicyFinding, name: str, count: int, of_claims: int, bounds: Sequence[AmountBound]
) -> PolicyFinding:
    """Return a violation whose fix is for its field alone: claims, or the name beside which claims count too."""
    if not of_claims or not nearest_amounts(bounds, count * NANO):
        return found
    way = "" if found.path[-1] == name else _way_of_request(found.path)
    others = count - of_claims if way else of_claims
    return replace(found, fix=_amounts_beside_claims(bounds, count * NANO, others * NANO, way))


def _way_of_request(field: FieldPath) -> str:
    return "claims" if field[-1] == "claims" or field[-2] == "resourceClaims" else "device classes"


def _check_containers(
    rules: AmountRuleSet, spec: PodSpec, gpu_requests: PodGpuRequests, claimed: ClaimedGpus, binding: BindingLimits
) -> Iterator[PolicyFinding]:
    requested = gpu_requests.fields()
    sums_gpus = bool(rules.globs) and bool(requested or claimed.units)
    for path, container in init_then_main_containers(spec):
        summed = NO_RULES
        if sums_gpus:
            counts = _gpus_of_container(container, path, gpu_requests, claimed)
            if summed := summing_rules(rules, counts):
                field_of = partial(_field_in_container, container, path, claimed)
                yield from sum_violations(summed, counts, "{}", field_of, binding.container_gpu_rules())
        bounds_of = partial(_bounds_in_container, container, path, gpu_requests, claimed, binding)
        yield from _check_container(rules, container, path, requested, bounds_of, summed)
        if claimed.units:
            of_claims = _check_claims_of_container(rules, container, path, claimed, bounds_of, summed)
            yield from _join_kinds(of_claims, claimed)
    if claimed.claims:
        yield from _check_unused_claims(rules, spec, claimed, binding)


def _gpus_of_container(
    container: Container, path: FieldPath, gpu_requests: PodGpuRequests, claimed: ClaimedGpus
) -> GpuCounts:
    named = {one.resource.name: one.count for one in gpu_requests.requests if one.path == path}
    return GpuCounts(named, claimed.requests_of_container(container) if claimed.units else ())


def _bounds_in_container(
    container: Container,
    path: FieldPath,
    gpu_requests: PodGpuRequests,
    claimed: ClaimedGpus,
    binding: BindingLimits,
    name: str,
) -> list[AmountBound]:
    """Return the bounds of a container's amount of a resource that a fix has to satisfy."""
    counted = _gpus_of_container(container, path, gpu_requests, claimed).names()
    if name not in counted:
        return binding.container_bounds(name)
    return bounds_of_gpus(binding.container_gpu_rules(), name, counted)


def _field_in_container(container: Container, path: FieldPath, claimed: ClaimedGpus, name: str) -> FieldPath:
    """Return the field of a container that requests GPUs of a name."""
    resources = container.resources
    if name in resources.limits or name in resources.requests:
        return _amount_field(path, container, name)
    return (*path, "resources", *_field_of_claim(container, name, claimed))


def _check_claims_of_container(
    rules: AmountRuleSet,
    container: Container,
    path: FieldPath,
    claimed: ClaimedGpus,
    bounds_of: Callable[[str], Sequence[AmountBound]],
    summed: Sequence[AmountRule],
) -> Iterator[_KindViolation]:
    """Check the GPUs of a container that has some by claims or device classes."""
    named = container.resources.limits
    for name, count in claimed.of_container(container).items():
        amount = (count + (parse_whole_number(named[name]) or 0 if name in named else 0)) * NANO
        for rule in rules.rules_for(name):
            if rule not in summed and violated_code(rule, amount, 1):
                field = (*path, "resources", *_field_of_claim(container, name, claimed))
                bounds = bounds_of(name)
                found = _limit_violation((rule, 1), f"{name} with {_way_of_request(field)}", amount, field, bounds)
                yield name, _with_fix_beside_claims(found, name, amount // NANO, count, bounds)


def _field_of_claim(container: Container, name: str, claimed: ClaimedGpus) -> FieldPath:
    """Return the field of a container's resources that requests GPUs of a name by a device class, else by a claim."""
    classes = (one for one, units in claimed.classes.items() if name in units and requested_units(container, one))
    return next((field_of_amount(container, one) for one in classes), ("claims",))


def _check_unused_claims(
    rules: AmountRuleSet, spec: PodSpec, claimed: ClaimedGpus, binding: BindingLimits
) -> Iterator[PolicyFinding]:
    """Check the GPUs of each claim that no container uses as if one container used them."""
    places: dict[str, FieldPath] = {
        one.name: ("spec", "resourceClaims", index) for index, one in enumerate(spec.resource_claims)
    }
    for claim, requests in claimed.unused_requests(spec).items():
        counts, place = GpuCounts({}, requests), places[claim]
        summed = summing_rules(rules, counts)
        fields = dict.fromkeys(counts.names(), place)
        yield from sum_violations(summed, counts, _UNUSED, fields.__getitem__, binding.container_gpu_rules())
        yield from _join_kinds(_check_unused_by_name(rules, requests, place, binding, summed), claimed)


_UNUSED = "{} that no container uses"


def _check_unused_by_name(
    rules: AmountRuleSet,
    requests: Sequence[RequestAlternatives],
    place: FieldPath,
    binding: BindingLimits,
    summed: Sequence[AmountRule],
) -> Iterator[_KindViolation]:
    units = units_of_requests(requests)
    for name, count in units.items():
        for rule in rules.rules_for(name):
            if rule not in summed and violated_code(rule, count * NANO, 1):
                bounds = bounds_of_gpus(binding.container_gpu_rules(), name, units)
                found = _limit_violation((rule, 1), _UNUSED.format(name), count * NANO, place, bounds)
                yield name, _with_fix_beside_claims(found, name, count, count, bounds)


def _check_pod_totals(rules: AmountRuleSet, pod: Pod, times: int, binding: BindingLimits) -> Iterator[PolicyFinding]:
    """Check everything but GPUs."""
    for name in rules.names or _resource_names_of_pod(pod):
        named_rules = rules.rules_for(name)
        if named_rules and parse_gpu_resource(name) is None:
            amount = max_consumption(pod, name)
            for rule in named_rules:
                if violated_code(rule, amount, times):
                    field = _first_field_of(pod, name)
                    yield _limit_violation((rule, times), f"a pod's {name}", amount, field, binding.pod_bounds(name))


def _check_container(
    rules: AmountRuleSet,
    container: Container,
    path: FieldPath,
    requested: Set[tuple[FieldPath, str]],
    bounds_of: Callable[[str], Sequence[AmountBound]],
    summed: Sequence[AmountRule],
) -> Iterator[PolicyFinding]:
    resources = container.resources
    for name in (*resources.limits, *(one for one in resources.requests if one not in resources.limits)):
        named_rules = rules.rules_for(name)
        is_gpu = bool(named_rules) and parse_gpu_resource(name) is not None
        if not named_rules or (is_gpu and (path, name) not in requested):
            continue
        amount = limit_or_request(resources, name)
        for rule in named_rules:
            if not (is_gpu and rule in summed) and violated_code(rule, amount, 1):
                field = _amount_field(path, container, name)
                yield _limit_violation((rule, 1), name, amount, field, bounds_of(name))


def _first_field_of(pod: Pod, name: str) -> FieldPath:
    spec = pod.spec
    if spec.resources is not None and (name in spec.resources.limits or name in spec.resources.requests):
        return ("spec", "resources", "limits" if name in spec.resources.limits else "requests", name)
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, container in enumerate(containers):
            if name in container.resources.limits or name in container.resources.requests:
                return _amount_field(("spec", kind, index), container, name)
    return ("spec", "overhead", name)


def _resource_names_of_pod(pod: Pod) -> dict[str, None]:
    spec = pod.spec
    levels = [*(container.resources for container in (*spec.containers, *spec.init_containers)), spec.resources]
    return dict.fromkeys((*chain.from_iterable(map(_named_resources_of, levels)), *spec.overhead))


def _amount_field(path: FieldPath, container: Container, name: str) -> FieldPath:
    return (*path, "resources", *field_of_amount(container, name))


def _limit_violation(
    bound: AmountBound, subject: str, amount: int, path: FieldPath, bounds: Sequence[AmountBound]
) -> PolicyFinding:
    rule, times = bound
    code = violated_code(rule, amount, times) or ""
    must = describe_bound(code, rule, times)
    each = f" ({times} GPUs)" if times > 1 else ""
    message = f"{subject} must be {must}{each} (found {format_nano(amount)})"
    return PolicyFinding(code, path, message, nearest_allowed_amounts(bounds, amount))


def _named_resources_of(resources: ResourceRequirements | None) -> tuple[str, ...]:
    return (*resources.limits, *resources.requests) if resources is not None else ()
