"""Snapshots of the commands' output; `pytest --snapshot-update` updates them."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.cli.conftest import INPUTS, JUNE, Run

SMALL = ("--cluster", "room/cluster.yaml")
GUARDED = ("--policies", "room/policy.yaml", "--now", JUNE)

COMMANDS = {
    "check, table": ("check", "deploy", "odd", *INPUTS),
    "check, verbose": ("check", "deploy", *INPUTS, "-v"),
    "check, quiet": ("check", "deploy", "odd", *INPUTS, "-q"),
    "check, wide": ("check", "deploy", "odd", *INPUTS, "-o", "wide"),
    "check, JSON": ("check", "deploy", *INPUTS, "-o", "json"),
    "check, YAML": ("check", "deploy/train.yaml", *INPUTS, "-o", "yaml"),
    "check, names": ("check", "deploy", *INPUTS, "-o", "name"),
    "check, JUnit": ("check", "deploy", "odd", *INPUTS, "-o", "junit"),
    "check, GitHub": ("check", "deploy", "bad", *INPUTS, "-o", "github"),
    "check, unreadable files": ("check", "bad", *INPUTS),
    "audit, table": ("audit", "cluster.yaml", "--policies", "policies", "--now", JUNE),
    "audit, right-sizing in audit mode": ("audit", "cluster.yaml", "--policies", "trial"),
    "audit, JSON": ("audit", "cluster.yaml", *INPUTS, "-o", "json"),
    "audit, by workload as CSV": ("audit", "cluster.yaml", *INPUTS[:2], "-o", "csv"),
    "audit, without prices": ("audit", "cluster.yaml", *INPUTS[:2], "--prices", "none"),
    "audit, report objects": ("audit", "cluster.yaml", *INPUTS[:2], *INPUTS[4:], "-o", "policyreport"),
    "rightsize, table": ("rightsize", "cluster.yaml", *INPUTS[:2]),
    "rightsize, one namespace as JSON": ("rightsize", "cluster.yaml", *INPUTS[:2], "-n", "team-vision", "-o", "json"),
    "layout, table": ("layout", "--cluster", "cluster.yaml", *INPUTS[:2], *INPUTS[4:]),
    "layout, JSON": ("layout", "--cluster", "cluster.yaml", *INPUTS[:2], *INPUTS[4:], "-o", "json"),
    "layout without changes": ("layout", "--cluster", "room/cluster.yaml", *GUARDED, "--prices", "none"),
    "policy diff, table": ("policy", "diff", "trial", "policies", "--cluster", "cluster.yaml"),
    "policy diff, JSON": ("policy", "diff", "policies", "trial", "--cluster", "cluster.yaml", "-o", "json"),
    "explain a file": ("explain", "-f", "deploy", *INPUTS),
    "explain a code": ("explain", "gpu-l102"),
    "test, table": ("test", "cases"),
    "test, GitHub": ("test", "cases", "-o", "github"),
    "test, JUnit": ("test", "cases", "-o", "junit"),
    "policy list": ("policy", "list", "--policies", "policies"),
    "policy list as JSON": ("policy", "list", "--policies", "policies", "-o", "json"),
    "policy show": ("policy", "show", "sizing", "--policies", "policies"),
    "policy lint": ("policy", "lint", "faulty"),
    "lint": ("lint", "-f", "traps.yaml"),
    "lint, corrected objects": ("lint", "-f", "traps.yaml", "-o", "yaml"),
    "lint, quotas that do not count claims": ("lint", "--cluster", "claimquotas.yaml", "-n", "team"),
    "lint, objects that an API server rejects": ("lint", "-f", "refused.yaml"),
    "lint, JSON": ("lint", "-f", "traps.yaml", "-o", "json"),
    "accounting enable": ("accounting", "enable", "-n", "research", "--gpus", "16"),
    "capacity, table": ("capacity", *SMALL),
    "capacity, wide": ("capacity", *SMALL, "-o", "wide"),
    "capacity, JSON": ("capacity", *SMALL, "-o", "json"),
    "capacity of a node": ("capacity", "bridged-1", *SMALL),
    "capacity of a node without an agent": ("capacity", "hgx-1", *SMALL),
    "capacity of MIG nodes": ("capacity", "mig-1", *SMALL, "-o", "wide"),
    "capacity of a node, SVG": ("capacity", "bridged-1", *SMALL, "-o", "svg"),
    "capacity of a machine without a cluster": ("capacity", "--links", "room/dgx-1.txt"),
    "place, table": ("place", "-f", "room/pods.yaml", *SMALL, *GUARDED),
    "place, JSON": ("place", "-f", "room/pods.yaml", *SMALL, *GUARDED, "-o", "json"),
    "simulate a trace": ("simulate", "--nodes", "room/nodes.csv", "--pods", "room/pods.csv"),
    "simulate a trace, SVG": ("simulate", "--nodes", "room/nodes.csv", "--pods", "room/pods.csv", "-o", "svg"),
    "simulate pods": ("simulate", "--nodes", "room/cluster.yaml", "--pods", "room/pods.yaml", *GUARDED),
    "simulate pods, YAML": (
        *("simulate", "--nodes", "room/cluster.yaml", "--pods", "room/pods.yaml"),
        *(*GUARDED, "-o", "yaml"),
    ),
    "help": ("--help",),
    "help of check": ("check", "--help"),
    "help of audit": ("audit", "--help"),
    "help of explain": ("explain", "--help"),
    "help of rightsize": ("rightsize", "--help"),
    "help of layout": ("layout", "--help"),
    "help of policy diff": ("policy", "diff", "--help"),
    "help of lint": ("lint", "--help"),
    "help of policy": ("policy", "--help"),
    "help of test": ("test", "--help"),
    "help of capacity": ("capacity", "--help"),
    "help of place": ("place", "--help"),
    "help of simulate": ("simulate", "--help"),
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_output(arguments: tuple[str, ...], rightslice: Run, snapshot: SnapshotAssertion) -> None:
    result = rightslice(*arguments)
    assert f"exit code {result.code}\n--- stdout\n{result.out}--- stderr\n{result.err}" == snapshot
