"""Find the Prometheus of a cluster by the labels of its Service, and reach it through the API server's proxy.

The labels are those of the usual charts, as KRR knows them, and of the operator's own Service. The proxy works wherever
the API server does, with the caller's credentials: it needs the permission to create `services/proxy`.

Source: robusta-dev/krr `prometheus_metrics_service.py`; Kubernetes API `connectPostNamespacedServiceProxyWithPath`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from webhook.kube.api import KubeClient
from webhook.usage.prometheus_source import PrometheusEndpoint

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
    "app.kubernetes.io/name in (thanos, thanos-query),app.kubernetes.io/component in (query, query-layer)",
)
PORT_NAMES = ("http-web", "web", "http", "https", "http-query")
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
        """The path of its proxy on the API server."""
        return f"/api/v1/namespaces/{self.namespace}/services/{self.scheme}:{self.name}:{self.port}/proxy"

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
