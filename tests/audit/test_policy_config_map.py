"""The policy files in the ConfigMap of a live cluster, and a missing ConfigMap."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kube.scripted import Answer, error_answer, json_answer, scripted_api
from webhook.audit.cluster_reader import PolicyTexts, read_policy_config_map
from webhook.errors import ApiError

WHERE = "configmap/ours/rightslice-policies"
FILES: dict[str, tuple[Answer, PolicyTexts, str]] = {
    "files are sorted by name": (
        json_answer({"data": {"b.yaml": "b", "a.json": "a"}}),
        ((f"{WHERE}/a.json", "a"), (f"{WHERE}/b.yaml", "b")),
        "",
    ),
    "other files are skipped": (
        json_answer({"data": {"README.md": "x", ".hidden.yaml": "x", "c.yml": "c"}}),
        ((f"{WHERE}/c.yml", "c"),),
        "",
    ),
    "an empty ConfigMap": (json_answer({"kind": "ConfigMap"}), (), ""),
    "no ConfigMap": (error_answer(404, "NotFound"), (), ""),
    "a forbidden ConfigMap": (error_answer(403, "Forbidden", "not yours"), (), "403 Forbidden: not yours"),
}


@pytest.mark.parametrize(("answer", "want", "why"), FILES.values(), ids=FILES)
async def test_policy_files(answer: Answer, want: PolicyTexts, why: str, tmp_path: Path) -> None:
    async with scripted_api(tmp_path, answer) as (server, api):
        found, unread = await read_policy_config_map(api, "ours")
    assert found == want
    assert unread.endswith(why)
    assert bool(unread) is bool(why)
    assert [each.path for each in server.requests] == ["/api/v1/namespaces/ours/configmaps/rightslice-policies"]


async def test_failing_server_is_an_error(tmp_path: Path) -> None:
    async with scripted_api(tmp_path, error_answer(500, "InternalError")) as (_, api):
        with pytest.raises(ApiError, match="500 InternalError"):
            await read_policy_config_map(api, "ours")
