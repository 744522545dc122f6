"""Where Rightslice is installed in a cluster: the namespace of the Service that its webhooks call."""

from __future__ import annotations

from http import HTTPStatus

from webhook.kube.api import ObjectReader, find_object
from webhook.well_known import APP_NAME, SYSTEM_NAMESPACE, Json

WEBHOOKS_PATH = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{APP_NAME}"
VALIDATING_PATH = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{APP_NAME}"


async def find_installed_namespace(api: ObjectReader) -> str:
    """Return the namespace of the installation.

    It is the usual one if there are no webhooks, if they call a server outside the cluster, or if reading them is not
    permitted.

    Raises:
        ApiError: The API server rejects the request otherwise, or does not answer.
    """
    return namespace_of_service(await find_object(api, WEBHOOKS_PATH, (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN)))


def namespace_of_service(webhooks: Json | None) -> str:
    """Return the namespace of the Service that a configuration of webhooks names, else the usual one."""
    found = (webhooks or {}).get("webhooks") or ()
    services = (webhook["clientConfig"].get("service") for webhook in found)
    return next((str(service["namespace"]) for service in services if service), SYSTEM_NAMESPACE)
