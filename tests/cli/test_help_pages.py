"""Help pages: examples that the commands understand, and the forms that users of kubectl try."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import INPUTS, Run, all_commands
from tests.conftest import ROOT
from webhook import __version__
from webhook.cli.help_pages import EXAMPLES
from webhook.cli.main import COMPLETER, COMPLETION_VARIABLE
from webhook.cli.unsupported_flags import UNSUPPORTED

ALL_COMMANDS = {" ".join(words): (command, context) for words, command, context in all_commands()}


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(ALL_COMMANDS)


@pytest.mark.parametrize("names", EXAMPLES)
def test_a_command_understands_its_examples(names: str) -> None:
    command, context = ALL_COMMANDS[names]
    for example in EXAMPLES[names]:
        assert example.startswith(names)
        arguments = re.split(r" [|>] ", example.removeprefix(names))[0].split()
        command.make_context(names, arguments, parent=context.parent)
        assert f"    rightslice {example}" in command.get_help(context)


@pytest.mark.parametrize("group", sorted({names.split()[0] for names in EXAMPLES if " " in names}))
def test_the_page_of_a_group_has_an_example_of_each_of_its_commands(rightslice: Run, group: str) -> None:
    page = rightslice(group, "--help").out.partition("Examples:")[2]
    shown = {line.strip().removeprefix("rightslice ") for line in page.splitlines()}
    assert [names for names in EXAMPLES if names.split()[0] == group and not shown & set(EXAMPLES[names])] == []


def test_the_page_of_the_program_has_examples_that_it_understands(rightslice: Run) -> None:
    page = rightslice("--help").out.partition("Examples:")[2]
    for line in page.strip().splitlines():
        names, *arguments = line.strip().removeprefix("rightslice ").removeprefix("help ").split()
        assert rightslice(names, *arguments, "--help").code == 0


@pytest.mark.parametrize("names", EXAMPLES)
def test_every_help_page_names_the_exit_codes(names: str) -> None:
    command, context = ALL_COMMANDS[names]
    assert "Exit code: 0" in command.get_help(context)


@pytest.mark.parametrize("names", EXAMPLES)
def test_every_value_of_a_flag_has_a_name(names: str) -> None:
    command, context = ALL_COMMANDS[names]
    flags = [line for line in command.get_help(context).splitlines() if line.startswith("  -")]
    assert [line for line in flags if re.search(r"<|\bTEXT\b|\bINTEGER\b|\bFLOAT\b", line)] == []


@pytest.mark.parametrize("names", EXAMPLES)
def test_no_help_page_names_a_type_of_python(names: str) -> None:
    command, context = ALL_COMMANDS[names]
    arguments = command.get_help(context).partition("Arguments:")[2].partition("Options:")[0]
    assert "<str>" not in arguments
    assert "<list" not in arguments


def test_no_summary_of_a_command_is_cut_off(rightslice: Run) -> None:
    assert "..." not in rightslice("--help").out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("tried", "same"),
    [
        (["--version"], ["version"]),
        (["--version", "audit"], ["version"]),
        (["help"], ["--help"]),
        (["help", "help"], ["--help"]),
        (["help", "check"], ["check", "--help"]),
        (["help", "policy", "lint"], ["policy", "lint", "-h"]),
    ],
    ids=" ".join,
)
def test_other_forms_give_the_same_page(tried: list[str], same: list[str]) -> None:
    assert output_of(tried) == output_of(same) != ""


def output_of(arguments: list[str]) -> str:
    command = [sys.executable, "-m", "webhook.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout


COMPLETED = {
    "a flag": (["capacity", "--sor"], ["--sort-by"]),
    "a format": (["audit", "-o", "js"], ["json", "jsonpath="]),
    "a cluster": (["audit", "--cluster", ""], ["live", "demo"]),
    "a finding code": (["explain", "GPU-C10"], ["GPU-C101", "GPU-C102", "GPU-C103", "GPU-C104"]),
    "a reason": (["explain", "Multiple"], ["MultipleGPUs"]),
}


@pytest.mark.parametrize(("words", "completions"), COMPLETED.values(), ids=COMPLETED)
def test_a_shell_completes(words: list[str], completions: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", " ".join(["rightslice", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    monkeypatch.setenv(COMPLETION_VARIABLE, "complete_bash")
    assert output_of([]).split() == completions


def test_the_plugin_prints_the_program_by_which_kubectl_completes_it(tmp_path: Path) -> None:
    plugin, completer = tmp_path / "kubectl-rightslice", tmp_path / COMPLETER
    plugin.write_text(f"#!{sys.executable}\nfrom webhook.cli.main import run\nrun()\n")
    plugin.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    printed = subprocess.check_output([plugin, "completion", "zsh"], env=environment, text=True)
    completer.write_text(printed)
    completer.chmod(0o755)

    assert f"kubectl rightslice completion bash > ~/.local/bin/{COMPLETER}" in printed
    completed = subprocess.check_output([completer, "capacity", "--sor"], env=environment, text=True)
    assert completed.split() == ["--sort-by"]


FILES_BY_COMMAND = {
    "check": (["check"], ["deploy"], INPUTS),
    "audit": (["audit"], ["cluster.yaml"], INPUTS[:2]),
    "rightsize": (["rightsize"], ["cluster.yaml"], INPUTS[:2]),
    "test": (["test"], ["cases"], []),
    "policy lint": (["policy", "lint"], ["faulty"], []),
    "lint": (["lint"], ["traps.yaml"], []),
    "place": (["place"], ["room/pods.yaml"], ["--cluster", "room/cluster.yaml"]),
}


@pytest.mark.parametrize(("command", "files", "flags"), FILES_BY_COMMAND.values(), ids=FILES_BY_COMMAND)
def test_files_are_arguments_or_given_with_f(
    rightslice: Run, command: list[str], files: list[str], flags: list[str]
) -> None:
    as_arguments, with_flag = rightslice(*command, *files, *flags), rightslice(*command, "-f", *files, *flags)

    assert (with_flag.code, with_flag.out, with_flag.err) == (as_arguments.code, as_arguments.out, as_arguments.err)
    assert with_flag.out


MISTAKES = {
    "a misspelled flag": ("audit --clustr demo", "unknown flag: --clustr. Did you mean --cluster?", "audit"),
    "a flag that the command lacks": (
        "doctor --quiet",
        "unknown flag: --quiet. Its flags: --sort-by, --no-headers, --output",
        "doctor",
    ),
    "a flag that a command with commands lacks": ("layout -q", "unknown flag: -q. Its flags: --filename", "layout"),
    "a flag that makes no sense for a command": (
        "doctor --selector a=b",
        "unknown flag: --selector. doctor has none: checks have no labels",
        "doctor",
    ),
    "a file after the two of a command that reads others by -f": (
        "policy diff a b cluster.yaml",
        "unexpected argument: cluster.yaml. It takes OLD and NEW; files are named with -f",
        "policy diff",
    ),
    "a misspelled command": ("audt", "no such command 'audt'. Did you mean 'audit', 'layout'?", ""),
    "a misspelled command of a group": ("policy lst", "no such command 'lst'. Did you mean 'list'?", "policy"),
    "an unknown choice": ("audit --fail-on no", "--fail-on: must be one of deny, warn, skipped, never", "audit"),
    "text for a number": ("layout --headroom x", "--headroom: must be a valid integer, found 'x'", "layout"),
    "a namespace with capitals": ("lint -n Foo", "--namespace: must be a namespace name", "lint"),
    "a missing flag": ("simulate", "--cluster: must be given, found none", "simulate"),
    "a missing argument": ("policy show", "NAME: must be given, found none", "policy show"),
    "an argument too many": ("completion bash zsh", "unexpected argument: zsh. It takes SHELL", "completion"),
    "a flag before the command": (
        "--context staging audit",
        "unknown flag: --context. Write the flags of a command after it: rightslice COMMAND --flag",
        "",
    ),
    "an argument of a command without": ("version a", "unexpected argument: a. It takes only flags", "version"),
    "no file": ("check", "FILE|DIR|-: name a file, a folder, or - for standard input", "check"),
}


@pytest.mark.parametrize(("arguments", "error", "page"), MISTAKES.values(), ids=MISTAKES)
def test_wrong_arguments_are_errors_in_one_style(rightslice: Run, arguments: str, error: str, page: str) -> None:
    result = rightslice(*arguments.split())
    assert (result.code, result.out) == (2, "")
    first, *_, last = result.err.splitlines()
    assert first.startswith(f"error: {error}")
    assert last == f"See 'rightslice {page} --help' for usage.".replace("  ", " ")


def test_a_flag_without_its_value_is_named(rightslice: Run) -> None:
    assert rightslice("accounting", "enable", "--gpus").err == "error: --gpus: must have a value, found none\n"


def test_a_short_flag_may_have_a_sign(rightslice: Run) -> None:
    with_sign, without = (
        rightslice("capacity", "--cluster", "demo", *flags) for flags in (["-o=name"], ["-o", "name"])
    )
    assert with_sign.out == without.out != ""


@pytest.mark.parametrize("group", [(), ("policy",)])
def test_a_group_without_a_command_prints_its_help_page_as_kubectl_does(rightslice: Run, group: tuple[str]) -> None:
    result = rightslice(*group)
    assert (result.code, result.err, result.out) == (0, "", rightslice(*group, "--help").out)


@pytest.mark.parametrize("command", ["check", "place"])
def test_without_a_file_the_error_says_what_to_name(rightslice: Run, command: str) -> None:
    result = rightslice(command)

    assert result.code == 2
    assert "name a file, a folder, or - for standard input" in result.err


FOLDERS_WITHOUT_TESTS: dict[str, dict[str, str]] = {
    "no folder": {},
    "an empty folder": {"policies": ""},
    "policies of another program": {"policies": "kind: ClusterPolicy\n"},
}


@pytest.fixture(params=FOLDERS_WITHOUT_TESTS.values(), ids=tuple(FOLDERS_WITHOUT_TESTS))
def without_tests(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a folder that has no policy tests."""
    monkeypatch.chdir(tmp_path)
    for name, text in request.param.items():
        Path(name).mkdir()
        if text:
            Path(name, "policy.yaml").write_text(text)


NO_TESTS = "policies: must contain policy tests, found none. Write one with kind: GPUPolicyTest, or name another folder"


@pytest.mark.usefixtures("without_tests")
def test_without_tests_the_error_says_what_to_write(rightslice: Run) -> None:
    result = rightslice("test")
    assert (result.code, f"error: {NO_TESTS}: rightslice test DIR" in result.err) == (2, True)


@pytest.mark.usefixtures("without_tests")
def test_without_tests_a_run_that_may_have_none_passes_with_a_warning(rightslice: Run) -> None:
    result = rightslice("test", "--pass-with-no-tests", "-o", "github")
    assert (result.code, f"warning: {NO_TESTS}" in result.err) == (0, True)
    assert result.out.startswith("::warning file=policies,title=no-tests::must contain policy tests, found none.")


def test_a_named_folder_that_is_missing_is_an_error_also_if_there_may_be_no_tests(rightslice: Run) -> None:
    result = rightslice("test", "missing", "--pass-with-no-tests")
    assert (result.code, "error: missing: cannot be read" in result.err) == (2, True)


def test_the_version_is_printed_in_the_fields_of_kubectl() -> None:
    found = [output_of(["version", "-o", form]) for form in ("json", "yaml", "jsonpath={.clientVersion.gitVersion}")]

    assert json.loads(found[0]) == yaml.safe_load(found[1]) == {"clientVersion": {"gitVersion": __version__}}
    assert found[2] == __version__
    assert output_of(["version"]) == f"rightslice {__version__}\n"


UNSUPPORTED_FLAGS = [
    (command, flag, each.reason)
    for each in UNSUPPORTED
    for flag in each.flags
    for command in each.commands
    if not flag.startswith("-o")
]


@pytest.mark.parametrize(("command", "flag", "reason"), UNSUPPORTED_FLAGS, ids=lambda text: text)
def test_a_flag_that_makes_no_sense_is_an_error_with_the_reason(
    rightslice: Run, command: str, flag: str, reason: str
) -> None:
    ran = rightslice(*command.split(), flag, "x")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: unknown flag: {flag}. {command} has none: {reason}\n")
