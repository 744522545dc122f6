"""Snapshots of the commands' output; `pytest --snapshot-update` updates them."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.cli.conftest import WORLD, Run

ROOM = ("--cluster", "room/cluster.yaml")
GUARDED = ("--policies", "room/policy.yaml", "--now", "2026-06-01T00:00:00Z")

COMMANDS = {
    "check, for people": ("check", "deploy", "odd", *WORLD),
    "check, with notes": ("check", "deploy", *WORLD, "-v"),
    "check, quietly": ("check", "deploy", "odd", *WORLD, "-q"),
    "check, one row an object": ("check", "deploy", "odd", *WORLD, "-o", "wide"),
    "check, JSON": ("check", "deploy", *WORLD, "-o", "json"),
    "check, YAML": ("check", "deploy/train.yaml", *WORLD, "-o", "yaml"),
    "check, names": ("check", "deploy", *WORLD, "-o", "name"),
    "check, JUnit": ("check", "deploy", "odd", *WORLD, "-o", "junit"),
    "check, GitHub": ("check", "deploy", "bad", *WORLD, "-o", "github"),
    "check, what cannot be read": ("check", "bad", *WORLD),
    "audit, for people": ("audit", "cluster.yaml", "--policies", "policies", "--now", "2026-06-01T00:00:00Z"),
    "audit, right-sizing in audit mode": ("audit", "cluster.yaml", "--policies", "trial"),
    "audit, JSON": ("audit", "cluster.yaml", *WORLD, "-o", "json"),
    "audit, by workload as CSV": ("audit", "cluster.yaml", *WORLD[:2], "-o", "csv"),
    "audit, without money": ("audit", "cluster.yaml", *WORLD[:2], "--prices", "none"),
    "audit, report objects": ("audit", "cluster.yaml", *WORLD[:2], *WORLD[4:], "-o", "policyreport"),
    "rightsize, for people": ("rightsize", "cluster.yaml", *WORLD[:2]),
    "rightsize, one namespace as JSON": ("rightsize", "cluster.yaml", *WORLD[:2], "-n", "team-vision", "-o", "json"),
    "policy diff, for people": ("policy", "diff", "trial", "policies", "--cluster", "cluster.yaml"),
    "policy diff, JSON": ("policy", "diff", "policies", "trial", "--cluster", "cluster.yaml", "-o", "json"),
    "explain a file": ("explain", "-f", "deploy", *WORLD),
    "explain a code": ("explain", "gpu-l102"),
    "test, for people": ("test", "cases"),
    "test, GitHub": ("test", "cases", "-o", "github"),
    "test, JUnit": ("test", "cases", "-o", "junit"),
    "policy list": ("policy", "list", "--policies", "policies"),
    "policy show": ("policy", "show", "sizing", "--policies", "policies"),
    "policy lint": ("policy", "lint", "faulty"),
    "lint": ("lint", "-f", "traps.yaml"),
    "lint, the objects instead": ("lint", "-f", "traps.yaml", "-o", "yaml"),
    "lint, quotas that count no claim": ("lint", "--cluster", "claimquotas.yaml", "-n", "team"),
    "lint, what no API server takes": ("lint", "-f", "refused.yaml"),
    "lint, JSON": ("lint", "-f", "traps.yaml", "-o", "json"),
    "accounting enable": ("accounting", "enable", "-n", "research", "--gpus", "16"),
    "capacity, for people": ("capacity", *ROOM),
    "capacity, every profile": ("capacity", *ROOM, "-o", "wide"),
    "capacity, JSON": ("capacity", *ROOM, "-o", "json"),
    "capacity of a node": ("capacity", "bridged-1", *ROOM),
    "capacity of a node without an agent": ("capacity", "hgx-1", *ROOM),
    "capacity of cut cards": ("capacity", "mig-1", *ROOM, "-o", "wide"),
    "capacity of a node, drawn": ("capacity", "bridged-1", *ROOM, "-o", "svg"),
    "capacity of a machine without a cluster": ("capacity", "--links", "room/dgx-1.txt"),
    "place, for people": ("place", "-f", "room/pods.yaml", *ROOM, *GUARDED),
    "place, JSON": ("place", "-f", "room/pods.yaml", *ROOM, *GUARDED, "-o", "json"),
    "simulate a trace": ("simulate", "--nodes", "room/nodes.csv", "--pods", "room/pods.csv"),
    "simulate a trace, drawn": ("simulate", "--nodes", "room/nodes.csv", "--pods", "room/pods.csv", "-o", "svg"),
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
    ran = rightslice(*arguments)
    assert f"exit code {ran.code}\n--- stdout\n{ran.out}--- stderr\n{ran.err}" == snapshot
