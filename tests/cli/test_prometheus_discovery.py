"""Services of Prometheus and of what answers as it does, found by their labels in a cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest

from webhook.cli.usage_inputs import find_prometheus_service
from webhook.kube.api import KubeClient

Json = dict[str, Any]


class LabeledServices:
    """An API server with Services, each found by one selector."""

    def __init__(self, **selectors: str) -> None:
        self.selectors = selectors

    async def get(self, path: str, params: Json) -> Json:
        """Return the Services that a selector finds."""
        found = [name for name, selector in self.selectors.items() if selector == params["labelSelector"]]
        ports = [{"name": "http", "port": 9090}]
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
