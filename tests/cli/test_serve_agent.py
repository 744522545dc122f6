"""`serve agent`: invalid flags, and modules that it must not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from webhook.cli.commands.serve import parse_listen_address, parse_log_level


@pytest.mark.parametrize(
    ("text", "found"),
    [("0.0.0.0:8081", ("0.0.0.0", 8081)), ("[::]:0", ("::", 0)), ("localhost:1", ("localhost", 1))],
)
def test_a_listen_address(text: str, found: tuple[str, int]) -> None:
    assert parse_listen_address(text) == found


@pytest.mark.parametrize("text", ["8081", ":8081", "host:", "host:http", "host:65536", "host:-1"])
def test_an_invalid_listen_address(text: str) -> None:
    with pytest.raises(ValueError, match=f"must be ADDRESS:PORT, .*found '{text}'"):
        parse_listen_address(text)


def test_an_unknown_log_level() -> None:
    assert parse_log_level("debug") == "debug"
    with pytest.raises(ValueError, match="--log-level: must be one of debug, info, warning, error, found 'loud'"):
        parse_log_level("loud")


def test_an_agent_does_not_import_the_policy_engine_or_placement() -> None:
    """It runs on every node, so its memory matters."""
    code = (
        "import sys, webhook.cli.processes.agent, webhook.agent.node_agent, webhook.agent.discovery\n"
        "import webhook.agent.gpunode_publisher\n"
        "loaded = ('numpy', 'kubernetes', 'pydantic', 'typer', 're2', 'webhook.engine')\n"
        "print([name for name in loaded if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)

    assert process.stdout == "[]\n", process.stderr
