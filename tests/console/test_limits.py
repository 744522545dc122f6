"""What the page of a quota or range says about an object, and about the corrected one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.console.conftest import page_words
from webhook.audit.object_files import SourceObject, read_objects
from webhook.console.limits import describe_limits
from webhook.console.reading import ClusterReading
from webhook.report.console.query import PageQuery
from webhook.report.console.quotas import LimitObject, quota_page, quotas_page
from webhook.report.serialization import yaml_text

GPU = "nvidia.com/gpu"


def limit_range(folder: Path, **item: dict[str, Any]) -> LimitObject:
    """Return a LimitRange with one item of type Container."""
    metadata = {"name": "range", "namespace": "team"}
    data = {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata}
    file = folder / "range.yaml"
    file.write_text(yaml_text(data | {"spec": {"limits": [{"type": "Container", **item}]}}), encoding="utf-8")
    [found] = describe_limits(each for each in read_objects([str(file)]) if isinstance(each, SourceObject))
    return found


INVALID = {"default": {"memory": "1Gi"}, "defaultRequest": {"memory": "2Gi"}}
ERROR = 'spec.limits[0].defaultRequest.memory: Invalid value: "2Gi": default request value 2Gi is greater than'


def test_the_page_says_what_else_to_change_if_the_corrected_object_is_invalid(
    demo: ClusterReading, tmp_path: Path
) -> None:
    row = limit_range(tmp_path, max={GPU: "4"}, **INVALID)
    page = page_words(quota_page(demo.state, row))

    assert "GPU-L301" in page
    assert f"The API server rejects this object too. Change these fields before you apply it: {ERROR}" in page
    assert "Otherwise: This object does what the one above seems to say." in page
    assert "apply it with kubectl" not in page


def test_an_invalid_object_without_findings_does_not_do_what_it_says(demo: ClusterReading, tmp_path: Path) -> None:
    row = limit_range(tmp_path, **INVALID)
    page = page_words(quota_page(demo.state, row))
    listed = page_words(quotas_page(demo.state, (row,), PageQuery({"show": "misleading"})))

    assert f"What it really does Nothing: the API server rejects it. {ERROR}" in page
    assert "Corrected" not in page
    assert f"the API server rejects it: {ERROR}" in listed


@pytest.mark.parametrize("item", [{"max": {GPU: "4"}}, {"max": {GPU: "4"}, "min": {GPU: "1"}}, {"min": {GPU: "1"}}])
def test_a_corrected_object_that_is_valid_can_be_applied(
    demo: ClusterReading, tmp_path: Path, item: dict[str, Any]
) -> None:
    row = limit_range(tmp_path, **item)

    assert row.findings
    assert row.rejections == ()
    assert "Check it, and apply it with kubectl." in page_words(quota_page(demo.state, row))
