"""Traps in ResourceQuotas: keys that nothing fills, and GPUs that walk round a key."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Any

from webhook.engine.linting.objects import applied_anew, found, is_gpus, mapping
from webhook.model.claims import OF_CLASS, class_of, is_of_claims
from webhook.model.findings import Finding
from webhook.model.paths import Path
from webhook.model.pods import Amount
from webhook.model.quantity import NANO, readable, whole
from webhook.model.resources import ACCOUNTING, DEVICE_CLASS_PREFIX, WHOLE_GPU

Json = dict[str, Any]
REQUESTS, LIMITS = "requests.", "limits."
FEW = 3
ALL_GPUS = f"{REQUESTS}{ACCOUNTING}"


def quota_findings(data: Json, others: frozenset[str], classes: Collection[str] = ()) -> Iterator[Finding]:
    """Every trap in a quota.

    Args:
        others: The keys that other quotas of its namespace count.
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
    whole_gpus = f"{REQUESTS}{WHOLE_GPU}"
    if any(_counted(key) == whole_gpus for key in hard) and ALL_GPUS not in others | set(map(_counted, hard)):
        yield found(
            "GPU-Q402",
            (*path, next(key for key in hard if _counted(key) == whole_gpus)),
            "MIG slices, shares and resource claims are not counted here, so they walk round this quota",
            f"Add {ALL_GPUS}, 1000 for each GPU, and switch on limits.accounting: native in a policy. Where there are "
            f"claims, add CLASS{OF_CLASS} for each DeviceClass that gives out GPUs.",
        )


def _hard(data: Json) -> Json:
    return mapping(mapping(data.get("spec")).get("hard"))


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


def fixed_quota(data: Json, classes: Collection[str] = ()) -> Json:
    """The quota without its traps: keys that count, and one that counts every form of GPU.

    An amount that counts already stays; of others that come under one key, the smallest holds. Keys that claims fill
    leave the scopes: for a quota of their own where other keys stay, and then this is a List of the two.
    """
    hard: Json = {}
    written = _hard(data)
    for key, amount in written.items():
        counted, rounded = _meant(key, classes), _rounded(key, amount)
        if counted != key and _accepted(written.get(counted)) is not None:
            continue
        hard[counted] = _smaller(amount if rounded is None else str(rounded), hard.get(counted))
    gpus = hard.get(f"{REQUESTS}{WHOLE_GPU}")
    count = whole(gpus) if _is_amount(gpus) else None
    if count is not None and count >= 0:
        hard.setdefault(ALL_GPUS, str(1000 * count))
    spec = {**mapping(data.get("spec")), "hard": hard}
    return _apart(data, spec) if _is_scoped(data) and any(map(is_of_claims, hard)) else applied_anew(data, spec)


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
