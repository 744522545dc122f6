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
LAST_END = "kube_pod_container_status_last_terminated_reason"
END = "kube_pod_container_status_terminated_reason"
RESTARTS = "kube_pod_container_status_restarts_total"

HAS_POD = 'pod!=""'
HOUR = "1h"
EARLIER = "10m"
HOUR_AND_EARLIER = "70m"
NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}")
NAMES_AT_ONCE = 400
"""Names in one query: about 25 KiB of text."""


class Form(NamedTuple):
    """How the labels are called that name a container.

    Attributes:
        only: The matchers that hold for series with these labels.
    """

    namespace: str
    pod: str
    container: str
    only: str

    @property
    def labels(self) -> str:
        """Parted by commas, as in PromQL."""
        return f"{self.namespace}, {self.pod}, {self.container}"


OLD = Form("pod_namespace", "pod_name", "container_name", 'pod_name!=""')
EXPORTED = Form("exported_namespace", "exported_pod", "exported_container", 'exported_pod!="",pod_name=""')
PLAIN = Form("namespace", "pod", "container", 'pod!="",exported_pod="",pod_name=""')
FORMS = (PLAIN, EXPORTED, OLD)
"""With honorLabels, without, and as exporters before 2020 had them."""


class Device(NamedTuple):
    """Series of GPUs: how their labels are called, which of them exist, and what else every query must match."""

    form: Form
    names: frozenset[str]
    selector: str = ""

    def has(self, *names: str) -> str:
        """The first of these metrics that exists; "" where none does."""
        return next((name for name in names if name in self.names), "")

    def series(self, metric: str) -> str:
        """Those of one metric that name a pod."""
        return selected(metric, self.form.only, self.selector)


def selected(metric: str, *matchers: str) -> str:
    """A selector in PromQL.

    >>> selected("up", 'job="a"', "")
    'up{job="a"}'
    """
    return f"{metric}{{{','.join(filter(None, matchers))}}}"


def over(function: str, device: Device, metric: str, window: str) -> str:
    """A function over the last `window` of a metric, without what an exporter says of GPUs that nobody holds.

    Without honorLabels, the series of an idle GPU bears the name of the exporter's own pod, as `up` does.
    """
    seen = f"{function}{device.series(metric)}[{window}])"
    if device.form is not PLAIN:
        return seen
    up = f"max_over_time({selected('up', HAS_POD, device.selector)}[{window}])"
    return f"({seen} unless on (job, instance, namespace, pod) {up})"


def many(device: Device) -> str:
    """How many containers use GPUs at a moment."""
    return f"count(group by ({device.form.labels}) ({device.series(FB_USED)}))"


def peaks(device: Device, step: int) -> str:
    """The largest memory in use in the last step, the worst GPU of the container: MiB.

    Not of a GPU that two pods hold at once: what is measured of one is all of it, so it says nothing about either.
    """
    form = device.form
    held = f"group by (UUID, GPU_I_ID, {form.namespace}, {form.pod}) ({device.series(FB_USED)})"
    shared = f"count by (UUID, GPU_I_ID) ({held}) > 1"
    seen = over("max_over_time(", device, FB_USED, f"{step}s")
    return f"max by ({form.labels}) ({seen} unless on (UUID, GPU_I_ID) ({shared}))"


def mean(device: Device, window: str) -> str:
    """The mean memory in use: MiB."""
    return f"max by ({device.form.labels}) ({over('avg_over_time(', device, FB_USED, window)})"


def capacity(device: Device, window: str) -> str:
    """The memory of the GPU or MIG instance: MiB."""
    parts = [name for name in (FB_USED, FB_FREE, FB_RESERVED) if name in device.names]
    total = " + ".join(f"last_over_time({device.series(name)}[{window}])" for name in parts)
    return f"max by ({device.form.labels}) ({total})"


def compute(device: Device, metric: str, window: str) -> str:
    """The 95th percentile of a metric of compute, by product and MIG profile; the worst GPU of the container."""
    labels = f"{device.form.labels}, modelName, GPU_I_PROFILE"
    return f"max by ({labels}) ({over('quantile_over_time(0.95, ', device, metric, window)})"


def active(device: Device, metric: str, window: str) -> str:
    """The largest activity that was seen."""
    return f"max by ({device.form.labels}) ({over('max_over_time(', device, metric, window)})"


def changed(series: str) -> str:
    """Series whose value became another one within the hour.

    `changes` looks at the samples of a window alone. So that a change from the last sample before the hour to the first
    one in it counts, and only once, more is looked at, and what lies before the hour is taken off again.
    """
    before = f"changes({series}[{EARLIER}] offset {HOUR})"
    all_of_it = f"changes({series}[{HOUR_AND_EARLIER}])"
    return f"{all_of_it} - ({before} or 0 * {all_of_it}) > 0"


def xids(device: Device, metric: str) -> str:
    """The last code of each container whose code changed within the hour.

    The metric keeps the last code for good, so that a pod may begin with the fault of the one before it.
    """
    series = device.series(metric)
    return f"max by ({device.form.labels}) (last_over_time({series}[{HOUR}]) and {changed(series)})"


def counted_xids(device: Device) -> str:
    """How often each code was reported within the hour."""
    return f"max by ({device.form.labels}, xid) (max_over_time({device.series(XID_COUNT)}[{HOUR}])) > 0"


def restarted_for_memory(form: Form, selector: str) -> str:
    """Containers that were started again within the hour after they were killed for memory."""
    killed = selected(LAST_END, form.only, 'reason="OOMKilled"', selector)
    restarts = selected(RESTARTS, form.only, selector)
    return (
        f"max by ({form.labels}) (max_over_time({killed}[{HOUR}]) > 0) and max by ({form.labels}) ({changed(restarts)})"
    )


def ended_for_memory(form: Form, selector: str) -> str:
    """Containers that were killed for memory and not started again."""
    killed = selected(END, form.only, 'reason="OOMKilled"', selector)
    return f"max by ({form.labels}) (max_over_time({killed}[{HOUR}]) > 0)"


def pod_owners(form: Form, pods: Iterable[str], selector: str, window: str) -> Iterator[str]:
    """What owns these pods."""
    return _named(POD_OWNER, form, form.pod, pods, selector, window, "owner_kind, owner_name")


def owners(metric: str, label: str, form: Form, names: Iterable[str], selector: str, window: str) -> Iterator[str]:
    """What owns these ReplicaSets, or Jobs."""
    bare = form._replace(only="")
    return _named(metric, bare, label, names, selector, window, "owner_kind, owner_name")


def images(form: Form, pods: Iterable[str], selector: str, window: str) -> Iterator[str]:
    """The images of the containers of these pods."""
    return _named(POD_INFO, form, form.pod, pods, selector, window, f"{form.container}, image")


def _named(
    metric: str, form: Form, label: str, names: Iterable[str], selector: str, window: str, also: str
) -> Iterator[str]:
    """One query for some hundred names at once. What cannot be the name of an object is not asked for."""
    usable = iter(sorted(name for name in names if NAME.fullmatch(name)))
    while some := list(islice(usable, NAMES_AT_ONCE)):
        pattern = "|".join(some).replace(".", "[.]")
        series = selected(metric, form.only, f'{label}=~"{pattern}"', selector)
        yield f"group by ({form.namespace}, {label}, {also}) (last_over_time({series}[{window}]))"
