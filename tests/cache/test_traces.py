"""Traces in the openb format."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from webhook.cache.traces import read_trace_nodes, read_trace_pods
from webhook.errors import SnapshotError
from webhook.placement.capacity import EmptyNode, PodDemand

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,8000,1024,0,\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\np0,500,10,1,460,V100|A10,LS\np1,1,2,0,900,,BE\n"


@pytest.mark.parametrize("packed", [True, False])
def test_nodes_and_pods_are_read_plain_or_gzipped(tmp_path: Path, packed: bool) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    for file, text in ((nodes, NODES), (pods, PODS)):
        file.write_bytes(gzip.compress(text.encode()) if packed else text.encode())

    assert read_trace_nodes(nodes) == [EmptyNode("n0", 64_000, 256 << 30, 2, "P100"), EmptyNode("n1", 8000, 1 << 30, 0)]
    assert read_trace_pods(pods) == [PodDemand(500, 1, 460, ("A10", "V100"), 10 << 20), PodDemand(1, memory=2 << 20)]


def test_optional_columns_may_be_missing(tmp_path: Path) -> None:
    file = tmp_path / "pods.csv"
    file.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,2,8,1000\n")

    assert read_trace_pods(file) == [PodDemand(1, 8, 1000, memory=2 << 20)]


def test_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "pods.csv"
    file.write_text(PODS, encoding="utf-8-sig")

    assert len(read_trace_pods(file)) == 2


NO_CSV = "pods.csv: must be a CSV file, plain or gzipped"
FAULTS = [
    ("above one", PODS.replace("460", "1460"), "pods.csv:2: gpu_milli: must be a whole number from 0 to 1000"),
    ("a word for a number", PODS.replace("500,", "many,"), "pods.csv:2: cpu_milli: must be a whole number"),
    ("a row that ends early", PODS + "p2,1\n", "pods.csv:4: num_gpu: must be a whole number from 0 to 64, found ''"),
    ("another format", "a,b\n1,2\n", "pods.csv:1:1: must have the columns name, cpu_milli,"),
    ("nothing", "", "pods.csv:1:1: must have the columns"),
    ("bytes", PODS.encode() + b"\xff", f"pods.csv: must be UTF-8, found other bytes from byte {len(PODS)} on"),
    ("no rows", PODS[: PODS.index("\n")], "pods.csv:1:1: must have rows under its header, found none"),
    ("half an archive", gzip.compress(PODS.encode())[:40], NO_CSV),
    ("a broken archive", gzip.compress(PODS.encode())[:20] + b"no" * 20, NO_CSV),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "text", "message"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_error_has_its_location(tmp_path: Path, sentence: str, text: str | bytes, message: str) -> None:
    file = tmp_path / "pods.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(SnapshotError) as raised:
        read_trace_pods(file)

    assert message in str(raised.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="No such file"):
        read_trace_nodes(tmp_path / "none.csv")


def test_duplicate_node_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "nodes.csv"
    file.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,1,2,8,T4\nn1,1,2,8,T4\nn0,1,2,8,T4\n")

    with pytest.raises(SnapshotError, match=r"nodes\.csv:4: sn: must be unique, found 'n0' here and in line 2"):
        read_trace_nodes(file)
