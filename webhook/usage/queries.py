"""PromQL queries for GPU usage.

Prometheus aggregates: an answer has one value per container, or one per container and bin of time. `max` merges the
series of two exporters for one GPU, and those of an exporter that was restarted.
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
"""Fields with two names were renamed in DCGM 4.6."""

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
    """Names of the labels that identify a container.

    Attributes:
        matchers: Matchers that select series with these labels.
    """

    namespace: str
    pod: str
    container: str
    matchers: str

    @property
    def labels(self) -> str:
        """The label names separated by commas, as in PromQL."""
        return f"{self.namespace}, {self.pod}, {self.container}"


LEGACY_LABELS = LabelScheme("pod_namespace", "pod_name", "container_name", 'pod_name!=""')
EXPORTED_LABELS = LabelScheme(
    "exported_namespace", "exported_pod", "exported_container", 'exported_pod!="",pod_name=""'
)
PLAIN_LABELS = LabelScheme("namespace", "pod", "container", 'pod!="",exported_pod="",pod_name=""')
LABEL_SCHEMES = (PLAIN_LABELS, EXPORTED_LABELS, LEGACY_LABELS)
"""With honorLabels, without it, and as in exporters before 2020."""


class DeviceMetrics(NamedTuple):
    """GPU metrics that exist with one label scheme, and further matchers for every query."""

    scheme: LabelScheme
    names: frozenset[str]
    selector: str = ""

    def first_existing(self, *names: str) -> str:
        """Return the first of these metrics that exists; "" if none does."""
        return next((name for name in names if name in self.names), "")

    def select(self, metric: str) -> str:
        """Return the selector for series of one metric with a pod."""
        return metric_selector(metric, self.scheme.matchers, self.selector)


def metric_selector(metric: str, *matchers: str) -> str:
    """Return a PromQL selector.

    >>> metric_selector("up", 'job="a"', "")
    'up{job="a"}'
    """
    return f"{metric}{{{','.join(filter(None, matchers))}}}"


def over_window(function: str, device: DeviceMetrics, metric: str, window: str) -> str:
    """Return a function over the last `window` of a metric, without series of unallocated GPUs.

    Without honorLabels, the series of an unallocated GPU has the exporter's own pod as label, as `up` has.
    """
    values = f"{function}{device.select(metric)}[{window}])"
    if device.scheme is not PLAIN_LABELS:
        return values
    up = f"max_over_time({metric_selector('up', HAS_POD, device.selector)}[{window}])"
    return f"({values} unless on (job, instance, namespace, pod) {up})"


def peak_memory_query(device: DeviceMetrics, step: int) -> str:
    """Return the peak memory in the last step, MiB, of the container's fullest GPU.

    GPUs that two pods share at one time are excluded: each pod shows the usage of both.
    """
    scheme = device.scheme
    allocated = f"group by (UUID, GPU_I_ID, {scheme.namespace}, {scheme.pod}) ({device.select(FB_USED)})"
    shared = f"count by (UUID, GPU_I_ID) ({allocated}) > 1"
    values = over_window("max_over_time(", device, FB_USED, f"{step}s")
    return f"max by ({scheme.labels}) ({values} unless on (UUID, GPU_I_ID) ({shared}))"


def container_query(function: str, device: DeviceMetrics, metric: str, window: str, *labels: str) -> str:
    """Return a function over the last `window` of a metric, of the container's GPU with the largest value."""
    return f"max by ({', '.join((device.scheme.labels, *labels))}) ({over_window(function, device, metric, window)})"


def memory_capacity_query(device: DeviceMetrics, window: str) -> str:
    """Return the memory of the GPU or MIG instance, MiB."""
    parts = [name for name in (FB_USED, FB_FREE, FB_RESERVED) if name in device.names]
    total = " + ".join(f"last_over_time({device.select(name)}[{window}])" for name in parts)
    return f"max by ({device.scheme.labels}) ({total})"


def gpu_count_query(device: DeviceMetrics, window: str) -> str:
    """Return the number of GPUs and MIG instances that the container had."""
    labels = device.scheme.labels
    values = over_window("last_over_time(", device, FB_USED, window)
    return f"count by ({labels}) (group by (UUID, GPU_I_ID, {labels}) ({values}))"


def changed_within_hour(series: str) -> str:
    """Return the series whose value changed within the hour.

    `changes` compares samples within its window only. To count a change from the last sample before the hour to the
    first one in it, once, use a longer window and subtract the changes before the hour.
    """
    before = f"changes({series}[{EARLIER}] offset {HOUR})"
    total = f"changes({series}[{HOUR_AND_EARLIER}])"
    return f"{total} - ({before} or 0 * {total}) > 0"


def last_xid_query(device: DeviceMetrics, metric: str) -> str:
    """Return the last XID of each container whose XID changed within the hour.

    The metric keeps the last code, so the first one of a pod may be that of the pod before it.
    """
    series = device.select(metric)
    return f"max by ({device.scheme.labels}) (last_over_time({series}[{HOUR}]) and {changed_within_hour(series)})"


def oom_restart_query(scheme: LabelScheme, selector: str) -> str:
    """Return the containers that restarted within the hour after an OOM kill."""
    oom_killed = metric_selector(LAST_TERMINATION, scheme.matchers, 'reason="OOMKilled"', selector)
    restarts = metric_selector(RESTARTS, scheme.matchers, selector)
    return (
        f"max by ({scheme.labels}) (max_over_time({oom_killed}[{HOUR}]) > 0) and max by "
        f"({scheme.labels}) ({changed_within_hour(restarts)})"
    )


def oom_termination_query(scheme: LabelScheme, selector: str) -> str:
    """Return the containers that were OOM-killed and not restarted."""
    oom_killed = metric_selector(TERMINATION, scheme.matchers, 'reason="OOMKilled"', selector)
    return f"max by ({scheme.labels}) (max_over_time({oom_killed}[{HOUR}]) > 0)"


def queries_by_name(
    metric: str, scheme: LabelScheme, label: str, names: Iterable[str], selector: str, window: str, also: str
) -> Iterator[str]:
    """Yield a query for the labels `also` of objects, per batch of names; invalid object names are skipped."""
    usable = iter(sorted(name for name in names if OBJECT_NAME.fullmatch(name)))
    while some := list(islice(usable, NAMES_PER_QUERY)):
        pattern = "|".join(some).replace(".", "[.]")
        series = metric_selector(metric, scheme.matchers, f'{label}=~"{pattern}"', selector)
        yield f"group by ({scheme.namespace}, {label}, {also}) (last_over_time({series}[{window}]))"
