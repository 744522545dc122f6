"""The command line `rightslice`, also installed as `kubectl rightslice`.

Only the called command is imported, and typer only if there are flags to parse, so that commands start fast.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from webhook import __version__

if TYPE_CHECKING:
    import typer

COMMANDS = {
    "demo": "webhook.cli.commands.demo:demo_command",
    "check": "webhook.cli.commands.check:check_command",
    "test": "webhook.cli.commands.test:policy_test_command",
    "explain": "webhook.cli.commands.explain:explain_command",
    "undo": "webhook.cli.commands.undo:undo_command",
    "fairshare": "webhook.cli.commands.fairshare:fairshare_command",
    "audit": "webhook.cli.commands.audit:audit_command",
    "rightsize": "webhook.cli.commands.rightsize:rightsize_command",
    "layout": "webhook.cli.commands.layout:layout_group",
    "lint": "webhook.cli.commands.lint:lint_command",
    "capacity": "webhook.cli.commands.capacity:capacity_command",
    "place": "webhook.cli.commands.place:place_command",
    "simulate": "webhook.cli.commands.simulate:simulate_command",
    "ui": "webhook.cli.commands.ui:ui_command",
    "policy": "webhook.cli.commands.policy:policy",
    "usage": "webhook.cli.commands.usage:usage",
    "accounting": "webhook.cli.commands.accounting:accounting",
    "kueue": "webhook.cli.commands.kueue:kueue",
    "install": "webhook.cli.commands.install:install_command",
    "uninstall": "webhook.cli.commands.install:uninstall_command",
    "doctor": "webhook.cli.commands.doctor:doctor_command",
    "serve": "webhook.cli.commands.serve:serve",
    "completion": "webhook.cli.commands.completion:completion_command",
    "version": "webhook.cli.commands.version:version_command",
}
"""Functions or groups of commands, in the order of the help page."""

PROGRAM = "rightslice"
VERSION_LINE = f"{PROGRAM} {__version__}\n"
COMPLETER = "kubectl_complete-rightslice"
"""The name by which kubectl asks a plugin for completions; the last argument is to be completed."""

FLAGS_OF_KUBECTL = {"-n", "--namespace", "--context", "--kubeconfig"}
"""Flags that kubectl accepts before a command too; each has a value."""

PROJECT_FILE = ".rightslice.yaml"
COMPLETION_VARIABLE = "_RIGHTSLICE_COMPLETE"
"""Set by a shell that asks for completions; read by typer."""

HELP = """Admission control, right-sizing and placement of GPU pods on Kubernetes.

`help COMMAND` lists the flags of a command, with examples."""


def run() -> None:
    """Run the called command, and exit with its code."""
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a TextIOWrapper at start
    if Path(sys.argv[0]).name == COMPLETER or sys.argv[1:2] == ["__complete"]:
        _ask_as_bash(sys.argv[1 + (sys.argv[1:2] == ["__complete"]) :])
    completing = bool(os.environ.get(COMPLETION_VARIABLE))
    arguments = sys.argv[1:]
    if arguments in (["version"], ["--version"]) and not completing:
        sys.stdout.write(VERSION_LINE)
        return
    gc.disable()  # what is imported stays: collections would take a sixth of the time of a start
    arguments = _with_leading_flags_last(arguments)
    if arguments[:1] == ["help"]:
        arguments = [*(each for each in arguments[1:] if each != "help"), "--help"]
    from typer.main import get_command

    name = PROGRAM if completing else program_name(sys.argv[0])
    app = get_command(build_app_for(arguments))
    gc.freeze()
    gc.enable()
    try:
        defaults = {} if completing or {"-h", "--help"} & set(arguments) else _default_flags(app, arguments)
        app(arguments, prog_name=name, default_map=defaults)
    except OSError as error:
        if error.filename is None:
            raise
        _exit_with_file_error(error)


def _with_leading_flags_last(arguments: list[str]) -> list[str]:
    """Return the arguments with flags before the command, where kubectl accepts them, after it."""
    count = 0
    while count < len(arguments) and arguments[count].partition("=")[0] in FLAGS_OF_KUBECTL:
        count += 1 if "=" in arguments[count] else 2
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[count:end], *arguments[:count], *arguments[end:]]


def _exit_with_file_error(error: OSError) -> NoReturn:
    """Name a file that cannot be used and was not expected to fail: it vanished, or is in a closed folder."""
    from webhook.cli.output import EXIT_INVALID_INPUT, print_note
    from webhook.report.text import sanitize

    print_note(f"error: {sanitize(os.fsdecode(error.filename))}: cannot be used: {error.strerror}")
    sys.exit(EXIT_INVALID_INPUT)


def _replace_closed_streams() -> None:
    """Open the standard streams that the caller closed: a file that a command opens would get their number.

    Writing to stdout then fails, as it does for other programs; stderr and stdin are empty.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest number that is free: this one
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def _ask_as_bash(words: list[str]) -> None:
    """Set the variables by which bash asks typer for completions."""
    from shlex import join

    os.environ[COMPLETION_VARIABLE] = "complete_bash"
    os.environ["COMP_WORDS"] = join([PROGRAM, *words])
    os.environ["COMP_CWORD"] = str(len(words))


def _default_flags(app: Any, arguments: list[str]) -> Mapping[str, Any]:
    """Return the defaults that a file of the repository sets for the called command."""
    folders = (Path.cwd(), *Path.cwd().parents)
    file = next((each / PROJECT_FILE for each in folders if (each / PROJECT_FILE).is_file()), None)
    if file is None:
        return {}
    from typer import Exit

    from webhook.cli.project_file import default_flags  # its models are slow to import

    command, names, others = _find_command(app, arguments)
    try:
        return default_flags(command, names, file, others) if names else {}
    except Exit as ended:
        sys.exit(ended.exit_code)


def _find_command(group: Any, arguments: list[str]) -> tuple[Any, list[str], list[str]]:
    """Return the called command of a group, the words that call it, and its arguments; the group if none is called."""
    name = called_command(arguments)
    found = getattr(group, "commands", {}).get(name)
    if found is None:
        return group, [], arguments
    command, words, others = _find_command(found, arguments[arguments.index(name) + 1 :])
    return command, [name, *words], others


def program_name(program: str) -> str:
    """Return the program's name for help pages: standalone, or as a kubectl plug-in."""
    return "kubectl rightslice" if Path(program).name.startswith("kubectl-") else PROGRAM


def build_app_for(arguments: list[str]) -> typer.Typer:
    """Build the app with the called command, or with all commands if none is called."""
    called = called_command(arguments)
    return build_app([called] if called in COMMANDS else list(COMMANDS))


def called_command(arguments: list[str]) -> str:
    """Return the first argument that is no flag; "" if there is none."""
    return next((each for each in arguments if not each.startswith("-")), "")


def build_app(names: list[str]) -> typer.Typer:
    """Build the app with these commands."""
    import typer

    from webhook.cli.help_pages import PlainGroup

    app = typer.Typer(
        cls=PlainGroup,
        help=HELP,
        add_completion=bool(os.environ.get(COMPLETION_VARIABLE)),
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def print_version(wanted: bool) -> None:
        if wanted:
            sys.stdout.write(VERSION_LINE)
            raise typer.Exit

    version = typer.Option(
        False, "--version", is_eager=True, callback=print_version, help="Print the version and exit."
    )
    app.callback()(lambda _version=version: None)
    for name in names:
        module, _, attribute = COMMANDS[name].partition(":")
        command = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, cls=PlainGroup)
        else:
            app.command(name)(command)
    return app
