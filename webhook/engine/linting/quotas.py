"""Lint and fix ResourceQuotas: keys that are never counted, and GPUs that bypass a key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from webhook.engine.linting.objects import as_list, as_mapping, counts_gpus, lint_finding, rebuild_object
from webhook.errors import abbreviate_names
from webhook.model.claims import DEVICE_CLASS_SUFFIX, device_class_of_key, is_claim_key
from webhook.model.field_paths import FieldPath
from webhook.model.findings import Finding
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, DEVICE_CLASS_PREFIX, WHOLE_GPU, parse_gpu_resource
from webhook.model.mig_catalog import max_profile_milli
from webhook.model.pods import QuantityText, nulls_as_zero
from webhook.model.quantity import NANO, parse_nano_or_none, parse_whole_number
from webhook.well_known import Json

REQUESTS, LIMITS = "requests.", "limits."
MAX_LISTED = 3
WHOLE_GPUS, ALL_GPUS = f"{REQUESTS}{WHOLE_GPU}", f"{REQUESTS}{ACCOUNTING_RESOURCE}"
UNCOVERED_FORMS_CODE = "GPU-Q402"


QuotaScopes = frozenset[tuple[str, str, tuple[str, ...]]]
"""The scopes of a quota: name, operator and values. A quota with fewer scopes counts more pods."""


def lint_quota(data: Json, others: Collection[QuotaScopes], classes: Collection[str] = ()) -> Iterator[Finding]:
    """Yield the findings of a quota.

    Args:
        others: The scopes of other quotas of its namespace that count every form of GPU.
        classes: The DeviceClasses of the cluster; empty if unknown.
    """
    hard = _written_hard(data)
    path: FieldPath = ("spec", "hard")
    for key in hard:
        for message, fix in _explain_uncounted_key(key, hard, classes, scoped=_has_written_scopes(data)):
            yield lint_finding("GPU-Q401", (*path, key), message, fix)
        if (part := _round_down_gpus(key, hard[key])) is not None:
            yield lint_finding(
                "GPU-Q403",
                (*path, key),
                f"{hard[key]} of {key} has the same effect as {part}: pods request whole numbers",
                f"Write {part}.",
            )
    whole_gpus = next((key for key in hard if _counted_key(key) == WHOLE_GPUS), None)
    scopes = _read_scopes(as_mapping(data.get("spec")))
    covered = ALL_GPUS in map(_counted_key, hard) or any(other <= scopes for other in others)
    if whole_gpus is not None and not covered:
        yield _uncovered_forms_finding((*path, whole_gpus), _effective_hard(data, classes))


def scopes_covering_all_gpus(data: Json) -> list[QuotaScopes]:
    """Return the scopes of a quota that counts every form of GPU; none for another."""
    return [_read_scopes(as_mapping(data.get("spec")))] if ALL_GPUS in _written_hard(data) else []


def fix_quota(data: Json, findings: Iterable[Finding], classes: Collection[str] = ()) -> Json:
    """Return the quota with keys that count, and one for every form of GPU if none counts it.

    A counted amount stays; of others for the same key, the smallest applies. Keys of claims leave a quota with scopes;
    if other keys stay, the result is a List of two quotas.
    """
    hard = _effective_hard(data, classes)
    uncovered = any(finding.code == UNCOVERED_FORMS_CODE for finding in findings)
    if uncovered and _allowed_count(hard, WHOLE_GPUS) is not None:
        hard[ALL_GPUS] = str(_total_gpu_milli(hard))
    spec = {**as_mapping(data.get("spec")), "hard": hard}
    if _has_written_scopes(data) and any(map(is_claim_key, hard)):
        return _split_off_claim_keys(data, spec)
    return rebuild_object(data, spec)


def _uncovered_forms_finding(path: FieldPath, hard: Json) -> Finding:
    parts = [key for key in hard if _max_gpu_milli(key) and key != WHOLE_GPUS]
    amount = "1000 per GPU"
    if parts:
        amount = f"{_total_gpu_milli(hard)} (1000 per GPU, plus the largest weight of each other resource)"
    return lint_finding(
        UNCOVERED_FORMS_CODE,
        path,
        f"this quota does not limit {'other ' if parts else ''}MIG slices, shares, and claims of device classes that "
        "it does not name",
        f"Add {ALL_GPUS}: {amount}, and set limits.accounting: native in a policy. If claims are used, "
        f"add CLASS{DEVICE_CLASS_SUFFIX} for each DeviceClass that allocates GPUs.",
    )


def _read_scopes(spec: Json) -> QuotaScopes:
    plain = ((str(scope), "Exists", ()) for scope in as_list(spec.get("scopes")))
    selected = (
        (str(one.get("scopeName")), str(one.get("operator")), tuple(sorted(map(str, as_list(one.get("values"))))))
        for one in map(as_mapping, as_list(as_mapping(spec.get("scopeSelector")).get("matchExpressions")))
    )
    return frozenset((*plain, *selected))


def _written_hard(data: Json) -> Json:
    return nulls_as_zero(as_mapping(as_mapping(data.get("spec")).get("hard")))


def _explain_uncounted_key(
    key: str, hard: Json, classes: Collection[str], *, scoped: bool
) -> Iterator[tuple[str, str]]:
    counted = _counted_key(key)
    if counted != key:
        what = "devices of a class" if device_class_of_key(counted) else "GPUs"
        fix = f"Write {counted}."
        if _valid_amount(hard.get(counted)) is not None:
            fix = f"Remove it: {counted}: {str(hard[counted])[:60]} is present and applies."
        yield f"{key} has no effect: quotas count {what} only under {counted}", fix
    if scoped and is_claim_key(key):
        message = f"{key} has no effect: a quota with scopes counts no resource claims"
        yield message, "Write it in a quota without scopes."
    if (name := _unknown_class(key, classes)) is not None:
        closest = _closest_class(name, classes)
        fix = f"Write {closest}." if closest else f"Use one of: {_list_some(classes)}."
        yield f"{key} has no effect: the cluster has no DeviceClass {name}", fix


def _counted_key(key: str) -> str:
    """Return the key that counts the GPUs which this one names; the key itself for anything else."""
    bare = key.removeprefix(LIMITS)
    if bare.endswith(DEVICE_CLASS_SUFFIX):
        return bare.removeprefix(REQUESTS)
    return f"{REQUESTS}{bare}" if counts_gpus(bare) or bare.startswith(DEVICE_CLASS_PREFIX) else key


def _has_written_scopes(data: Json) -> bool:
    spec = as_mapping(data.get("spec"))
    return bool(spec.get("scopes")) or spec.get("scopeSelector") is not None


def _unknown_class(key: str, classes: Collection[str]) -> str | None:
    name = device_class_of_key(_counted_key(key))
    return name if classes and name and name not in classes else None


def _closest_class(name: str, classes: Collection[str]) -> str | None:
    return next(iter(get_close_matches(name, sorted(classes), 1)), None)


def _list_some(classes: Collection[str]) -> str:
    return abbreviate_names(sorted(classes), MAX_LISTED)


def _round_down_gpus(key: str, amount: Any) -> int | None:
    """Return the whole number below a fractional amount of GPUs; None for any other amount."""
    value = parse_nano_or_none(amount) if isinstance(amount, QuantityText) else None
    if value is None or value <= 0 or value % NANO == 0 or not counts_gpus(_counted_key(key).removeprefix(REQUESTS)):
        return None
    return value // NANO


def _effective_hard(data: Json, classes: Collection[str]) -> Json:
    """Return the limits of a quota under keys that count, with the closest class that exists for an unknown one."""
    hard: Json = {}
    written = _written_hard(data)
    for key, amount in written.items():
        counted, rounded = _counted_key(key), _round_down_gpus(key, amount)
        unknown = _unknown_class(key, classes)
        if unknown and (closest := _closest_class(unknown, classes)):
            counted = counted.replace(unknown, closest, 1)
        if counted != key and _valid_amount(written.get(counted)) is not None:
            continue
        hard[counted] = _smaller_amount(amount if rounded is None else str(rounded), hard.get(counted))
    return hard


def _total_gpu_milli(hard: Json) -> int:
    """Return the most that the GPUs allowed by a quota can count, in thousandths of a GPU."""
    return sum(_max_gpu_milli(key) * (_allowed_count(hard, key) or 0) for key in hard)


def _allowed_count(hard: Json, key: str) -> int | None:
    """Return the whole number that a key allows; None if the API server would reject it."""
    amount = hard.get(key)
    count = parse_whole_number(amount) if isinstance(amount, QuantityText) else None
    return count if count is not None and count >= 0 else None


def _max_gpu_milli(key: str) -> int:
    """Return the most that one unit of a key counts on any node, in thousandths of a GPU; 0 if it counts no GPUs."""
    resource = parse_gpu_resource(key.removeprefix(REQUESTS)) if key.startswith(REQUESTS) else None
    if resource is None:
        return 0
    return max_profile_milli(resource.profile) if resource.mig else 1000


def _split_off_claim_keys(data: Json, spec: Json) -> Json:
    of_claims = rebuild_object(data, {"hard": {key: one for key, one in spec["hard"].items() if is_claim_key(key)}})
    rest = {key: one for key, one in spec["hard"].items() if not is_claim_key(key)}
    if not rest:
        return of_claims
    of_claims["metadata"]["name"] = f"{of_claims['metadata'].get('name', 'quota')}-claims"
    return {"apiVersion": "v1", "kind": "List", "items": [rebuild_object(data, {**spec, "hard": rest}), of_claims]}


def _smaller_amount(one: Any, other: Any) -> Any:
    """Return the smaller of two amounts; the valid one, if the API server would reject the other."""
    first, second = _valid_amount(one), _valid_amount(other)
    return other if second is not None and (first is None or second <= first) else one


def _valid_amount(amount: Any) -> int | None:
    value = parse_nano_or_none(amount) if isinstance(amount, QuantityText) else None
    return value if value is not None and value >= 0 else None
