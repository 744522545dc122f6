"""Read the settings of the current installation from its Deployment: mode, image, and source of the certificate."""

from __future__ import annotations

from collections.abc import Container, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from webhook.errors import ApiError
from webhook.kube.api import KubeClient
from webhook.manifests.objects import DEPLOYMENT_PATH
from webhook.well_known import Json

MODE_VARIABLE = "RIGHTSLICE_MODE"
CONTAINER = "webhook"


class CurrentInstall(NamedTuple):
    """Settings of an installation; "" if unset.

    Attributes:
        mode: The webhook's mode.
        image: Its image.
        external_certificate: True if the certificate comes from files, for example of cert-manager.
    """

    mode: str = ""
    image: str = ""
    external_certificate: bool = False


async def read_current_install(api: KubeClient) -> CurrentInstall:
    """Read the settings; all are empty without a Deployment.

    Raises:
        ApiError: The API server rejects the request, or does not answer.
    """
    deployment = await find_object(api, DEPLOYMENT_PATH)
    return CurrentInstall() if deployment is None else parse_deployment(deployment)


def parse_deployment(deployment: Mapping[str, Any]) -> CurrentInstall:
    """Return the settings of the webhook's container; other containers are ignored."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    container: Mapping[str, Any] = next((one for one in containers if one["name"] == CONTAINER), {})
    variables = {variable["name"]: str(variable.get("value") or "") for variable in container.get("env") or ()}
    external = any(str(argument).startswith("--tls-cert") for argument in container.get("args") or ())
    return CurrentInstall(variables.get(MODE_VARIABLE, ""), str(container.get("image") or ""), external)


async def find_object(api: KubeClient, path: str, absent: Container[int] = (HTTPStatus.NOT_FOUND,)) -> Json | None:
    """Read an object; return None if the API server answers with one of these statuses.

    Raises:
        ApiError: Any other error.
    """
    try:
        return await api.get(path)
    except ApiError as error:
        if error.status not in absent:
            raise
        return None
