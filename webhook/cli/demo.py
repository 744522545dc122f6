"""`demo`: the real server, the shipped policies and example cluster, and the example pods, over HTTPS."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import typer

from webhook.audit.checking import World, arriving, check
from webhook.audit.manifests import Entry, objects_in
from webhook.cache.shipped import shipped
from webhook.cli import flags
from webhook.cli.calling import Client
from webhook.cli.console import NO_ANSWER, paint_for, say, stop, tell
from webhook.cli.inputs import cluster_of, moment_of, nearby, policies_of
from webhook.cli.running import ServerError, serving
from webhook.report.demonstrated import Shown, demonstrated, totals
from webhook.report.diff import apply
from webhook.report.results import Checked, Verdict


def demo(no_color: flags.NoColor = False) -> None:
    """Watch it work: the real HTTPS server judges and shapes the example pods. Needs no cluster."""
    policies = nearby(shipped("policies"))
    pods = nearby(shipped("examples") / "pods")
    world = World(policies=policies_of([policies]), view=cluster_of("demo", {}), now=moment_of(""))
    paint = paint_for(no_color=no_color)
    shown: list[Shown] = []
    tell("starting the server …")
    try:
        with serving(["--policies", policies, "--cluster", "demo"]) as (client, port):
            nodes = len(world.view.fleet.nodes)
            say([f"Server at https://127.0.0.1:{port}, {policies}/, example cluster of {nodes} nodes"])
            for one in through(client, [pods], world):
                shown.append(one)
                say(["", *demonstrated(one, paint)])
    except (ServerError, OSError, ValueError) as error:
        stop(str(error), NO_ANSWER)
    say(["", *totals(shown), "Keep it serving: make serve"])
    raise typer.Exit


def through(client: Client, paths: list[str], world: World) -> Iterator[Shown]:
    """Send every object of some files to /mutate, and what became of it to /validate."""
    for entry in objects_in(paths):
        if not isinstance(entry, Entry):
            continue
        result = check(arriving(entry, world), world)
        if result.verdict is not Verdict.SKIPPED:
            yield _through(client, entry, result, world)


def _through(client: Client, entry: Entry, result: Checked, world: World) -> Shown:
    mutated = client.review("/mutate", result.stored, f"mutate-{result.name}")
    shaped = apply(result.stored, mutated.patch)
    validated = client.review("/validate", shaped, f"validate-{result.name}")
    again = check(Entry(shaped, entry.document, entry.prefix), world)
    before, to_come = result.decision.gpu_milli_before, result.decision.gpu_milli_after
    return Shown(
        checked=result,
        shaped=shaped,
        denied="" if validated.allowed else validated.message,
        warnings=(*mutated.warnings, *validated.warnings),
        gpu_milli_before=before,
        gpu_milli_after=again.decision.gpu_milli_before if result.kind == "Pod" else to_come,
        milliseconds=(mutated.milliseconds, validated.milliseconds),
        story=story_of(Path(entry.document.file)),
    )


def story_of(file: Path) -> str:
    """What the comment at the head of a file says; "" where there is none."""
    with file.open(encoding="utf-8") as lines:
        head = takewhile(lambda line: line.startswith("#"), lines)
        return " ".join(line.lstrip("#").strip() for line in head)
