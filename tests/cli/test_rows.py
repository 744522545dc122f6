"""Reports with rows: sorted, without headers, as names, and as JSONPath templates, as kubectl prints them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import INPUTS, JUNE, Run
from tests.conftest import ROOT
from webhook.cli.output import JSONPATH

REPORTS = {
    "check": ("check", "deploy", *INPUTS),
    "audit": ("audit", "cluster.yaml", *INPUTS[:2], *INPUTS[4:]),
    "rightsize": ("rightsize", "cluster.yaml", *INPUTS[:2]),
    "fairshare": ("fairshare", "--cluster", "demo", "--policies", "policies", "--now", JUNE),
    "capacity": ("capacity", "--cluster", "room/cluster.yaml"),
    "policy list": ("policy", "list", "--policies", "policies"),
    "lint": ("lint", "--cluster", "demo"),
}


@pytest.mark.parametrize("command", REPORTS.values(), ids=REPORTS)
def test_without_headers_there_are_only_the_rows(rightslice: Run, command: tuple[str, ...]) -> None:
    whole, rows = (rightslice(*command, "-o", "wide", *flags).out.splitlines() for flags in ((), ("--no-headers",)))
    found = {" ".join(line.split()) for line in whole}
    assert 0 < len(rows) < len(whole)
    assert {" ".join(line.split()) for line in rows} <= found


@pytest.mark.parametrize("command", REPORTS.values(), ids=REPORTS)
def test_names_are_kind_and_name(rightslice: Run, command: tuple[str, ...]) -> None:
    names = rightslice(*command, "-o", "name").out.splitlines()
    assert names
    assert all(name.count("/") == 1 and name.partition("/")[0].islower() for name in names)


COLUMNS_OF_A_TERMINAL = 160


def test_the_rows_of_rightsize_fit_a_terminal_and_wide_ones_have_the_sentences(rightslice: Run) -> None:
    rows, wide = (rightslice("rightsize", "--cluster", "demo", "--no-headers", *flags).out for flags in WIDTHS)
    assert max(map(len, rows.splitlines())) <= COLUMNS_OF_A_TERMINAL
    assert "keep: MultipleGPUs" in rows
    assert "so a request for several GPUs is kept" in wide


WIDTHS = ((), ("-o", "wide"))


@pytest.mark.parametrize("flag", [(), ("-f",)], ids=["an argument", "a flag"])
def test_policy_tests_have_the_names_of_kubectl(rightslice: Run, flag: tuple[str, ...]) -> None:
    names = rightslice("test", *flag, str(ROOT / "policies/tests/guard.yaml"), "-o", "name").out
    assert names == "gpupolicytest.rightslice.dev/guard\n"


def test_a_policy_test_that_cannot_run_has_no_name_but_an_error(rightslice: Run, tmp_path: Path) -> None:
    text = (ROOT / "policies/tests/guard.yaml").read_text()
    (tmp_path / "guard.yaml").write_text(text)
    result = rightslice("test", str(tmp_path), "-o", "name")

    assert (result.code, result.out) == (2, "")
    assert re.match(r"error: \S+guard.yaml:2:1: \S+ cannot be read: No such file or directory$", result.err)


WORKLOAD_NAMES = {
    "audit": ("audit", "--cluster", "demo"),
    "rightsize": ("rightsize", "--cluster", "demo"),
}


@pytest.mark.parametrize("command", WORKLOAD_NAMES.values(), ids=WORKLOAD_NAMES)
def test_workloads_have_the_names_of_kubectl(rightslice: Run, command: tuple[str, ...]) -> None:
    names = rightslice(*command, "-o", "name").out.splitlines()
    assert "deployment.apps/ranker" in names
    assert not any(name.startswith("deployment/") for name in names)


SORTED = {
    "by a column of amounts": ("--sort-by", "free", "{.nodes[*].freeMilli}"),
    "by a column of names": ("--sort-by", "NODE", "{.nodes[*].name}"),
    "by a JSONPath": ("--sort-by", "{.allocatedMilli}", "{.nodes[*].allocatedMilli}"),
    "by a JSONPath without braces": ("--sort-by", ".gpus", "{.nodes[*].gpus}"),
}


@pytest.mark.parametrize(("flag", "by", "shown"), SORTED.values(), ids=SORTED)
def test_rows_are_sorted_in_ascending_order(rightslice: Run, flag: str, by: str, shown: str) -> None:
    found = rightslice(*REPORTS["capacity"], flag, by, "-o", f"{JSONPATH}={shown}").out.split()
    values = [int(each) if each.isdigit() else each for each in found]
    assert len(set(values)) > 1
    assert values == sorted(values)


def test_findings_without_headers_have_no_totals(rightslice: Run) -> None:
    whole, rows = (rightslice(*REPORTS["check"], *flags).out for flags in ((), ("--no-headers",)))
    assert whole.startswith(rows)
    assert rows.splitlines()[-1] != whole.splitlines()[-1]


@pytest.mark.parametrize("flags", [("--sort-by", "free"), ("--no-headers",), ("-l", "a=b")])
def test_one_node_has_no_rows(rightslice: Run, flags: tuple[str, ...]) -> None:
    result = rightslice("capacity", "hgx-1", "--cluster", "room/cluster.yaml", *flags)
    assert (result.code, result.out) == (2, "")
    assert "NODE: describes one machine, which has no rows" in result.err


def test_an_unknown_column_is_answered_with_the_columns_and_fields_of_a_row(rightslice: Run) -> None:
    result = rightslice(*REPORTS["capacity"], "--sort-by", ".size")
    assert "Columns: NODE, " in result.err
    assert "Fields: .name, " in result.err


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--sort-by", "size"), "error: --sort-by: must be a column or a JSONPath that a row has, found 'size'"),
        (("--sort-by", "{.a}{.b}"), "error: --sort-by: must be one path, found '{.a}{.b}'"),
        (("-o", "jsonpath"), "error: -o jsonpath: must have a template. Write -o jsonpath='{.name}'"),
        (("-o", "jsonpath={.nodes"), "error: -o jsonpath: a brace is not closed"),
        (("-o", "jsonpath={.nodes[99]}"), "error: -o jsonpath: an index must be within the list of"),
    ],
    ids=["no such column", "two paths", "no template", "an open brace", "a wrong index"],
)
def test_mistakes_say_what_to_write(rightslice: Run, flags: tuple[str, ...], error: str) -> None:
    result = rightslice(*REPORTS["capacity"], *flags)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(error)
