"""Traps in ResourceQuotas: keys that nothing fills, and GPUs that walk round a key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from webhook.engine.linting.objects import applied_anew, found, is_gpus, mapping, sequence, stored
from webhook.model.catalogue import heaviest
from webhook.model.claims import OF_CLASS, class_of, is_of_claims
from webhook.model.findings import Finding
from webhook.model.paths import Path
from webhook.model.pods import Amount
from webhook.model.quantity import NANO, readable, whole
from webhook.model.resources import ACCOUNTING, DEVICE_CLASS_PREFIX, WHOLE_GPU, gpu_resource

Json = dict[str, Any]
REQUESTS, LIMITS = "requests.", "limits."
FEW = 3
WHOLE_GPUS, ALL_GPUS = f"{REQUESTS}{WHOLE_GPU}", f"{REQUESTS}{ACCOUNTING}"
WALKED_ROUND = "GPU-Q402"


Scopes = frozenset[tuple[str, str, tuple[str, ...]]]
"""The scopes of a quota: name, operator and values of each. It counts every pod that one with these and more counts."""


def quota_findings(data: Json, others: Collection[Scopes], classes: Collection[str] = ()) -> Iterator[Finding]:
    """Every trap in a quota.

    Args:
        others: The scopes of other quotas of its namespace that count every form of GPU. See `of_every_form`.
        classes: The DeviceClasses of the cluster; none where they are not known.
    """
    hard = _hard(data)
    path: Path = ("spec", "hard")
    for key in hard:
        for message, fix in _uncounted(key, hard, classes, scoped=_is_scoped(data)):
            yield found("GPU-Q401", (*path, key), message, fix)
        if (part := _rounded(key, hard[key])) is not None:
            yield found(
                "GPU-Q403",
                (*path, key),
                f"{hard[key]} of {key} holds like {part}: what pods ask for is whole",
                f"Write {part}.",
            )
    whole_gpus = next((key for key in hard if _counted(key) == WHOLE_GPUS), None)
    if whole_gpus is not None and not _bounds_every_form(data, others):
        yield _walked_round((*path, whole_gpus), _holding(data, classes))


def _walked_round(path: Path, hard: Json) -> Finding:
    parts = [key for key in hard if _weight(key) and key != WHOLE_GPUS]
    amount = "1000 for each GPU"
    if parts:
        amount += f" and the most that the others named here weigh on any card, {_milli(hard)} together"
    return found(
        WALKED_ROUND,
        path,
        f"{'other ' if parts else ''}MIG slices, shares and resource claims are not counted here, "
        "so they walk round this quota",
        f"Add {ALL_GPUS}, {amount}, and switch on limits.accounting: native in a policy. Where there are "
        f"claims, add CLASS{OF_CLASS} for each DeviceClass that gives out GPUs.",
    )


def of_every_form(data: Json) -> list[Scopes]:
    """The scopes of a quota that counts every form of GPU; none for another."""
    return [_scopes(mapping(data.get("spec")))] if ALL_GPUS in _hard(data) else []


def _bounds_every_form(data: Json, others: Collection[Scopes]) -> bool:
    """Does it count every form of GPU itself, or does another quota that counts every pod that it counts?"""
    scopes = _scopes(mapping(data.get("spec")))
    return ALL_GPUS in map(_counted, _hard(data)) or any(other <= scopes for other in others)


def _scopes(spec: Json) -> Scopes:
    plain = ((str(scope), "Exists", ()) for scope in sequence(spec.get("scopes")))
    asked = map(mapping, sequence(mapping(spec.get("scopeSelector")).get("matchExpressions")))
    return frozenset((*plain, *map(_scope, asked)))


def _scope(asked: Json) -> tuple[str, str, tuple[str, ...]]:
    values = sorted(map(str, sequence(asked.get("values"))))
    return str(asked.get("scopeName")), str(asked.get("operator")), tuple(values)


def _hard(data: Json) -> Json:
    return stored(mapping(data.get("spec")).get("hard"))


def _is_ignored(key: str) -> bool:
    return _counted(key) != key


def _uncounted(key: str, hard: Json, classes: Collection[str], *, scoped: bool) -> Iterator[tuple[str, str]]:
    """Why a key counts nothing, and what to write instead."""
    if _is_ignored(key):
        what = "devices of a class" if class_of(_counted(key)) else "GPUs"
        message = f"{key} is accepted and never counted: {what} count under {_counted(key)} only"
        yield message, _in_place_of(key, hard)
    if scoped and is_of_claims(key):
        message = f"{key} is accepted and never counted: a quota with scopes counts no resource claims"
        yield message, "Write it in a quota without scopes."
    if (name := _unknown(key, classes)) is not None:
        near = _nearest(name, classes)
        fix = f"Write {near}." if near else f"Name one of the cluster: {_few(classes)}."
        yield f"{key} counts nothing: the cluster has no DeviceClass {name}", fix


def _in_place_of(key: str, hard: Json) -> str:
    """What to write for a key that is ignored: nothing, where the one that counts is there already."""
    counted = _counted(key)
    if _accepted(hard.get(counted)) is None:
        return f"Write {counted}."
    return f"Remove it: {counted}: {str(hard[counted])[:60]} stands beside it, and is what holds."


def _counted(key: str) -> str:
    """The key under which GPUs named by this one count; the key itself for anything else."""
    bare = key.removeprefix(LIMITS)
    if bare.endswith(OF_CLASS):
        return bare.removeprefix(REQUESTS)
    return f"{REQUESTS}{bare}" if is_gpus(bare) or bare.startswith(DEVICE_CLASS_PREFIX) else key


def _is_scoped(data: Json) -> bool:
    spec = mapping(data.get("spec"))
    return bool(spec.get("scopes")) or spec.get("scopeSelector") is not None


def _unknown(key: str, classes: Collection[str]) -> str | None:
    """The class that a key names and the cluster lacks."""
    name = class_of(_counted(key))
    return name if classes and name and name not in classes else None


def _nearest(name: str, classes: Collection[str]) -> str | None:
    return next(iter(get_close_matches(name, sorted(classes), 1)), None)


def _few(classes: Collection[str]) -> str:
    more = f" and {len(classes) - FEW} more" if len(classes) > FEW else ""
    return f"{', '.join(sorted(classes)[:FEW])}{more}"


def _rounded(key: str, amount: Any) -> int | None:
    """The whole number below an amount of GPUs with a fraction; None for any other amount."""
    value = readable(amount) if _is_amount(amount) else None
    if value is None or value <= 0 or value % NANO == 0 or not is_gpus(_counted(key).removeprefix(REQUESTS)):
        return None
    return value // NANO


def fixed_quota(data: Json, findings: Iterable[Finding], classes: Collection[str] = ()) -> Json:
    """The quota without its traps: keys that count, and one that counts every form of GPU where nothing does.

    An amount that counts already stays; of others that come under one key, the smallest holds. Keys that claims fill
    leave the scopes: for a quota of their own where other keys stay, and then this is a List of the two.
    """
    hard = _holding(data, classes)
    if any(finding.code == WALKED_ROUND for finding in findings) and _count(hard, WHOLE_GPUS) is not None:
        hard[ALL_GPUS] = str(_milli(hard))
    spec = {**mapping(data.get("spec")), "hard": hard}
    return _apart(data, spec) if _is_scoped(data) and any(map(is_of_claims, hard)) else applied_anew(data, spec)


def _holding(data: Json, classes: Collection[str]) -> Json:
    """What a quota allows, under keys that count."""
    hard: Json = {}
    written = _hard(data)
    for key, amount in written.items():
        counted, rounded = _meant(key, classes), _rounded(key, amount)
        if counted != key and _accepted(written.get(counted)) is not None:
            continue
        hard[counted] = _smaller(amount if rounded is None else str(rounded), hard.get(counted))
    return hard


def _milli(hard: Json) -> int:
    """The most that all GPUs of the counted keys weigh together, in thousandths of a GPU."""
    return sum(_weight(key) * (_count(hard, key) or 0) for key in hard)


def _count(hard: Json, key: str) -> int | None:
    """The whole number that a key allows; None where an API server would not take it."""
    count = whole(hard.get(key)) if _is_amount(hard.get(key)) else None
    return count if count is not None and count >= 0 else None


def _weight(key: str) -> int:
    """The most that one unit of a counted key weighs on any node, in thousandths of a GPU; 0 if it counts no GPUs."""
    resource = gpu_resource(key.removeprefix(REQUESTS)) if key.startswith(REQUESTS) else None
    if resource is None:
        return 0
    return heaviest(resource.profile) if resource.mig else 1000


def _meant(key: str, classes: Collection[str]) -> str:
    """The key that counts, of the class that was meant."""
    counted, name = _counted(key), _unknown(key, classes)
    near = _nearest(name, classes) if name else None
    return counted.replace(name, near, 1) if name and near else counted


def _apart(data: Json, spec: Json) -> Json:
    """What claims fill, in a quota without scopes, beside the rest."""
    of_claims = applied_anew(data, {"hard": {key: one for key, one in spec["hard"].items() if is_of_claims(key)}})
    rest = {key: one for key, one in spec["hard"].items() if not is_of_claims(key)}
    if not rest:
        return of_claims
    of_claims["metadata"]["name"] = f"{of_claims['metadata'].get('name', 'quota')}-claims"
    return {"apiVersion": "v1", "kind": "List", "items": [applied_anew(data, {**spec, "hard": rest}), of_claims]}


def _smaller(one: Any, other: Any) -> Any:
    """The smaller of two amounts; the one that an API server takes, where it refuses one."""
    read, held = _accepted(one), _accepted(other)
    return other if held is not None and (read is None or held <= read) else one


def _accepted(amount: Any) -> int | None:
    value = readable(amount) if _is_amount(amount) else None
    return value if value is not None and value >= 0 else None


def _is_amount(value: Any) -> bool:
    return isinstance(value, Amount)
