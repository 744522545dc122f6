"""LimitRange: what the API server's LimitRanger makes of a pod, before and after our change.

`compare_admission` is the whole way from a manifest to the verdict; `default_pod_data`, a manifest's pod as a webhook sees it. `find_injected_gpus`
finds the GPUs that nobody asked for, and `remove_injected_gpus` takes them out again. `rejection_reason` says what would refuse a change,
`paths_below_minimum` where smaller amounts would be refused; `limit_range_violations`, everything that refuses a shape.
"""

from webhook.engine.limitrange.bounds import LimitRangeRefusal, messages_of_limit_range
from webhook.engine.limitrange.chain import AdmissionComparison, PredictedAdmission, apply_defaults, compare_admission, predict_admission
from webhook.engine.limitrange.defaulting import LIMIT_RANGER_ANNOTATION, limit_ranger_annotation
from webhook.engine.limitrange.first_pass import default_pod_data, default_pod
from webhook.engine.limitrange.glance import is_surely_admitted
from webhook.engine.limitrange.holding import PodAmounts
from webhook.engine.limitrange.injected import NO_INJECTED_GPUS, InjectedAmount, InjectedGpus, find_injected_gpus
from webhook.engine.limitrange.standing import (
    final_amounts,
    injected_gpu_violations,
    rejection_reason,
    limit_range_violations,
    remove_injected_gpus,
    paths_below_minimum,
)

__all__ = [
    "LIMIT_RANGER_ANNOTATION",
    "NO_INJECTED_GPUS",
    "AdmissionComparison",
    "InjectedAmount",
    "PodAmounts",
    "InjectedGpus",
    "LimitRangeRefusal",
    "PredictedAdmission",
    "apply_defaults",
    "compare_admission",
    "final_amounts",
    "find_injected_gpus",
    "injected_gpu_violations",
    "default_pod_data",
    "default_pod",
    "limit_ranger_annotation",
    "rejection_reason",
    "is_surely_admitted",
    "limit_range_violations",
    "messages_of_limit_range",
    "remove_injected_gpus",
    "paths_below_minimum",
    "predict_admission",
]
