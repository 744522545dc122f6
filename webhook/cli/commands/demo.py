"""`demo_command`: the real server, the shipped policies and example cluster, and the example pods, over HTTPS."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import typer

from webhook.audit.evaluate import EvaluationContext, evaluate_object, with_limit_range_defaults
from webhook.audit.object_files import SourceObject, read_objects
from webhook.cache.bundled_files import bundled_folder
from webhook.cli import flags
from webhook.cli.inputs import load_policy_set, parse_now, read_cluster_view, relative_path
from webhook.cli.output import NO_ANSWER, exit_with_error, paint_for, print_note, print_result
from webhook.cli.webhook_client import WebhookClient, WebhookProcessError, run_webhook_process
from webhook.report.demo import DemoResult, demo_lines, demo_summary
from webhook.report.object_diff import apply_json_patch
from webhook.report.results import CheckResult, CheckVerdict


def demo_command(no_color: flags.NoColor = False) -> None:
    """Watch it work: the real HTTPS server judges and shapes the example pods. Needs no cluster."""
    policies = relative_path(bundled_folder("policies"))
    pods = relative_path(bundled_folder("examples") / "pods")
    world = EvaluationContext(
        policies=load_policy_set([policies]), view=read_cluster_view("demo", {}), now=parse_now("")
    )
    paint = paint_for(no_color=no_color)
    shown: list[DemoResult] = []
    print_note("starting the server …")
    try:
        with run_webhook_process(["--policies", policies, "--cluster", "demo"]) as (client, port):
            nodes = len(world.view.fleet.nodes)
            print_result([f"Server at https://127.0.0.1:{port}, {policies}/, example cluster of {nodes} nodes"])
            for one in review_objects(client, [pods], world):
                shown.append(one)
                print_result(["", *demo_lines(one, paint)])
    except (WebhookProcessError, OSError, ValueError) as error:
        exit_with_error(str(error), NO_ANSWER)
    print_result(["", *demo_summary(shown), "Keep it serving: make serve"])
    raise typer.Exit


def review_objects(client: WebhookClient, paths: list[str], world: EvaluationContext) -> Iterator[DemoResult]:
    """Send every object of some files to /mutate, and what became of it to /validate."""
    for entry in read_objects(paths):
        if not isinstance(entry, SourceObject):
            continue
        result = evaluate_object(with_limit_range_defaults(entry, world), world)
        if result.verdict is not CheckVerdict.SKIPPED:
            yield _review_object(client, entry, result, world)


def _review_object(
    client: WebhookClient, entry: SourceObject, result: CheckResult, world: EvaluationContext
) -> DemoResult:
    mutated = client.review("/mutate", result.stored, f"mutate-{result.name}")
    shaped = apply_json_patch(result.stored, mutated.patch)
    validated = client.review("/validate", shaped, f"validate-{result.name}")
    again = evaluate_object(SourceObject(shaped, entry.document, entry.prefix), world)
    before, to_come = result.decision.gpu_milli_before, result.decision.gpu_milli_after
    return DemoResult(
        result=result,
        patched=shaped,
        denied="" if validated.allowed else validated.message,
        warnings=(*mutated.warnings, *validated.warnings),
        gpu_milli_before=before,
        gpu_milli_after=again.decision.gpu_milli_before if result.kind == "Pod" else to_come,
        milliseconds=(mutated.milliseconds, validated.milliseconds),
        description=leading_comment(Path(entry.document.file)),
    )


def leading_comment(file: Path) -> str:
    """What the comment at the head of a file says; "" where there is none."""
    with file.open(encoding="utf-8") as lines:
        head = takewhile(lambda line: line.startswith("#"), lines)
        return " ".join(line.lstrip("#").strip() for line in head)
