"""One installation for all tests of this folder: its policies right-size and weigh, and do nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.client import Json
from tests.cluster.installation import POLICIES, Installation, install_from_page
from tests.cluster.no_harm.admission_trials import ACCOUNTED, BYPASS_LABEL
from tests.cluster.nodes import add_nodes, demo_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.policy.policy_texts import policy_text
from webhook.manifests.objects import WEBHOOK_KINDS, api_path

HOOKS_API = "admissionregistration.k8s.io/v1"


@pytest.fixture(scope="package")
def sizing(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """The hooks without the backstop's refusals, the example cluster's nodes, and two policies."""
    folder = tmp_path_factory.mktemp("sizing")
    nodes = add_nodes(plane, demo_nodes())
    try:
        with install_from_page(plane, folder, policies=two_policies(folder / "policies")) as site:
            leave_out(plane)
            yield site
    finally:
        remove_nodes(plane, nodes)


def two_policies(folder: Path) -> Path:
    """The shipped right-sizing, and accounting for namespaces that have a label."""
    folder.mkdir()
    sizing, accounting = folder / "right-sizing.yaml", folder / "accounting.yaml"
    sizing.write_text((POLICIES / sizing.name).read_text(encoding="utf-8"), encoding="utf-8")
    there = {"namespaceSelector": {"matchLabels": ACCOUNTED}}
    text = policy_text(
        "accounting", mode="enforce", match=there, limits={"accounting": "native", "accountingScheduler": "configured"}
    )
    accounting.write_text(text, encoding="utf-8")
    return folder


def leave_out(plane: Plane) -> None:
    """Let nothing be refused by the backstop, and send us no pod that says that it goes past us."""
    plane.api.delete(f"/apis/{HOOKS_API}/validatingadmissionpolicybindings/rightslice-pods")
    selector = {"matchExpressions": [{"key": BYPASS_LABEL, "operator": "DoesNotExist"}]}
    for kind in WEBHOOK_KINDS:
        path = api_path({"apiVersion": HOOKS_API, "kind": kind, "metadata": {"name": "rightslice"}})
        hooks: list[Json] = plane.api.get(path)["webhooks"]
        places = [f"/webhooks/{place}/objectSelector" for place in range(len(hooks))]
        plane.api.patch(path, [{"op": "add", "path": place, "value": selector} for place in places], "json")
