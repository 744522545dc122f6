"""LimitRange: what the API server's LimitRanger makes of a pod, before and after our change.

`compare_admission` is the whole way from a manifest to the verdict; `default_pod_data`, a manifest's pod as a
webhook sees it. `find_injected_gpus`
finds the GPUs that nobody asked for, and `remove_injected_gpus` takes them out again. `rejection_reason` says what
would refuse a change,
`paths_below_minimum` where smaller amounts would be refused; `limit_range_violations`, everything that refuses a shape.
"""

from webhook.engine.limitrange.defaulting import (
    LIMIT_RANGER_ANNOTATION,
    default_pod,
    default_pod_data,
    limit_ranger_annotation,
)
from webhook.engine.limitrange.fast_path import is_surely_admitted
from webhook.engine.limitrange.findings import (
    final_amounts,
    injected_gpu_violations,
    limit_range_violations,
    paths_below_minimum,
    rejection_reason,
    remove_injected_gpus,
)
from webhook.engine.limitrange.injected_gpus import NO_INJECTED_GPUS, InjectedAmount, InjectedGpus, find_injected_gpus
from webhook.engine.limitrange.pod_amounts import PodAmounts
from webhook.engine.limitrange.validation import (
    AdmissionComparison,
    LimitRangeRefusal,
    PredictedAdmission,
    apply_defaults,
    compare_admission,
    messages_of_limit_range,
    predict_admission,
)

__all__ = [
    "LIMIT_RANGER_ANNOTATION",
    "NO_INJECTED_GPUS",
    "AdmissionComparison",
    "InjectedAmount",
    "InjectedGpus",
    "LimitRangeRefusal",
    "PodAmounts",
    "PredictedAdmission",
    "apply_defaults",
    "compare_admission",
    "default_pod",
    "default_pod_data",
    "final_amounts",
    "find_injected_gpus",
    "injected_gpu_violations",
    "is_surely_admitted",
    "limit_range_violations",
    "limit_ranger_annotation",
    "messages_of_limit_range",
    "paths_below_minimum",
    "predict_admission",
    "rejection_reason",
    "remove_injected_gpus",
]
