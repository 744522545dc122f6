"""One installation for all tests of this folder: its policies only right-size and account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.installation import (
    ADMISSION_API,
    POLICIES,
    Installation,
    install_from_page,
    patch_webhooks,
)
from tests.cluster.no_harm.admission_trials import ACCOUNTED, BYPASS_LABEL
from tests.cluster.nodes import add_nodes, demo_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.policy.policy_texts import policy_text


@pytest.fixture(scope="package")
def sizing(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Install the webhooks without the backstop's denials, the example cluster's nodes, and two policies."""
    folder = tmp_path_factory.mktemp("sizing")
    nodes = add_nodes(plane, demo_nodes())
    try:
        with install_from_page(plane, folder, policies=write_policies(folder / "policies")) as site:
            exclude_bypass_pods(plane)
            yield site
    finally:
        remove_nodes(plane, nodes)


def write_policies(folder: Path) -> Path:
    """Write the shipped right-sizing policy, and one with accounting for namespaces with a label; return the folder."""
    folder.mkdir()
    sizing, accounting = folder / "right-sizing.yaml", folder / "accounting.yaml"
    sizing.write_text((POLICIES / sizing.name).read_text(encoding="utf-8"), encoding="utf-8")
    match = {"namespaceSelector": {"matchLabels": ACCOUNTED}}
    text = policy_text(
        "accounting", mode="enforce", match=match, limits={"accounting": "native", "accountingScheduler": "configured"}
    )
    accounting.write_text(text, encoding="utf-8")
    return folder


def exclude_bypass_pods(plane: Plane) -> None:
    """Disable the backstop, and exclude pods with the bypass label from the webhooks."""
    plane.api.delete(f"/apis/{ADMISSION_API}/validatingadmissionpolicybindings/rightslice-pods")
    selector = {"matchExpressions": [{"key": BYPASS_LABEL, "operator": "DoesNotExist"}]}
    patch_webhooks(plane, lambda webhook: {**webhook, "objectSelector": selector})
