"""Traps in ResourceQuotas: keys that nothing fills, and GPUs that walk round a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from webhook.engine.linting.objects import applied_anew, found, mapping
from webhook.model.claims import OF_CLASS
from webhook.model.findings import Finding
from webhook.model.paths import Path
from webhook.model.pods import Amount
from webhook.model.quantity import NANO, readable, whole
from webhook.model.resources import ACCOUNTING, WHOLE_GPU, gpu_resource

Json = dict[str, Any]
REQUESTS, LIMITS = "requests.", "limits."
ALL_GPUS = f"{REQUESTS}{ACCOUNTING}"


def quota_findings(data: Json, others: frozenset[str]) -> Iterator[Finding]:
    """Every trap in a quota; `others` are the keys that other quotas of its namespace count."""
    hard = _hard(data)
    path: Path = ("spec", "hard")
    for key in hard:
        if _is_ignored(key):
            yield found(
                "GPU-Q401",
                (*path, key),
                f"{key} is accepted and never counted: GPUs count under {_counted(key)} only",
                f"Write {_counted(key)}.",
            )
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


def _counted(key: str) -> str:
    """The key under which GPUs named by this one count; the key itself for anything else."""
    bare = key.removeprefix(LIMITS)
    return f"{REQUESTS}{bare}" if _is_gpus(bare) else key


def _is_gpus(name: str) -> bool:
    return name == ACCOUNTING or gpu_resource(name) is not None


def _rounded(key: str, amount: Any) -> int | None:
    """The whole number below an amount of GPUs with a fraction; None for any other amount."""
    value = readable(amount) if _is_amount(amount) else None
    if value is None or value <= 0 or value % NANO == 0 or not _is_gpus(_counted(key).removeprefix(REQUESTS)):
        return None
    return value // NANO


def fixed_quota(data: Json) -> Json:
    """The quota without its traps: keys that count, and one that counts every form of GPU.

    Of amounts that come under one key, the smallest holds.
    """
    hard: Json = {}
    for key, amount in _hard(data).items():
        counted, rounded = _counted(key), _rounded(key, amount)
        hard[counted] = _smaller(amount if rounded is None else str(rounded), hard.get(counted))
    gpus = hard.get(f"{REQUESTS}{WHOLE_GPU}")
    count = whole(gpus) if _is_amount(gpus) else None
    if count is not None and count >= 0:
        hard.setdefault(ALL_GPUS, str(1000 * count))
    return applied_anew(data, {**mapping(data.get("spec")), "hard": hard})


def _smaller(one: Any, other: Any) -> Any:
    """The smaller of two amounts; the one that an API server takes, where it refuses one."""
    read, held = _accepted(one), _accepted(other)
    return other if held is not None and (read is None or held <= read) else one


def _accepted(amount: Any) -> int | None:
    value = readable(amount) if _is_amount(amount) else None
    return value if value is not None and value >= 0 else None


def _is_amount(value: Any) -> bool:
    return isinstance(value, Amount)
