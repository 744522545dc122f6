"""Traps in ResourceQuotas: keys that nothing fills, and GPUs that walk round a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from webhook.engine.linting.objects import applied_anew, found, mapping
from webhook.model.findings import Finding
from webhook.model.paths import Path
from webhook.model.pods import Amount
from webhook.model.quantity import whole
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
    whole_gpus = f"{REQUESTS}{WHOLE_GPU}"
    if any(_counted(key) == whole_gpus for key in hard) and ALL_GPUS not in others | hard.keys():
        yield found(
            "GPU-Q402",
            (*path, next(key for key in hard if _counted(key) == whole_gpus)),
            "MIG slices, shares and resource claims are not counted here, so they walk round this quota",
            f"Add {ALL_GPUS}, 1000 for each GPU, and switch on limits.accounting: native in a policy.",
        )


def _hard(data: Json) -> Json:
    return mapping(mapping(data.get("spec")).get("hard"))


def _is_ignored(key: str) -> bool:
    return gpu_resource(key.removeprefix(LIMITS)) is not None


def _counted(key: str) -> str:
    """The key under which GPUs named by this one count; the key itself for anything else."""
    bare = key.removeprefix(LIMITS)
    return f"{REQUESTS}{bare}" if gpu_resource(bare) is not None else key


def fixed_quota(data: Json) -> Json:
    """The quota without its traps: keys that count, and one that counts every form of GPU."""
    hard: Json = {}
    for key, amount in _hard(data).items():
        hard.setdefault(_counted(key), amount)
    gpus = hard.get(f"{REQUESTS}{WHOLE_GPU}")
    count = whole(gpus) if _is_amount(gpus) else None
    if count is not None:
        hard.setdefault(ALL_GPUS, str(1000 * count))
    return applied_anew(data, {**mapping(data.get("spec")), "hard": hard})


def _is_amount(value: Any) -> bool:
    return isinstance(value, Amount)
