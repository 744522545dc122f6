"""`test`: run GPUPolicyTest files."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.audit.policy_tests import find_test_files, run_test_file
from webhook.cli import flags
from webhook.cli.commands.version import rightslice_version
from webhook.cli.inputs import parse_now
from webhook.cli.output import (
    CLEAN,
    FINDINGS,
    WRONG_INPUT,
    exit_with_error,
    join_lines,
    paint_for,
    parse_targets,
    write_reports,
)
from webhook.errors import LocatedError
from webhook.report.code_annotations import github_commands, sarif_document
from webhook.report.junit import junit_xml
from webhook.report.policy_tests import (
    policy_test_annotations,
    policy_test_document,
    policy_test_junit_cases,
    policy_test_summary,
    policy_test_table,
)
from webhook.report.serialization import json_text, yaml_text

FORMATS = ("table", "json", "yaml", "name", "junit", "sarif", "github")


def policy_test_command(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE|DIR]", help="Test files or folders. Default: policies.")
    ] = None,
    now: flags.Now = "",
    output: flags.Output = None,
    no_color: flags.NoColor = False,
) -> None:
    """Run policy tests (kind GPUPolicyTest).

    Exit code: 0 all as wanted, 1 a case failed, 2 a test cannot be run or there are none.
    """
    wanted = parse_targets(output, FORMATS)
    where = paths or ["policies"]
    try:
        files = list(find_test_files(where))
    except LocatedError as error:
        exit_with_error(str(error))
    if not files:
        exit_with_error(
            f"{', '.join(where)}: no policy tests here. Write one with kind: GPUPolicyTest, or name another folder"
        )
    moment = parse_now(now)
    results = [run_test_file(file, moment) for file in files]
    paint = paint_for(no_color=no_color)
    write_reports(
        wanted,
        {
            "table": lambda: join_lines([*policy_test_table(results, paint), policy_test_summary(results)]),
            "json": lambda: json_text(policy_test_document(results)),
            "yaml": lambda: yaml_text(policy_test_document(results)),
            "name": lambda: join_lines([f"{each.file}: {case.name}" for each in results for case in each.cases]),
            "junit": lambda: junit_xml(policy_test_junit_cases(results), "rightslice test"),
            "sarif": lambda: json_text(sarif_document(list(policy_test_annotations(results)), rightslice_version())),
            "github": lambda: join_lines(github_commands(policy_test_annotations(results))),
        },
    )
    if any(result.errors for result in results):
        raise typer.Exit(WRONG_INPUT)
    raise typer.Exit(FINDINGS if any(case.problems for each in results for case in each.cases) else CLEAN)
