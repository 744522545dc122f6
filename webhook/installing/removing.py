"""Takes the manifests out of a cluster again, and stays until what takes its time to go has gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webhook.errors import ApiError
from webhook.installing.finding import find
from webhook.installing.leaving import until_gone
from webhook.kube.api import Api
from webhook.manifests.objects import TAKES_TIME, named, path_of, to_remove

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
    found = [await _remove(api, one, say) for one in leaving]
    if not any(found):
        say("there was nothing to remove")
    await until_gone(api, leaving, seconds)


async def _remove(api: Api, one: Json, say: Say) -> bool:
    """Remove one object and say so; False: there is none."""
    try:
        left = await api.delete(path_of(one), {"propagationPolicy": "Background"})
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return False
    say(_said(one, left.get("metadata") or {}))
    return True


def _said(one: Json, left: Json) -> str:
    """What became of an object, by the metadata of what the API server answered."""
    if "deletionTimestamp" not in left:
        return f"removed {named(one)}"
    holding = "" if one["kind"] in TAKES_TIME else ", ".join(left.get("finalizers") or ())
    return f"asked {named(one)} to go{f', held by {holding}' if holding else ''}"


async def keeps_policies(api: Api, objects: Sequence[Json]) -> bool:
    """Is anything there that only an uninstall with its policies takes out: a CRD, or the namespace?

    Raises:
        ApiError: the API server refuses to tell, or does not answer.
    """
    for one in objects:
        if one["kind"] in TAKES_TIME and await find(api, path_of(one)) is not None:
            return True
    return False
