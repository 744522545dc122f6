"""What is asked of Prometheus, as PromQL.

Aggregation happens there: what comes back is one figure a container, or one a container and bin of time. Two exporters
for one GPU, and series that a restart of an exporter has doubled, are one by `max`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

FB_USED = "DCGM_FI_DEV_FB_USED"
FB_FREE = "DCGM_FI_DEV_FB_FREE"
FB_RESERVED = "DCGM_FI_DEV_FB_RESERVED"
GPU_UTIL = "DCGM_FI_DEV_GPU_UTIL"
ENGINE = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO")
SM = ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO")
XID = ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR")
XID_COUNT = "DCGM_EXP_XID_ERRORS_COUNT"
"""Where a field has two names, DCGM 4.6 has renamed it."""

POD_OWNER = "kube_pod_owner"
POD_INFO = "kube_pod_container_info"
LAST_TERMINATION = "kube_pod_container_status_last_terminated_reason"
TERMINATION = "kube_pod_container_status_terminated_reason"
RESTARTS = "kube_pod_container_status_restarts_total"

HAS_POD = 'pod!=""'
HOUR = "1h"
EARLIER = "10m"
HOUR_AND_EARLIER = "70m"
OBJECT_NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}")
NAMES_PER_QUERY = 400
"""Names in one query: about 25 KiB of text."""


class LabelScheme(NamedTuple):
    """How the labels are called that name a container.

    Attributes:
        only: The matchers that hold for series with these labels.
    """

    namespace: str
    pod: str
    container: str
    matchers: str

    @property
    def labels(self) -> str:
        """Parted by commas, as in PromQL."""
        return f"{self.namespace}, {self.pod}, {self.container}"


LEGACY_LABELS = LabelScheme("pod_namespace", "pod_name", "container_name", 'pod_name!=""')
EXPORTED_LABELS = LabelScheme(
    "exported_namespace", "exported_pod", "exported_container", 'exported_pod!="",pod_name=""'
)
PLAIN_LABELS = LabelScheme("namespace", "pod", "container", 'pod!="",exported_pod="",pod_name=""')
LABEL_SCHEMES = (PLAIN_LABELS, EXPORTED_LABELS, LEGACY_LABELS)
"""With honorLabels, without, and as exporters before 2020 had them."""


class DeviceMetrics(NamedTuple):
    """Series of GPUs: how their labels are called, which of them exist, and what else every query must match."""

    scheme: LabelScheme
    names: frozenset[str]
    selector: str = ""

    def first_existing(self, *names: str) -> str:
        """The first of these metrics that exists; "" where none does."""
        return next((name for name in names if name in self.names), "")

    def select(self, metric: str) -> str:
        """Those of one metric that name a pod."""
        return metric_selector(metric, self.scheme.matchers, self.selector)


def metric_selector(metric: str, *matchers: str) -> str:
    """A selector in PromQL.

    >>> selected("up", 'job="a"', "")
    'up{job="a"}'
    """
    return f"{metric}{{{','.join(filter(None, matchers))}}}"


def over_window(function: str, device: DeviceMetrics, metric: str, window: str) -> str:
    """A function over the last `window` of a metric, without what an exporter says of GPUs that nobody holds.

    Without honorLabels, the series of an idle GPU bears the name of the exporter's own pod, as `up` does.
    """
    seen = f"{function}{device.select(metric)}[{window}])"
    if device.scheme is not PLAIN_LABELS:
        return seen
    up = f"max_over_time({metric_selector('up', HAS_POD, device.selector)}[{window}])"
    return f"({seen} unless on (job, instance, namespace, pod) {up})"


def container_count_query(device: DeviceMetrics) -> str:
    """How many containers use GPUs at a moment."""
    return f"count(group by ({device.scheme.labels}) ({device.select(FB_USED)}))"


def peak_memory_query(device: DeviceMetrics, step: int) -> str:
    """The largest memory in use in the last step, the worst GPU of the container: MiB.

    Not of a GPU that two pods hold at once: what is measured of one is all of it, so it says nothing about either.
    """
    form = device.scheme
    held = f"group by (UUID, GPU_I_ID, {form.namespace}, {form.pod}) ({device.select(FB_USED)})"
    shared = f"count by (UUID, GPU_I_ID) ({held}) > 1"
    seen = over_window("max_over_time(", device, FB_USED, f"{step}s")
    return f"max by ({form.labels}) ({seen} unless on (UUID, GPU_I_ID) ({shared}))"


def mean_memory_query(device: DeviceMetrics, window: str) -> str:
    """The mean memory in use: MiB."""
    return f"max by ({device.scheme.labels}) ({over_window('avg_over_time(', device, FB_USED, window)})"


def memory_capacity_query(device: DeviceMetrics, window: str) -> str:
    """The memory of the GPU or MIG instance: MiB."""
    parts = [name for name in (FB_USED, FB_FREE, FB_RESERVED) if name in device.names]
    total = " + ".join(f"last_over_time({device.select(name)}[{window}])" for name in parts)
    return f"max by ({device.scheme.labels}) ({total})"


def compute_query(device: DeviceMetrics, metric: str, window: str) -> str:
    """The 95th percentile of a metric of compute, by product and MIG profile; the worst GPU of the container."""
    labels = f"{device.scheme.labels}, modelName, GPU_I_PROFILE"
    return f"max by ({labels}) ({over_window('quantile_over_time(0.95, ', device, metric, window)})"


def engine_activity_query(device: DeviceMetrics, metric: str, window: str) -> str:
    """The largest activity that was seen."""
    return f"max by ({device.scheme.labels}) ({over_window('max_over_time(', device, metric, window)})"


def changed_within_hour(series: str) -> str:
    """Series whose value became another one within the hour.

    `changes` looks at the samples of a window alone. So that a change from the last sample before the hour to the first
    one in it counts, and only once, more is looked at, and what lies before the hour is taken off again.
    """
    before = f"changes({series}[{EARLIER}] offset {HOUR})"
    all_of_it = f"changes({series}[{HOUR_AND_EARLIER}])"
    return f"{all_of_it} - ({before} or 0 * {all_of_it}) > 0"


def last_xid_query(device: DeviceMetrics, metric: str) -> str:
    """The last code of each container whose code changed within the hour.

    The metric keeps the last code for good, so that a pod may begin with the fault of the one before it.
    """
    series = device.select(metric)
    return f"max by ({device.scheme.labels}) (last_over_time({series}[{HOUR}]) and {changed_within_hour(series)})"


def xid_count_query(device: DeviceMetrics) -> str:
    """How often each code was reported within the hour."""
    return f"max by ({device.scheme.labels}, xid) (max_over_time({device.select(XID_COUNT)}[{HOUR}])) > 0"


def oom_restart_query(form: LabelScheme, selector: str) -> str:
    """Containers that were started again within the hour after they were killed for memory."""
    killed = metric_selector(LAST_TERMINATION, form.matchers, 'reason="OOMKilled"', selector)
    restarts = metric_selector(RESTARTS, form.matchers, selector)
    return (
        f"max by ({form.labels}) (max_over_time({killed}[{HOUR}]) > 0) and max by "
        f"({form.labels}) ({changed_within_hour(restarts)})"
    )


def oom_termination_query(form: LabelScheme, selector: str) -> str:
    """Containers that were killed for memory and not started again."""
    killed = metric_selector(TERMINATION, form.matchers, 'reason="OOMKilled"', selector)
    return f"max by ({form.labels}) (max_over_time({killed}[{HOUR}]) > 0)"


def pod_owner_queries(form: LabelScheme, pods: Iterable[str], selector: str, window: str) -> Iterator[str]:
    """What owns these pods."""
    return _queries_by_name(POD_OWNER, form, form.pod, pods, selector, window, "owner_kind, owner_name")


def owner_queries(
    metric: str, label: str, form: LabelScheme, names: Iterable[str], selector: str, window: str
) -> Iterator[str]:
    """What owns these ReplicaSets, or Jobs."""
    bare = form._replace(matchers="")
    return _queries_by_name(metric, bare, label, names, selector, window, "owner_kind, owner_name")


def image_queries(form: LabelScheme, pods: Iterable[str], selector: str, window: str) -> Iterator[str]:
    """The images of the containers of these pods."""
    return _queries_by_name(POD_INFO, form, form.pod, pods, selector, window, f"{form.container}, image")


def _queries_by_name(
    metric: str, form: LabelScheme, label: str, names: Iterable[str], selector: str, window: str, also: str
) -> Iterator[str]:
    """One query for some hundred names at once. What cannot be the name of an object is not asked for."""
    usable = iter(sorted(name for name in names if OBJECT_NAME.fullmatch(name)))
    while some := list(islice(usable, NAMES_PER_QUERY)):
        pattern = "|".join(some).replace(".", "[.]")
        series = metric_selector(metric, form.matchers, f'{label}=~"{pattern}"', selector)
        yield f"group by ({form.namespace}, {label}, {also}) (last_over_time({series}[{window}]))"
