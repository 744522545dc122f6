"""Help pages and errors of the commands: in our words, without the names of Python's types, with examples."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup

from webhook.cli.output import EXIT_INVALID_INPUT, print_note
from webhook.cli.unsupported_flags import unsupported_reason
from webhook.report.text import sanitize

PROGRAM_EXAMPLES = ("check -f deploy --cluster demo", "audit", "rightsize --sort-by saves", "help policy diff")
"""Arguments of the program on its own help page."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("demo",),
    "check": (
        "check deploy/train.yaml",
        "check -f deploy --cluster demo",
        "check deploy --policies policies --fail-on warn -o github",
        "check - --cluster live",
    ),
    "test": ("test", "test policies -o junit=report.xml", "test --pass-with-no-tests -o github"),
    "explain": (
        "explain GPU-L102",
        "explain MultipleGPUs",
        "explain -f pod.yaml --cluster demo",
        "explain deployment/train -n research",
        "explain --all",
    ),
    "undo": ("undo research/train-0", "undo deployment/serve -n research", "undo -f pod.yaml -o json"),
    "fairshare": ("fairshare --cluster demo", "fairshare nodes.yaml pods.yaml", "fairshare -l tier=research -o json"),
    "audit": (
        "audit --cluster demo",
        "audit --since 7d",
        "audit -n research -l app=train --sort-by saved",
        "audit --cluster demo -o jsonpath={.workloads[*].workload}",
        "audit cluster/ --policies policies -o html=report.html",
    ),
    "rightsize": (
        "rightsize --cluster demo",
        "rightsize -n research --usage usage.json -o yaml",
        "rightsize --cluster demo -o name",
    ),
    "layout": (
        "layout --cluster demo -o html=layout.html",
        "layout --usage usage.json --quantile 0.95",
        "layout --usage usage.json -o json",
        "layout --write layout --allow-drain --max-unavailable 2",
    ),
    "layout status": ("layout status", "layout status layout/ --watch --timeout 3600"),
    "lint": ("lint --cluster demo -o table", "lint -f quotas.yaml", "lint -n research -o yaml"),
    "capacity": (
        "capacity --cluster demo",
        "capacity a100-mixed-1 --cluster demo",
        "capacity -f nodes.yaml -f pods.yaml",
        "capacity -o wide --sort-by free",
    ),
    "place": ("place -f pod.yaml --cluster demo", "place -f pod.yaml -o json", "place -n research -l app=train"),
    "simulate": (
        "simulate --nodes demo --pods pods.yaml",
        "simulate --nodes nodes.csv --pods pods.csv",
    ),
    "ui": (
        "ui --cluster demo",
        "ui --context staging",
        "ui --cluster snapshot/ --policies policies --usage usage.json --listen 127.0.0.1:9090",
    ),
    "policy lint": ("policy lint", "policy lint policies --cluster live"),
    "policy list": ("policy list", "policy list --policies policies -o json"),
    "policy show": ("policy show guard",),
    "policy diff": (
        "policy diff policies policies.new --cluster demo",
        "policy diff policies policies.new -f nodes.yaml -f pods.yaml",
    ),
    "policy new": ("policy new research > policies/research.yaml",),
    "usage record": ("usage record --prometheus http://prometheus:9090 --file usage.json",),
    "accounting enable": ("accounting enable -n research --gpus 16",),
    "accounting check": ("accounting check", "accounting check -n research"),
    "kueue config": ("kueue config",),
    "install": ("install --image registry.example.com/rightslice:0.1.0", "install --dry-run", "install --mode enforce"),
    "uninstall": ("uninstall",),
    "doctor": ("doctor", "doctor --context staging -o json", "doctor -o name"),
    "serve webhook": ("serve webhook --cluster demo --self-signed --listen 127.0.0.1:9443",),
    "serve extender": ("serve extender --cluster live --self-signed --listen 127.0.0.1:9443",),
    "serve agent": ("serve agent --node gpu-1",),
    "completion": ("completion bash > /etc/bash_completion.d/rightslice",),
    "version": ("version", "version -o json"),
}
"""Arguments of the program, by command."""

KEEPS_LINES = "\b"
"""On a line of its own before a paragraph of a help page, whose lines then stay as they are."""


class PlainGroup(TyperGroup):
    """A group of commands, with plain errors and help pages."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the flags before the command."""
        if parent is None:
            self.epilog = _examples_section(info_name, PROGRAM_EXAMPLES)
        with _plain_usage_errors():
            return super().make_context(info_name, args, parent, **extra)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the flags before the command. A group that is a command too takes files, as with -f."""
        if not self.invoke_without_command or not self.commands.keys().isdisjoint(args):
            return super().parse_args(ctx, args)
        ctx.allow_interspersed_args = True
        files = super(TyperGroup, self).parse_args(ctx, args)
        ctx.params["filename"] = [*(ctx.params["filename"] or ()), *files]
        ctx.args = []
        return []

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _plain_usage_errors():
            return super().invoke(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command whose help page has examples, and shows arguments without Python's types."""
        command = super().get_command(ctx, cmd_name)
        if command is None:
            return None
        for each in command.params:
            if isinstance(each, TyperArgument) and each.metavar:
                each.display_type_rich = lambda ctx: None  # type: ignore[method-assign]  # noqa: ARG005
        if not isinstance(command, TyperGroup):
            _accept_equal_signs(command)
        names = cmd_name if ctx.parent is None else f"{ctx.info_name} {cmd_name}"
        command.epilog = _examples_section(ctx.find_root().info_name, examples_of(names))
        return command


def examples_of(names: str) -> tuple[str, ...]:
    """Return the examples of a command, and of a group the first of each of its commands."""
    first = (examples[0] for name, examples in EXAMPLES.items() if name.startswith(f"{names} "))
    return (*EXAMPLES.get(names, ()), *first)


def _examples_section(program: str, examples: Iterable[str]) -> str:
    return "\n".join([KEEPS_LINES, "Examples:", *[f"  {program} {each}" for each in examples]])


_SHORT_FLAG = re.compile(r"^(-[A-Za-z])=")
_SWITCH_VALUES = {"true": True, "1": True, "false": False, "0": False}
"""What kubectl reads after the = of a flag that takes no value."""


def _accept_equal_signs(command: Any) -> None:
    """Let a command accept `-o=json` and `--no-headers=true` as kubectl does."""
    names = (name for each in command.params if _is_switch(each) for name in each.opts)
    switches, parse_args = frozenset(names), command.parse_args
    command.parse_args = lambda ctx, args: parse_args(ctx, list(_without_equal_signs(args, switches)))


def _is_switch(parameter: Any) -> bool:
    return getattr(parameter, "is_flag", False) and parameter.default is False


def _without_equal_signs(arguments: list[str], switches: frozenset[str]) -> Iterator[str]:
    """Yield the arguments as typer takes them: a switch that is set to false is left out."""
    for each in arguments:
        name, _, value = str(each).partition("=")
        wanted = _SWITCH_VALUES.get(value.lower()) if name in switches else None
        if wanted is None:
            yield _SHORT_FLAG.sub(r"\1", str(each))
        elif wanted:
            yield name


UsageError: Any = typer.BadParameter.__base__
"""The error of typer about wrong arguments."""


@contextmanager
def _plain_usage_errors() -> Iterator[None]:
    """Exit with an error in our style if the arguments are wrong."""
    try:
        yield
    except UsageError as error:
        if error.message.startswith("Usage:"):  # a group without a command
            sys.stdout.write(f"{error.message}\n")
            raise typer.Exit from None
        print_note(f"error: {usage_error_message(error)}")
        context = error.ctx
        if context is not None:
            print_note(f"See '{context.command_path} --help' for usage.")
        raise typer.Exit(EXIT_INVALID_INPUT) from None


def usage_error_message(error: Any) -> str:
    """Return what is wrong with the arguments, and the flag or command that was probably meant."""
    if isinstance(error, typer.BadParameter):
        return _value_error_message(error)
    if (flag := getattr(error, "option_name", "")) and error.message.startswith("No such"):
        hint = f"Did you mean {error.possibilities[0]}?" if error.possibilities else _known_flags(error.ctx)
        renamed = FORMER_FLAGS.get(flag, "")
        if any(renamed in each.opts for each in error.ctx.command.params):
            hint = f"It was renamed. Write {renamed}"
        command = error.ctx.command_path.removeprefix(f"{error.ctx.find_root().info_name} ")
        if reason := unsupported_reason(command, flag):
            return f"unknown flag: {sanitize(flag)}. {command} has none: {reason}"
        return f"unknown flag: {sanitize(flag)}. {hint}"
    if flag and error.message.endswith("does not take a value."):
        return f"{flag}: must have no value, or =true or =false, found another. Write {flag}"
    if flag:
        return f"{flag}: must have a value, found none"
    message = str(error.format_message())
    if found := _EXTRA_ARGUMENTS.match(message):
        metavars = [str(each.metavar) for each in error.ctx.command.params if isinstance(each, TyperArgument)]
        files = "; files are named with -f" * any("-f" in each.opts for each in error.ctx.command.params)
        return f"unexpected argument: {sanitize(found[1])}. It takes {' and '.join(metavars) or 'only flags'}{files}"
    return message[:1].lower() + message[1:].removesuffix(".")


_EXTRA_ARGUMENTS = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)")
FORMER_FLAGS = {"--policy": "--strategy"}
"""Flags before 0.1, and their names since."""


def _known_flags(context: Any) -> str:
    """Return the flags of a command; of a group, that those of its commands follow them."""
    if isinstance(context.command, TyperGroup) and not context.command.invoke_without_command:
        return f"Write the flags of a command after it: {context.command_path} COMMAND --flag"
    flags = [max(each.opts, key=len) for each in context.command.params if each.opts[0].startswith("-")]
    return f"Its flags: {', '.join([*flags, '--help'])}"


def _value_error_message(error: Any) -> str:
    """Return the flag or argument, and what must hold of it."""
    parameter = error.param
    name = error.param_hint or (parameter and (parameter.metavar if isinstance(parameter, TyperArgument) else ""))
    if not name and parameter is not None:
        name = max(parameter.opts, key=len)
    message = plain_value_error(error) or error.message
    if type(error) is not typer.BadParameter:
        message = "must be given, found none"
    return f"{name}: {message}" if name else message


def plain_value_error(error: Exception) -> str:
    """Return what must hold and what was found, from an invalid value that typer had pydantic check; "" for others."""
    details = getattr(error.__cause__, "errors", None)
    if details is None:
        return ""
    [first, *_] = details()
    reason = str(first["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    _, is_choice, choices = reason.partition(" is not one of ")
    must = f"one of {choices.rstrip('.').replace(chr(39), '')}" if is_choice else reason.partition(", unable")[0]
    return f"must be {must}, found {first['input']!r}"
