"""Every block of commands or output in a page is verified, in one of the ways that WAYS lists.

`pytest tests/house/test_shown_blocks.py --collect-only -q` lists the blocks, and how each is verified.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from typer.main import get_command

from tests.house.checkout import ROOT, read_checkout_file
from tests.house.shown_blocks import ShownBlock, ShownCommand, shown_blocks
from tests.house.test_make import targets
from tests.manifests.chart_values import read_chart_values
from tests.release.__main__ import BINARY, IMAGE
from tests.release.krew import ARCHIVE, MANIFEST
from webhook import __version__
from webhook.cli.main import COMMANDS, build_app
from webhook.documents.reader import read_documents

BLOCKS = shown_blocks()
CHART = "charts/rightslice"

TEXTS = {
    ("README.md", "Pod team-vision/notebook-ana"): "tests/cli/test_processes.py",
    ("docs/live.md", "[+]cluster 412 nodes"): "tests/server/test_live_cluster.py",
    ("docs/install.md", "sed -i"): "tests/manifests/test_sent_resources.py",
}
"""Blocks without a command, by page and start: the test of what they show."""

OUTPUTS = {
    ("docs/agent.md", "kubectl get gpunodes"): "tests/cluster/test_agent.py",
    ("docs/install.md", "kubectl apply -f examples/pods/07-privileged.yaml"): "tests/cluster/end_to_end/test_pods.py",
    ("docs/install.md", "kubectl apply -f examples/pods/13-deployment.yaml"): "tests/cluster/end_to_end/test_pods.py",
    ("docs/layout.md", "rightslice layout status layout/"): "tests/report/test_layout_status.py",
}
"""Commands on a cluster whose output is shown, by page: the test of that output."""

BUILT_IN_KINDS = {
    *("nodes", "namespaces", "pods", "resourcequotas", "limitranges", "resourceslices", "deviceclasses"),
    *("resourceclaims", "resourceclaimtemplates", "secret", "mutatingwebhookconfiguration", "events", "deployment"),
    *("pod", "validatingwebhookconfiguration", "validatingadmissionpolicybinding"),
}
RELEASED = {f"dist/{name}" for name in (BINARY, IMAGE, ARCHIVE, MANIFEST, f"rightslice-{__version__}-py3-none-any.whl")}


def parse_rightslice(command: ShownCommand) -> None:
    """Fail if our own parser rejects a command."""
    program: Any = get_command(build_app(list(COMMANDS)))
    words = command.words
    while words and words[0] in getattr(program, "commands", {}):
        program = program.commands[words.pop(0)]
    assert not hasattr(program, "commands") or program.invoke_without_command, f"no command: {command.text}"
    try:
        program.make_context("rightslice", words)
    except Exception as error:
        raise AssertionError(f"{command.text}: {error}") from error


def check_make(command: ShownCommand) -> None:
    """Fail if a target of make does not exist."""
    assert {word for word in command.words if "=" not in word} <= targets()


def check_helm(command: ShownCommand) -> None:
    """Fail if a chart does not exist, or does not have a value."""
    verb, release, chart = command.words[:3]
    assert release == "rightslice"
    assert verb == "uninstall" or (verb in ("install", "upgrade") and chart in (CHART, "CHART"))
    values = {value.path for value in read_chart_values(read_checkout_file(f"{CHART}/values.yaml"))}
    changed = [word for flag, word in pairwise(command.words) if flag == "--set"]
    keys = [pair.split("=")[0] for one in changed for pair in one.split(",")]
    assert [key for key in keys if key not in values] == []


def check_kubectl(command: ShownCommand) -> None:
    """Fail if a file or a kind does not exist."""
    words = command.words
    files = [word for flag, word in pairwise(words) if flag in ("-f", "-k")]
    assert [file for file in files if file != "-" and not exists(file)] == []
    verbs = [place for place, word in enumerate(words) if word in ("get", "delete")]
    for place in verbs:
        if not words[place + 1].startswith("-"):
            assert set(words[place + 1].split(",")) <= BUILT_IN_KINDS | own_kinds()


@cache
def own_kinds() -> frozenset[str]:
    """Return the names of our kinds that kubectl reads."""
    names: set[str] = set()
    for file in ("manifests/crds/crds.yaml", "manifests/crds/gpunodes.yaml"):
        for document in read_documents(read_checkout_file(file), file):
            found = document.data["spec"]["names"]
            names |= {found["plural"], found["singular"], *found["shortNames"]}
    return frozenset(names)


def check_files(command: ShownCommand) -> None:
    """Fail if a file of the checkout or of a release does not exist."""
    named = re.findall(r"\b(?:tests|dist|benchmarks|examples|policies|manifests)/[\w./-]+", command.text)
    assert [name for name in named if name not in RELEASED and not exists(name)] == []


def exists(name: str) -> bool:
    """Return whether the checkout has a file or folder."""
    return (ROOT / name).exists()


def check_steps(command: ShownCommand) -> None:
    """Accept a program of the system whose arguments are files of the page itself."""
    assert not re.search(r"\b(?:tests|policies|manifests|examples)/", command.text)


WAYS: Mapping[str, tuple[str, Callable[[ShownCommand], None]]] = {
    "rightslice": (
        "parsed, and run by test_page_commands or test_recipes",
        parse_rightslice,
    ),
    "make": ("target", check_make),
    "helm": ("chart and values; run in tests/cluster/test_chart_release.py and test_first_hour.py", check_helm),
    "kubectl": ("files and kinds; run in tests/cluster", check_kubectl),
    **dict.fromkeys((".venv/bin/python", "docker"), ("files", check_files)),
    **dict.fromkeys(("install", "skopeo"), ("files; run in tests/release/test_page_commands.py", check_files)),
    **dict.fromkeys(("ln", "pip", "sha256sum"), ("run in tests/release/test_page_commands.py", check_steps)),
    **dict.fromkeys(("mkdir", "sh", "cosign", "cp", "export"), ("program", check_steps)),
}
"""How the commands of a program are verified."""


def text_test(block: ShownBlock) -> str:
    """Return the test of a block without a command; "" if there is none."""
    return next(
        (test for (page, start), test in TEXTS.items() if block.page == page and block.text.startswith(start)), ""
    )


def describe(block: ShownBlock) -> str:
    """Return the block and how it is verified."""
    ways = {WAYS[command.program][0] for command in block.commands if command.program in WAYS}
    return f"{block} {'; '.join(sorted(ways)) or text_test(block) or 'unverified'}"


@pytest.mark.parametrize("block", BLOCKS, ids=describe)
def test_a_block_is_verified(block: ShownBlock) -> None:
    if not block.commands:
        assert exists(text_test(block) or "-"), f"{block}: give it a language, or a test in TEXTS"
    for command in block.commands:
        assert command.program in WAYS, f"{block}: no way to verify {command.program}"
        WAYS[command.program][1](command)


def test_no_entry_is_outdated() -> None:
    shown = {(block.page, command.text) for block in BLOCKS for command in block.commands if command.output.strip()}
    texts = {key for key in TEXTS for block in BLOCKS if block.page == key[0] and block.text.startswith(key[1])}

    assert set(OUTPUTS) - shown == set()
    assert set(TEXTS) - texts == set()
    assert [test for test in (*OUTPUTS.values(), *TEXTS.values()) if not exists(test)] == []


UNVERIFIED = {
    "an unknown flag": "rightslice check deploy/ --polices policies",
    "an unknown value of a flag": "rightslice check deploy/ --fail-on sometimes",
    "an unknown subcommand": "rightslice policy lnit policies",
    "an unknown target": "make tset",
    "an unknown value of the chart": "helm install rightslice charts/rightslice --set mod=audit",
    "a file that does not exist": "kubectl apply -f policies/none.yaml",
    "a kind that does not exist": "kubectl get gpupolizies",
    "a test that does not exist": ".venv/bin/python -m pytest tests/none.py",
}


@pytest.mark.parametrize("text", UNVERIFIED.values(), ids=UNVERIFIED)
def test_a_wrong_command_is_found(text: str) -> None:
    [command] = ShownBlock("page", 1, text).commands

    with pytest.raises(AssertionError):
        WAYS[command.program][1](command)
