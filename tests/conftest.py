"""Fixtures and options of all tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.browser.fixtures import browser
from tests.cluster.fixtures import namespace, nodes, plane, plane_to_disrupt
from tests.controlplane.programs import HAS_GCC
from tests.distribution import MixedScheduling
from tests.filters.quota_admission import quota_admission
from tests.filters.scheduler import device_scheduler, scheduler_filters
from tests.usage.fixtures import prometheus

__all__ = [
    "browser",
    "device_scheduler",
    "namespace",
    "nodes",
    "plane",
    "plane_to_disrupt",
    "prometheus",
    "quota_admission",
    "scheduler_filters",
    "shared",
]

ROOT = Path(__file__).resolve().parent.parent

NEEDS_PROGRAMS = {
    "plane",
    "prometheus",
    "scheduler_filters",
    "device_scheduler",
    "quota_admission",
    "nvidia_program",
    "runtime_tree",
    "package_index",
    "krew",
}
"""Fixtures of programs that are built with Go, or of packages that are fetched."""

GPU_TESTS = pytest.StashKey[int]()
"""How many tests were left out for want of being asked for."""

GPU_TESTS_OUTPUT = "gpu_tests"
"""Key of that number in the output of a worker process of pytest-xdist."""


settings.register_profile("rightslice", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rightslice")  # a law holds on a busy machine too: none is failed by the time that it took


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of reference data next to the checkout; tests that need it are skipped without it."""
    folder = Path(os.environ.get("RIGHTSLICE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("needs the reference data in ../shared, which is not there")
    return folder


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need a control plane, for `make test-fast`, and measure no coverage in them.

    The other tests cover the core alone, and measuring doubles the CPU that comparisons with kube-scheduler need.

    Leave out tests that need a GPU unless requested, and those that need gcc where there is none.
    """
    if "gpu" not in config.option.markexpr:
        config.stash[GPU_TESTS] = leave_out("gpu", config, items)
    if not HAS_GCC:
        leave_out("gcc", config, items)
    for item in items:
        if NEEDS_PROGRAMS & set(getattr(item, "fixturenames", ())) or item.nodeid.startswith("tests/cluster/"):
            item.add_marker(pytest.mark.cluster)
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.no_cover)


def leave_out(marker: str, config: pytest.Config, items: list[pytest.Item]) -> int:
    """Remove the tests with a marker; return their number."""
    left = [item for item in items if item.get_closest_marker(marker)]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
    return len(left)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report the number of GPU tests from a worker process to the one that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[GPU_TESTS_OUTPUT] = session.config.stash.get(GPU_TESTS, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> MixedScheduling | None:
    """Distribute whole files in an order that uses all cores; None for other modes of pytest-xdist."""
    return MixedScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Keep the number that a worker reported; every worker collects all tests, so all report the same."""
    node.config.stash[GPU_TESTS] = getattr(node, "workeroutput", {}).get(GPU_TESTS_OUTPUT, 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print which tests were skipped, and how to run them."""
    if left := config.stash.get(GPU_TESTS, 0):
        terminalreporter.write_line(
            f"{left} tests of a real NVIDIA GPU were not run; where there is one: pytest -m gpu"
        )
    if not HAS_GCC:
        terminalreporter.write_line("tests with mig-parted's own code were not run: they need gcc")
