"""The installer's probe: a dry run that shows which routes respond."""

from __future__ import annotations

import base64
import json

from tests.builders import Json, make_pod
from tests.server.site import Site, review, serve_site
from webhook.model.annotations import PROBE_ANNOTATION
from webhook.report.object_diff import apply_json_patch

PROBING = make_pod().annotate(PROBE_ANNOTATION, "who answers?").build()


def probe_response(site: Site, route: str, pod: Json, *, dry_run: bool = True) -> Json:
    """The response to a review of a pod."""
    response: Json = site.evaluate(review(pod, dryRun=dry_run), route).response
    return response


def test_both_routes_answer_a_probe() -> None:
    with serve_site() as site:
        shaped = probe_response(site, "/mutate", PROBING)
        pod = apply_json_patch(PROBING, json.loads(base64.b64decode(shaped["patch"])))
        both, one = probe_response(site, "/validate", pod), probe_response(site, "/validate", PROBING)

    assert shaped["allowed"]
    assert (both["allowed"], both["status"]["message"]) == (False, "rightslice answers: validate and mutate")
    assert (one["allowed"], one["status"]["message"]) == (False, "rightslice answers: validate, but not mutate")


def test_a_probe_without_dry_run_is_evaluated() -> None:
    with serve_site() as site:
        for route in ("/mutate", "/validate"):
            assert probe_response(site, route, PROBING, dry_run=False) == {"uid": "u-1", "allowed": True}
            assert probe_response(site, route, make_pod().build()) == {"uid": "u-1", "allowed": True}
