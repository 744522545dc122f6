"""What was chosen when Rightslice was installed, as the Deployment has it: mode, image, who keeps the certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from webhook.installing.finding import find
from webhook.kube.api import Api
from webhook.manifests.objects import DEPLOYMENT

MODE = "RIGHTSLICE_MODE"
CONTAINER = "webhook"


class Chosen(NamedTuple):
    """What a Deployment says.

    Attributes:
        mode: "": it names none.
        image: "": it names none.
        issued: Somebody else, such as cert-manager, keeps the certificate in files.
    """

    mode: str = ""
    image: str = ""
    issued: bool = False


async def chosen_in(api: Api) -> Chosen:
    """What is installed; nothing chosen where there is no Deployment.

    Raises:
        ApiError: the API server does not let us read it, or does not answer.
    """
    deployment = await find(api, DEPLOYMENT)
    return Chosen() if deployment is None else chosen(deployment)


def chosen(deployment: Mapping[str, Any]) -> Chosen:
    """What a Deployment says of our own container. Those that others added do not count."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    ours: Mapping[str, Any] = next((one for one in containers if one["name"] == CONTAINER), {})
    variables = {variable["name"]: str(variable.get("value") or "") for variable in ours.get("env") or ()}
    issued = any(str(argument).startswith("--tls-cert") for argument in ours.get("args") or ())
    return Chosen(variables.get(MODE, ""), str(ours.get("image") or ""), issued)
