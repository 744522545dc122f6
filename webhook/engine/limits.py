"""Step 5, the policy's own limits: floors, ceilings and choices for a pod, a container, and each GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from webhook.engine.asking import Asked
from webhook.engine.remarks import Remark
from webhook.model.paths import Path
from webhook.model.pods import Amount, Container, Pod
from webhook.model.quantity import NANO, readable, written
from webhook.policy.compiled import AmountRule, Limits


def breaches(limits: Limits, pod: Pod, asked: Asked) -> list[Remark]:
    """Everything a pod asks for that the section does not allow."""
    found: list[Remark] = []
    for rule in limits.per_pod:
        found += _per_pod(rule, pod, asked)
    for rule in limits.per_container:
        found += _per_container(rule, pod)
    if limits.per_gpu and asked.totals:
        devices = sum(asked.totals.values())
        for rule in limits.per_gpu if devices else ():
            found += _per_gpu(rule, pod, devices)
    return found


def gpu_breaches(limits: Limits, totals: Mapping[str, int]) -> bool:
    """Would these GPU totals alone break a pod or container rule? Asked before a request is rewritten."""
    return any(
        _fault(rule, count * NANO, 1) is not None
        for rule in (*limits.per_pod, *limits.per_container)
        for name, count in totals.items()
        if rule.matches(name)
    )


def _per_pod(rule: AmountRule, pod: Pod, asked: Asked) -> Iterator[Remark]:
    for name, count in asked.totals.items():
        if rule.matches(name):
            first = next(ask for ask in asked.asks if ask.resource.name == name)
            yield from _remarks(rule, name, count * NANO, 1, (*first.path, "resources", "limits", name), "a pod's ")
    for name in _other_names(rule, pod):
        yield from _remarks(rule, name, _pod_amount(pod, name), 1, ("spec",), "a pod's ")


def _per_container(rule: AmountRule, pod: Pod) -> Iterator[Remark]:
    for kind, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for index, container in enumerate(containers):
            resources = container.resources
            names = (rule.resource,) if rule.literal else {**resources.limits, **resources.requests}
            for name in names:
                if (name in resources.limits or name in resources.requests) and rule.matches(name):
                    path = _field(("spec", kind, index), container, name)
                    yield from _remarks(rule, name, _amount(container, name), 1, path, "")


def _per_gpu(rule: AmountRule, pod: Pod, devices: int) -> Iterator[Remark]:
    for name in _other_names(rule, pod):
        yield from _remarks(rule, name, _pod_amount(pod, name), devices, ("spec",), "a pod's ")


def _other_names(rule: AmountRule, pod: Pod) -> Iterable[str]:
    """The names that a rule is about and that are no GPU (those are in the totals)."""
    if rule.literal:
        return () if rule.resource.startswith("nvidia.com/") else (rule.resource,)
    return {
        name
        for container in pod.spec.containers
        for name in (*container.resources.limits, *container.resources.requests)
        if not name.startswith("nvidia.com/") and rule.matches(name)
    }


def _pod_amount(pod: Pod, name: str) -> int:
    """What the pod may take: the sum of its containers, or its largest init container."""
    running = sum([_amount(container, name) for container in pod.spec.containers])
    if not pod.spec.init_containers:
        return running
    return max(running, *[_amount(container, name) for container in pod.spec.init_containers])


def _amount(container: Container, name: str) -> int:
    """What the container may take: its limit, or its request where it has none."""
    limits = container.resources.limits
    return readable(limits[name] if name in limits else container.resources.requests.get(name)) or 0


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


def _remarks(rule: AmountRule, name: str, amount: int, times: int, path: Path, whose: str) -> Iterator[Remark]:
    code = _fault(rule, amount, times)
    if code is None:
        return
    each = f" ({times} GPUs)" if times > 1 else ""
    found = written(amount)
    if code == "GPU-L103":
        most = written((rule.max or 0) * times)
        yield Remark(code, path, f"{whose}{name} must be at most {most}{each} (found {found})", f"Write {most}.")
    elif code == "GPU-L101":
        least = written((rule.min or 0) * times)
        yield Remark(code, path, f"{whose}{name} must be at least {least}{each} (found {found})", f"Write {least}.")
    else:
        choices = [choice * times for choice in rule.allowed]
        words = ", ".join(map(written, choices))
        fix = _nearest(choices, amount)
        yield Remark(code, path, f"{whose}{name} must be one of {words}{each} (found {found})", fix)


def _nearest(choices: list[int], amount: int) -> str:
    above = min((choice for choice in choices if choice > amount), default=None)
    below = max((choice for choice in choices if choice < amount), default=None)
    words = [written(choice) for choice in (above, below) if choice is not None]
    return f"Write {', or '.join(words)}." if words else ""


def defaults(limits: Limits, asked: Asked) -> dict[int, dict[str, Amount]]:
    """Requests to add, by container index: what `default` gives to containers that ask for GPUs.

    Only a container that names the resource neither in limits nor in requests is given one.
    """
    additions: dict[int, dict[str, Amount]] = {}
    for ask in asked.asks:
        if ask.path[1] != "containers" or not ask.count:
            continue
        resources = ask.container.resources
        for rule, times in (*((rule, 1) for rule in limits.per_container), *((r, ask.count) for r in limits.per_gpu)):
            name = rule.resource
            if rule.default is not None and name not in resources.limits and name not in resources.requests:
                index = ask.path[2]
                assert isinstance(index, int)
                additions.setdefault(index, {})[name] = written(rule.default * times)
    return additions
