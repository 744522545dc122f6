"""Services of Prometheus and of what answers as it does, found by their labels in a cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.cli.conftest import Run
from webhook.cli.usage_inputs import find_prometheus_service
from webhook.kube.api import KubeClient

Json = dict[str, Any]


class LabeledServices:
    """An API server with Services, each found by one selector."""

    def __init__(self, port_name: str = "http", **selectors: str) -> None:
        self.port_name, self.selectors = port_name, selectors

    async def get(self, path: str, params: Json) -> Json:
        """Return the Services that a selector finds."""
        found = [name for name, selector in self.selectors.items() if selector == params["labelSelector"]]
        ports = [{"name": "grpc", "port": 9095}, {"name": self.port_name, "port": 9090}]
        return {"items": [{"metadata": {"namespace": "m", "name": name}, "spec": {"ports": ports}} for name in found]}


@pytest.mark.parametrize(
    "selector",
    [
        "app=kube-prometheus-stack-prometheus",
        "app.kubernetes.io/name=vmsingle",
        "app.kubernetes.io/name=thanos-query",
        "app in (thanos-query, thanos-querier)",
        "app.kubernetes.io/name=prometheus",
    ],
)
async def test_a_service_is_found_by_usual_labels(selector: str) -> None:
    service = await find_prometheus_service(cast("KubeClient", LabeledServices(only=selector)))
    assert service is not None
    assert service.name == "only"


async def test_a_service_with_labels_that_say_more_is_preferred() -> None:
    services = LabeledServices(bare="app.kubernetes.io/name=prometheus", stack="app=kube-prometheus-stack-prometheus")
    service = await find_prometheus_service(cast("KubeClient", services))
    assert service is not None
    assert service.name == "stack"


MIMIR = "app.kubernetes.io/name=mimir,app.kubernetes.io/component=query-frontend"
PREFIXES = {
    "a Prometheus": ("app.kubernetes.io/name=prometheus", "web", ""),
    "VictoriaMetrics of the operator": ("app.kubernetes.io/name=vmselect", "http", "/select/0/prometheus"),
    "VictoriaMetrics of the chart": ("app=vmselect", "http", "/select/0/prometheus"),
    "Mimir": (MIMIR, "http-metrics", "/prometheus"),
}


@pytest.mark.parametrize(("selector", "port_name", "prefix"), PREFIXES.values(), ids=PREFIXES)
async def test_the_api_has_the_prefix_of_its_program(selector: str, port_name: str, prefix: str) -> None:
    service = await find_prometheus_service(cast("KubeClient", LabeledServices(port_name, only=selector)))
    assert service is not None
    assert service.path == f"/api/v1/namespaces/m/services/http:only:9090/proxy{prefix}"


def test_a_service_that_has_no_name_here_gets_another_hint_than_credentials(rightslice: Run) -> None:
    service, host = (
        rightslice("rightsize", "--cluster", "demo", "--prometheus", f"http://p.{domain}:1").err
        for domain in ("m.svc", "invalid")
    )
    assert "leave --prometheus out, and it is found by its labels, or forward its port: kubectl port-forward" in service
    assert "If it needs credentials" in host
