"""What was chosen when Rightslice was installed: the mode and the image, as the Deployment has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from webhook.errors import ApiError
from webhook.kube.api import Api
from webhook.manifests.objects import DEPLOYMENT

MODE = "RIGHTSLICE_MODE"
CONTAINER = "webhook"
NOT_FOUND = 404


class Chosen(NamedTuple):
    """A mode and an image; "" where the Deployment names none."""

    mode: str = ""
    image: str = ""


async def chosen_in(api: Api) -> Chosen:
    """What is installed; nothing chosen where there is no Deployment.

    Raises:
        ApiError: the API server does not let us read it, or does not answer.
    """
    try:
        return chosen(await api.get(DEPLOYMENT))
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return Chosen()


def chosen(deployment: Mapping[str, Any]) -> Chosen:
    """The mode and the image of a Deployment. Containers that others added do not count."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    ours: Mapping[str, Any] = next((one for one in containers if one["name"] == CONTAINER), {})
    variables = {variable["name"]: str(variable.get("value") or "") for variable in ours.get("env") or ()}
    return Chosen(variables.get(MODE, ""), str(ours.get("image") or ""))
