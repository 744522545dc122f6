"""GPU usage for commands: of a named Prometheus, or of the cluster's own.

Find the Prometheus of a cluster by the labels of its Service, and reach it through the API server's proxy.

The labels are those of the usual charts, as KRR knows them, and of the operator's own Service. The proxy works wherever
the API server does, with the caller's credentials: it needs the permission to create `services/proxy`.

Source: robusta-dev/krr `prometheus_metrics_service.py`; Kubernetes API `connectPostNamespacedServiceProxyWithPath`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from webhook.cli.cluster_access import ClusterFlags, call_api
from webhook.cli.output import EXIT_NO_ANSWER, exit_with_error, print_note
from webhook.cli.usage_records import ClusterUsage, check_age
from webhook.errors import ApiError, UsageError
from webhook.kube.api import KubeClient
from webhook.report.text import pluralize, sanitize
from webhook.usage.history_reader import PrometheusReading, read_histories
from webhook.usage.prometheus import PrometheusClient
from webhook.usage.prometheus_source import PrometheusEndpoint, PrometheusSource
from webhook.usage.record_file import UsageRecord

CREDENTIALS_HINT = "If it needs credentials, write a file with rightslice usage record, and name it with --usage"

SERVICE_HINT = (
    "A Service has a name only in the cluster. Elsewhere leave --prometheus out, and it is found by its labels, or "
    "forward its port: kubectl port-forward -n NAMESPACE service/NAME 9090"
)


@lru_cache(maxsize=1)
def read_prometheus(url: str, moment: datetime) -> UsageRecord | None:
    """Read the usage of the last days from a Prometheus. Exits if it cannot be read."""
    try:
        client = PrometheusClient(PrometheusSource(url))
    except UsageError as error:
        exit_with_error(f"--prometheus: {sanitize(str(error))}")
    try:
        reading = asyncio.run(read_usage_history(client))
    except UsageError as error:
        hint = SERVICE_HINT if _is_service(url) else CREDENTIALS_HINT
        exit_with_error(f"--prometheus: {sanitize(str(error))}. {hint}", EXIT_NO_ANSWER)
    return _record_of(reading, f"--prometheus {sanitize(url)}", moment, exit_with_error)


def _is_service(url: str) -> bool:
    """Return whether a URL names a Service: NAME.NAMESPACE.svc."""
    return (urlsplit(url).hostname or "").split(".")[2:3] == ["svc"]


@lru_cache(maxsize=1)
def read_cluster_prometheus(access: ClusterFlags, moment: datetime) -> ClusterUsage:
    """Read usage from the cluster's own Prometheus, found by its Service; prints a note if that is impossible."""

    async def read(api: KubeClient) -> tuple[PrometheusService | None, PrometheusReading | str]:
        try:
            service = await find_prometheus_service(api)
        except ApiError as error:
            return None, f"no Prometheus was searched: {error}"
        if service is None:
            return None, "no Prometheus was found in the cluster. Name one: --prometheus URL, or --usage FILE"
        endpoint = await service.endpoint(api)
        try:
            return service, await read_usage_history(PrometheusClient(PrometheusSource(endpoint.base_url), endpoint))
        except UsageError as error:
            return service, str(error)

    service, reading = call_api(access, read)
    if service is None or isinstance(reading, str):
        where = f"{service.label}, found by its labels, was not read: " if service else ""
        _note_without_usage(f"{where}{reading}")
        return ClusterUsage(None, f"{where}{reading}")
    source = f"Prometheus {service.label}"
    others = f"; {pluralize(service.others, 'other')} not read" if service.others else ""
    print_note(f"usage: {source}, found by {service.selector}, through the API server{others}")
    return ClusterUsage(_record_of(reading, source, moment, _note_without_usage))


async def read_usage_history(client: PrometheusClient) -> PrometheusReading:
    """Read the usage of the last days within the time limit.

    Raises:
        UsageError: There is no usable answer in time.
    """
    seconds = client.source.seconds
    if sys.stderr.isatty():
        days = pluralize(client.source.days, "day")
        print_note(f"reading {days} of usage from {client.source.base_url}; this may take minutes")
    try:
        async with client, asyncio.timeout(seconds):
            return await read_histories(client, time.time)
    except TimeoutError as error:
        raise UsageError(f"{client.source.base_url}: must answer within {seconds:g} s in total, did not") from error


def _note_without_usage(sentence: str) -> None:
    print_note(f"note: usage: {sanitize(sentence)}")


def _record_of(
    reading: PrometheusReading, source: str, moment: datetime, reject: Callable[[str], None]
) -> UsageRecord | None:
    for note in reading.notes:
        print_note(f"note: {sanitize(note)}")
    return check_age(UsageRecord(reading.histories, reading.now), source, moment, reject)


LABEL_SELECTORS = (
    "app=kube-prometheus-stack-prometheus",
    "app=prometheus,component=server,release!=kubecost",
    "app=prometheus-server",
    "app.kubernetes.io/name=prometheus,app.kubernetes.io/component in (server, prometheus)",
    "app=prometheus-operator-prometheus",
    "app=rancher-monitoring-prometheus",
    "app=prometheus-prometheus",
    "operated-prometheus=true",
    "app.kubernetes.io/name=vmsingle",
    "app.kubernetes.io/name=victoria-metrics-single",
    "app.kubernetes.io/name=vmselect",
    "app=vmselect",
    "app.kubernetes.io/name in (thanos, thanos-query),app.kubernetes.io/component in (query, query-layer)",
    "app.kubernetes.io/name=thanos-query",
    "app in (thanos-query, thanos-querier)",
    "app.kubernetes.io/name=prometheus",
    "app.kubernetes.io/name=mimir,app.kubernetes.io/component=query-frontend",
)
API_PREFIXES = {
    "app.kubernetes.io/name=vmselect": "/select/0/prometheus",
    "app=vmselect": "/select/0/prometheus",
    "app.kubernetes.io/name=mimir,app.kubernetes.io/component=query-frontend": "/prometheus",
}
"""The path before `/api/v1` of what some selectors find; 0 is the default tenant of VictoriaMetrics."""

PORT_NAMES = ("http-web", "web", "http", "https", "http-query", "http-metrics")
MAX_SERVICES = 20
"""Services to read for each selector."""


class PrometheusService(NamedTuple):
    """The Service of a Prometheus.

    Attributes:
        others: Number of further Services with the same labels.
    """

    namespace: str
    name: str
    port: int
    scheme: str
    selector: str
    others: int

    @property
    def label(self) -> str:
        """The Service for people."""
        return f"{self.namespace}/{self.name}:{self.port}"

    @property
    def path(self) -> str:
        """The path of its API below the proxy on the API server, without `/api/v1`."""
        proxy = f"/api/v1/namespaces/{self.namespace}/services/{self.scheme}:{self.name}:{self.port}/proxy"
        return f"{proxy}{API_PREFIXES.get(self.selector, '')}"

    async def endpoint(self, api: KubeClient) -> PrometheusEndpoint:
        """Return how to reach it through the API server."""
        access = api.access
        authorization = await access.authorization()
        return PrometheusEndpoint(api.server + self.path, access.tls, authorization, access.server_name, access.proxy)


async def find_prometheus_service(api: KubeClient) -> PrometheusService | None:
    """Return the first Service with the labels of a Prometheus; None if there is none.

    Raises:
        ApiError: The API server does not answer, or does not permit listing Services.
    """
    for selector in LABEL_SELECTORS:
        params = {"labelSelector": selector, "limit": str(MAX_SERVICES)}
        items = (await api.get("/api/v1/services", params)).get("items") or ()
        if found := _first_service(items, selector):
            return found
    return None


def _first_service(items: Iterable[Mapping[str, Any]], selector: str) -> PrometheusService | None:
    """Return the first Service by namespace and name that has a port."""
    usable = [item for item in items if item.get("spec", {}).get("ports")]
    if not usable:
        return None
    first = min(usable, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))
    port = min(first["spec"]["ports"], key=_port_rank)
    secure = port.get("name") == "https" or port.get("appProtocol") == "https"
    scheme, metadata = "https" if secure else "http", first["metadata"]
    return PrometheusService(
        metadata["namespace"], metadata["name"], port["port"], scheme, selector, others=len(usable) - 1
    )


def _port_rank(port: Mapping[str, Any]) -> int:
    name = port.get("name", "")
    return PORT_NAMES.index(name) if name in PORT_NAMES else len(PORT_NAMES)
