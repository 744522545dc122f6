"""`demo`: send the example pods to a real webhook server over HTTPS, with the shipped policies and example cluster."""

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
from webhook.cli.output import EXIT_NO_ANSWER, exit_with_error, paint_for, print_note, print_result
from webhook.cli.webhook_client import WebhookClient, WebhookProcessError, run_webhook_process
from webhook.report.demo import DemoResult, demo_lines, demo_summary
from webhook.report.object_diff import apply_json_patch
from webhook.report.results import CheckResult, CheckVerdict


def demo_command(no_color: flags.NoColor = False) -> None:
    """Run a webhook server on example pods.

    A real HTTPS server evaluates and patches the example pods with the shipped policies. Needs no cluster.
    """
    policies = relative_path(bundled_folder("policies"))
    pods = relative_path(bundled_folder("examples") / "pods")
    context = EvaluationContext(load_policy_set([policies]), read_cluster_view("demo", {}), parse_now(""))
    paint = paint_for(no_color=no_color)
    results: list[DemoResult] = []
    print_note("starting the server …")
    try:
        with run_webhook_process(["--policies", policies, "--cluster", "demo"]) as (client, port):
            nodes = len(context.view.fleet.nodes)
            print_result([f"Server at https://127.0.0.1:{port}, {policies}/, example cluster of {nodes} nodes"])
            for result in review_objects(client, [pods], context):
                results.append(result)
                print_result(["", *demo_lines(result, paint)])
    except (WebhookProcessError, OSError, ValueError) as error:
        exit_with_error(str(error), EXIT_NO_ANSWER)
    print_result(["", *demo_summary(results), "To keep a server running: make serve"])
    raise typer.Exit


def review_objects(client: WebhookClient, paths: list[str], context: EvaluationContext) -> Iterator[DemoResult]:
    """Send each object of the files to /mutate, and the patched object to /validate."""
    for source in read_objects(paths):
        if not isinstance(source, SourceObject):
            continue
        result = evaluate_object(with_limit_range_defaults(source, context), context)
        if result.verdict is not CheckVerdict.SKIPPED:
            yield _review_object(client, source, result, context)


def _review_object(
    client: WebhookClient, source: SourceObject, result: CheckResult, context: EvaluationContext
) -> DemoResult:
    mutated = client.review("/mutate", result.stored, f"mutate-{result.name}")
    patched = apply_json_patch(result.stored, mutated.patch)
    validated = client.review("/validate", patched, f"validate-{result.name}")
    milli_after = result.decision.gpu_milli_after
    if result.kind == "Pod":
        reviewed = evaluate_object(SourceObject(patched, source.document, source.prefix), context)
        milli_after = reviewed.decision.gpu_milli_before
    return DemoResult(
        result=result,
        patched=patched,
        denied="" if validated.allowed else validated.message,
        warnings=(*mutated.warnings, *validated.warnings),
        gpu_milli_before=result.decision.gpu_milli_before,
        gpu_milli_after=milli_after,
        milliseconds=(mutated.milliseconds, validated.milliseconds),
        description=leading_comment(Path(source.document.file)),
    )


def leading_comment(file: Path) -> str:
    """Return the comment at the start of a file; "" without one."""
    with file.open(encoding="utf-8") as lines:
        comment = takewhile(lambda line: line.startswith("#"), lines)
        return " ".join(line.lstrip("#").strip() for line in comment)
