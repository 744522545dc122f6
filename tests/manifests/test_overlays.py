"""The overlay for a server outside of the cluster calls each webhook by the path that its Service has."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from webhook.documents.reader import read_documents
from webhook.manifests.webhooks import webhook_configurations

OVERLAY = ROOT / "manifests" / "overlays" / "out-of-cluster"


@pytest.mark.parametrize(("index", "file"), [(0, "mutating-by-url.yaml"), (1, "validating-by-url.yaml")])
def test_each_webhook_is_called_by_url(index: int, file: str) -> None:
    webhooks = webhook_configurations()[index]["webhooks"]
    [document] = read_documents((OVERLAY / file).read_bytes(), file, aliases=False)
    urls = {each["path"]: each["value"]["url"] for each in document.data}

    assert urls == {
        f"/webhooks/{place}/clientConfig": f"https://127.0.0.1:8443{webhook['clientConfig']['service']['path']}"
        for place, webhook in enumerate(webhooks)
    }
