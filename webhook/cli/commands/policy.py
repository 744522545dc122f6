"""`policy`: check, list, show, compare and start policies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from webhook.cli import flags
from webhook.cli.commands.policy_diff import diff_policies
from webhook.cli.inputs import load_policy_set, parse_now, policy_error_lines, read_policy_files
from webhook.cli.output import CLEAN, FINDINGS, exit_with_error, print_note, print_result
from webhook.documents.reader import read_documents
from webhook.model.enums import PolicyMode
from webhook.policy.lint import find_unmatched
from webhook.policy.loader import LoadResult, load_policies
from webhook.policy.policy_set import SECTIONS, Policy
from webhook.policy.starter_policy import render_starter_policy
from webhook.policy.written.kinds import GPUPolicy
from webhook.report.code_pages import closest_name
from webhook.report.serialization import yaml_text
from webhook.report.text import align_columns, pluralize, sanitize

policy = typer.Typer(help="Check, list, show, compare and start policies.", no_args_is_help=True)
policy.command("diff")(diff_policies)

REJECT_ONLY_SECTIONS = ("quotas", "security")
"""Sections that tenants are held by, and that change no pod."""

PolicyPaths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE|DIR]", help="Policy files or folders. Default: the library that comes with Rightslice."
    ),
]


@policy.command("lint")
def lint_policies(paths: PolicyPaths = None, now: flags.Now = "") -> None:
    """Check policy files: every fault with its place and what to write instead. Exemptions that are over are named.

    Exit code: 0 no faults, 1 faults, 2 a file cannot be read.
    """
    files = read_policy_files(paths)
    loaded = load_policies(files)
    print_result(list(map(sanitize, policy_error_lines(loaded))))
    notes = (
        *_expired_exemption_notes(loaded, parse_now(now)),
        *_unwatched_rollout_notes(loaded),
        *_halted_section_notes(loaded),
        *_unmatched_notes(loaded),
    )
    for line in notes:
        print_note(sanitize(line))
    print_note(
        f"{pluralize(len(files), 'file')}: {pluralize(len(loaded.errors), 'fault') if loaded.errors else 'no faults'}"
    )
    raise typer.Exit(FINDINGS if loaded.errors else CLEAN)


def _expired_exemption_notes(loaded: LoadResult, now: datetime) -> list[str]:
    """The exemptions that do nothing any more."""
    exemptions = loaded.policies.exemptions if loaded.policies is not None else ()
    return [
        f"note: exemption {one.name} from {one.policy} is over since {one.expires:%Y-%m-%dT%H:%M:%SZ}: "
        "it takes nothing back. Remove it, or write a later expirationTime"
        for one in exemptions
        if now >= one.expires
    ]


def _unwatched_rollout_notes(loaded: LoadResult) -> list[str]:
    """The rollouts that somebody wants to be watched: only those of objects are."""
    policies = loaded.policies.policies if loaded.policies is not None else ()
    return [
        f"note: haltOn of policy {one.name} needs an object of a cluster; of a file nobody watches it"
        for one in policies
        if one.rollout is not None and one.rollout.halt_thresholds is not None
    ]


def _halted_section_notes(loaded: LoadResult) -> list[str]:
    """The sections that only refuse, and that a halted rollout puts on trial with the rest of its policy."""
    policies = loaded.policies.policies if loaded.policies is not None else ()
    watched = [one for one in policies if one.rollout is not None and one.rollout.halt_thresholds is not None]
    found = ((one, [name for name in REJECT_ONLY_SECTIONS if _enforces_section(one, name)]) for one in watched)
    return [
        f"note: a halt of policy {one.name} puts its {' and '.join(sections)} on trial too, and pods that die bring it "
        f"about. Put {' and '.join(sections)} in a policy without haltOn"
        for one, sections in found
        if sections
    ]


def _enforces_section(one: Policy, name: str) -> bool:
    section = getattr(one, name)
    return section is not None and section.mode is PolicyMode.ENFORCE


def _unmatched_notes(loaded: LoadResult) -> list[str]:
    """What policies say of resources that nobody judges."""
    found = loaded.policies.sources if loaded.policies is not None else ()
    return [f"note: {said}" for one in found if isinstance(one.model, GPUPolicy) for said in find_unmatched(one.model)]


@policy.command("list")
def list_policies(policies: flags.Policies = None) -> None:
    """List policies: name, mode, sections with a mode of their own, and place."""
    found = load_policy_set(policies).policies
    rows = [(each.name, _mode_cell(each), _sections_cell(each), str(each.location)) for each in found]
    print_result([sanitize(line) for line in align_columns([("NAME", "MODE", "SECTIONS", "PLACE"), *rows])])


def _mode_cell(each: Policy) -> str:
    """Its mode, and for how many of a hundred workloads where it is being rolled out."""
    return f"{each.mode}:{each.rollout.percent}%" if each.rollout else str(each.mode)


def _sections_cell(each: Policy) -> str:
    """The sections a policy has; one that has another mode than the policy with that mode."""
    written = []
    for name in SECTIONS:
        section = getattr(each, name)
        if section is not None:
            head, *rest = name.split("_")
            key = head + "".join(map(str.title, rest))
            mode: PolicyMode = section.mode
            written.append(key if mode is each.mode else f"{key}={mode}")
    return ",".join(written) or "-"


@policy.command("show")
def show_policy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")],
    policies: flags.Policies = None,
) -> None:
    """Print a policy as it is understood, with every default filled in."""
    found = {each.name: each for each in load_policy_set(policies).policies}
    if name not in found:
        meant = closest_name(name, found)
        hint = f"Did you mean {meant}?" if meant else f"There are {', '.join(sorted(found)) or 'none'}."
        exit_with_error(f"no policy is called {sanitize(name)!r}. {hint}")
    print_result(yaml_text(_policy_with_defaults(found[name], read_policy_files(policies))))


def _policy_with_defaults(wanted: Policy, files: Sequence[tuple[str, str]]) -> Any:
    """The written policy that stands where the compiled one says, with its defaults."""
    [document] = (
        document
        for file, text in files
        if file == wanted.location.file
        for document in read_documents(text, file)
        if document.locate() == wanted.location
    )
    filled = GPUPolicy.model_validate(document.data).model_dump(
        mode="json", by_alias=True, exclude_none=True, warnings=False
    )
    return _keep_written_values(filled, document.data)


def _keep_written_values(filled: Any, data: Any) -> Any:
    """Data with its defaults, in which what was written stands as it was written: sizes keep their units."""
    if isinstance(filled, dict) and isinstance(data, dict):
        return {key: _keep_written_values(value, data[key]) if key in data else value for key, value in filled.items()}
    if isinstance(filled, list) and isinstance(data, list):
        return [_keep_written_values(*pair) for pair in zip(filled, data, strict=True)]
    return data


@policy.command("new")
def new_policy(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new_policy policy.")]) -> None:
    """Print a commented policy to start from."""
    text = render_starter_policy(name)
    faults = load_policies([(name, text)]).errors
    if faults:
        exit_with_error(f"NAME: {faults[0].message}")
    print_result(text)
