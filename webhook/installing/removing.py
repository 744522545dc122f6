"""Takes the manifests out of a cluster again, and stays until what takes its time to go has gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webhook.errors import ApiError
from webhook.installing.leaving import until_gone
from webhook.kube.api import Api
from webhook.manifests.objects import named, path_of, to_remove

Json = dict[str, Any]
Say = Callable[[str], None]

NOT_FOUND = 404


async def uninstall(api: Api, objects: Sequence[Json], say: Say, *, with_policies: bool, seconds: float) -> None:
    """Remove what was installed, the hooks first of all, and wait for its end. What is gone already is no error.

    Args:
        objects: The manifests.
        with_policies: Also the CRDs and the namespace, which take their time to go.
        seconds: How long to wait for their end.

    Raises:
        LeavingError: something was still there by then.
        ApiError: the API server refuses something, or does not answer.
    """
    leaving = to_remove(objects, with_policies=with_policies)
    for one in leaving:
        try:
            await api.delete(path_of(one), {"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
        else:
            say(f"removed {named(one)}")
    await until_gone(api, leaving, seconds)
