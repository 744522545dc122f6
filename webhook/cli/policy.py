"""`policy`: check, list, show, compare and start policies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from webhook.cli import flags
from webhook.cli.console import CLEAN, FINDINGS, say, stop, tell
from webhook.cli.inputs import fault_lines, moment_of, policies_of, policy_files
from webhook.cli.policydiff import diff
from webhook.documents.reading import read
from webhook.model.modes import Mode
from webhook.policy.compiled import SECTIONS, Policy
from webhook.policy.loading import Loaded, load
from webhook.policy.starting import starting_policy
from webhook.policy.unheard import unheard
from webhook.policy.written.kinds import GPUPolicy
from webhook.report.codes_page import closest
from webhook.report.data import as_yaml
from webhook.report.words import columns, count, shown

policy = typer.Typer(help="Check, list, show, compare and start policies.", no_args_is_help=True)
policy.command("diff")(diff)

REFUSING = ("quotas", "security")
"""Sections that tenants are held by, and that change no pod."""

PolicyPaths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE|DIR]", help="Policy files or folders. Default: the library that comes with Rightslice."
    ),
]


@policy.command("lint")
def lint(paths: PolicyPaths = None, now: flags.Now = "") -> None:
    """Check policy files: every fault with its place and what to write instead. Exemptions that are over are named.

    Exit code: 0 no faults, 1 faults, 2 a file cannot be read.
    """
    files = policy_files(paths)
    loaded = load(files)
    say(list(map(shown, fault_lines(loaded))))
    notes = (*_over(loaded, moment_of(now)), *_unwatched(loaded), *_switched_off(loaded), *_unheard(loaded))
    for line in notes:
        tell(shown(line))
    tell(f"{count(len(files), 'file')}: {count(len(loaded.errors), 'fault') if loaded.errors else 'no faults'}")
    raise typer.Exit(FINDINGS if loaded.errors else CLEAN)


def _over(loaded: Loaded, now: datetime) -> list[str]:
    """The exemptions that do nothing any more."""
    exemptions = loaded.policies.exemptions if loaded.policies is not None else ()
    return [
        f"note: exemption {one.name} from {one.policy} is over since {one.expires:%Y-%m-%dT%H:%M:%SZ}: "
        "it takes nothing back. Remove it, or write a later expirationTime"
        for one in exemptions
        if now >= one.expires
    ]


def _unwatched(loaded: Loaded) -> list[str]:
    """The rollouts that somebody wants to be watched: only those of objects are."""
    policies = loaded.policies.policies if loaded.policies is not None else ()
    return [
        f"note: haltOn of policy {one.name} needs an object of a cluster; of a file nobody watches it"
        for one in policies
        if one.rollout is not None and one.rollout.halt_on is not None
    ]


def _switched_off(loaded: Loaded) -> list[str]:
    """The sections that only refuse, and that a halted rollout puts on trial with the rest of its policy."""
    policies = loaded.policies.policies if loaded.policies is not None else ()
    watched = [one for one in policies if one.rollout is not None and one.rollout.halt_on is not None]
    found = ((one, [name for name in REFUSING if _enforces(one, name)]) for one in watched)
    return [
        f"note: a halt of policy {one.name} puts its {' and '.join(sections)} on trial too, and pods that die bring it "
        f"about. Put {' and '.join(sections)} in a policy without haltOn"
        for one, sections in found
        if sections
    ]


def _enforces(one: Policy, name: str) -> bool:
    section = getattr(one, name)
    return section is not None and section.mode is Mode.ENFORCE


def _unheard(loaded: Loaded) -> list[str]:
    """What policies say of resources that nobody judges."""
    found = loaded.policies.written if loaded.policies is not None else ()
    return [f"note: {said}" for one in found if isinstance(one.written, GPUPolicy) for said in unheard(one.written)]


@policy.command("list")
def list_policies(policies: flags.Policies = None) -> None:
    """List policies: name, mode, sections with a mode of their own, and place."""
    found = policies_of(policies).policies
    rows = [(each.name, _mode(each), _sections(each), str(each.place)) for each in found]
    say([shown(line) for line in columns([("NAME", "MODE", "SECTIONS", "PLACE"), *rows])])


def _mode(each: Policy) -> str:
    """Its mode, and for how many of a hundred workloads where it is being rolled out."""
    return f"{each.mode}:{each.rollout.percent}%" if each.rollout else str(each.mode)


def _sections(each: Policy) -> str:
    """The sections a policy has; one that has another mode than the policy with that mode."""
    written = []
    for name in SECTIONS:
        section = getattr(each, name)
        if section is not None:
            head, *rest = name.split("_")
            key = head + "".join(map(str.title, rest))
            mode: Mode = section.mode
            written.append(key if mode is each.mode else f"{key}={mode}")
    return ",".join(written) or "-"


@policy.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the policy.")],
    policies: flags.Policies = None,
) -> None:
    """Print a policy as it is understood, with every default filled in."""
    found = {each.name: each for each in policies_of(policies).policies}
    if name not in found:
        meant = closest(name, found)
        hint = f"Did you mean {meant}?" if meant else f"There are {', '.join(sorted(found)) or 'none'}."
        stop(f"no policy is called {shown(name)!r}. {hint}")
    say(as_yaml(_filled_in(found[name], policy_files(policies))))


def _filled_in(wanted: Policy, files: Sequence[tuple[str, str]]) -> Any:
    """The written policy that stands where the compiled one says, with its defaults."""
    [document] = (
        document
        for file, text in files
        if file == wanted.place.file
        for document in read(text, file)
        if document.place() == wanted.place
    )
    filled = GPUPolicy.model_validate(document.data).model_dump(
        mode="json", by_alias=True, exclude_none=True, warnings=False
    )
    return _as_written(filled, document.data)


def _as_written(filled: Any, data: Any) -> Any:
    """Data with its defaults, in which what was written stands as it was written: sizes keep their units."""
    if isinstance(filled, dict) and isinstance(data, dict):
        return {key: _as_written(value, data[key]) if key in data else value for key, value in filled.items()}
    if isinstance(filled, list) and isinstance(data, list):
        return [_as_written(*pair) for pair in zip(filled, data, strict=True)]
    return data


@policy.command("new")
def new(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new policy.")]) -> None:
    """Print a commented policy to start from."""
    text = starting_policy(name)
    faults = load([(name, text)]).errors
    if faults:
        stop(f"NAME: {faults[0].sentence}")
    say(text)
