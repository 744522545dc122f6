"""What was chosen when Rightslice was installed, as the Deployment has it: mode, image, who keeps the certificate."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from webhook.errors import ApiError
from webhook.kube.api import KubeClient
from webhook.manifests.objects import DEPLOYMENT_PATH

ABSENT_STATUSES = (HTTPStatus.NOT_FOUND,)


MODE_VARIABLE = "RIGHTSLICE_MODE"
CONTAINER = "webhook"


class CurrentInstall(NamedTuple):
    """What a Deployment says.

    Attributes:
        mode: "": it names none.
        image: "": it names none.
        issued: Somebody else, such as cert-manager, keeps the certificate in files.
    """

    mode: str = ""
    image: str = ""
    external_certificate: bool = False


async def read_current_install(api: KubeClient) -> CurrentInstall:
    """What is installed; nothing chosen where there is no Deployment.

    Raises:
        ApiError: the API server does not let us read it, or does not answer.
    """
    deployment = await find_object(api, DEPLOYMENT_PATH)
    return CurrentInstall() if deployment is None else parse_deployment(deployment)


def parse_deployment(deployment: Mapping[str, Any]) -> CurrentInstall:
    """What a Deployment says of our own container. Those that others added do not count."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    ours: Mapping[str, Any] = next((one for one in containers if one["name"] == CONTAINER), {})
    variables = {variable["name"]: str(variable.get("value") or "") for variable in ours.get("env") or ()}
    issued = any(str(argument).startswith("--tls-cert") for argument in ours.get("args") or ())
    return CurrentInstall(variables.get(MODE_VARIABLE, ""), str(ours.get("image") or ""), issued)


async def find_object(api: KubeClient, path: str, absent: tuple[int, ...] = ABSENT_STATUSES) -> dict[str, Any] | None:
    """An object; None where the API server answers with one of these statuses.

    Raises:
        ApiError: it refuses otherwise, or does not answer.
    """
    try:
        return await api.get(path)
    except ApiError as error:
        if error.status not in absent:
            raise
        return None
