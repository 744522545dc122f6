"""LimitRanges: predict their rejections, and handle the GPUs that they inject.

`validation` predicts the API server's answer exactly, `fast_path` recognises most accepted pods without it,
`findings` words the rejections, and `injected_gpus` finds and removes GPUs that nobody requested.
Defaulting itself is `webhook.model.defaulting`.
"""

from webhook.engine.limitrange.fast_path import is_surely_admitted
from webhook.engine.limitrange.findings import (
    final_amounts,
    limit_range_violations,
    paths_below_minimum,
    rejection_reason,
)
from webhook.engine.limitrange.injected_gpus import (
    NO_INJECTED_GPUS,
    InjectedAmount,
    InjectedGpus,
    find_injected_gpus,
    injected_gpu_violations,
    remove_injected_gpus,
)
from webhook.engine.limitrange.validation import predict_admission

__all__ = [
    "NO_INJECTED_GPUS",
    "InjectedAmount",
    "InjectedGpus",
    "final_amounts",
    "find_injected_gpus",
    "injected_gpu_violations",
    "is_surely_admitted",
    "limit_range_violations",
    "paths_below_minimum",
    "predict_admission",
    "rejection_reason",
    "remove_injected_gpus",
]
