"""The documents of a snapshot, with compressed pods, and what the console does with a snapshot without objects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.builders import make_pod
from tests.cli.conftest import Run
from webhook.audit.object_files import SkippedDocument, SourceObject, parse_objects
from webhook.console.compact_documents import CompactDocuments
from webhook.errors import SourceLocation
from webhook.report.serialization import yaml_text

SKIPPED = SkippedDocument(SourceLocation("a.yaml"), "an empty file")


def documents(*objects: Mapping[str, object]) -> list[SourceObject]:
    text = "---\n".join(map(yaml_text, objects))
    return [each for each in parse_objects("a.yaml", text.encode()) if isinstance(each, SourceObject)]


def test_documents_come_back_in_order_with_the_last_copy_of_each_pod() -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}}
    old, other, new = (make_pod(name).gpus(gpus).build() for name, gpus in (("a", 1), ("b", 1), ("a", 2)))
    compact = CompactDocuments("cluster")
    given: list[SourceObject | SkippedDocument] = [*documents(old, quota, other, new), SKIPPED]

    assert list(compact.observe(given)) == given
    assert [each.data for each in compact if isinstance(each, SourceObject)] == [quota, other, new]
    assert [each.data for each in compact.objects] == [quota]
    assert compact.skipped == [SKIPPED]
    assert (compact.observed, len(compact)) == (5, 4)


def test_a_snapshot_that_cannot_be_read_is_an_error(rightslice: Run, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("a: [", encoding="utf-8")

    result = rightslice("ui", "--cluster", str(file), "--listen", "127.0.0.1:0")

    assert result.code == 2
    assert "cluster.yaml" in result.err
