"""`test`: run GPUPolicyTest files."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook import __version__
from webhook.audit.object_files import SkippedDocument, read_objects
from webhook.audit.policy_tests import find_test_files, run_test_file
from webhook.cli import flags
from webhook.cli.inputs import parse_now, reject_unread_files
from webhook.cli.output import (
    EXIT_FINDINGS,
    EXIT_INVALID_INPUT,
    EXIT_OK,
    document_reports,
    exit_with_error,
    join_lines,
    paint_for,
    parse_targets,
    print_note,
    text_reports,
    write_reports,
)
from webhook.errors import LocatedError
from webhook.policy.policy_tests import POLICY_TEST_KIND
from webhook.report.check import kubectl_name
from webhook.report.ci_formats import github_commands, junit_xml, sarif_document
from webhook.report.policy_tests import (
    policy_test_annotations,
    policy_test_document,
    policy_test_junit_cases,
    policy_test_summary,
    policy_test_table,
)
from webhook.report.serialization import json_text
from webhook.report.text import sanitize
from webhook.well_known import API_VERSION

FORMATS = ("table", "wide", "json", "yaml", "name", "junit", "sarif", "github")
TestPaths = Annotated[
    list[str] | None,
    flags.paths_argument(
        "Test files or folders. Default: the policies of .rightslice.yaml, else ./policies.", "FILE|DIR"
    ),
]
TestOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]


def policy_test_command(
    called: typer.Context,
    paths: TestPaths = None,
    filename: flags.Filenames = None,
    now: flags.Now = "",
    output: TestOutput = None,
    no_color: flags.NoColor = False,
) -> None:
    """Run policy tests (kind GPUPolicyTest).

    Exit code: 0 all cases passed, 1 a case failed, 2 invalid input, or no tests.
    """
    targets = parse_targets(output, FORMATS)
    named = flags.join_paths(paths, filename)
    paths = named or called.lookup_default("policies") or ["policies"]
    try:
        files = list(find_test_files(paths))
    except LocatedError as error:
        exit_with_error(str(error) if named else f"{error}. Name the folder of your tests: rightslice test DIR")
    if not files:
        reject_unread_files(
            [each for each in read_objects(paths) if isinstance(each, SkippedDocument) and each.invalid]
        )
        hint = "Write one with kind: GPUPolicyTest, or name another folder"
        exit_with_error(f"{', '.join(paths)}: no policy tests here. {hint}")
    moment = parse_now(now)
    results = [run_test_file(file, moment) for file in files]
    paint = paint_for(no_color=no_color)
    reports = {
        **text_reports(lambda: [*policy_test_table(results, paint), policy_test_summary(results)]),
        **document_reports(lambda: policy_test_document(results)),
        "name": lambda: join_lines(
            kubectl_name(API_VERSION, POLICY_TEST_KIND, name) for each in results for name in each.tests
        ),
        "junit": lambda: junit_xml(policy_test_junit_cases(results), "rightslice test"),
        "sarif": lambda: json_text(sarif_document(list(policy_test_annotations(results)), __version__)),
        "github": lambda: join_lines(github_commands(policy_test_annotations(results))),
    }
    write_reports(targets, reports)
    errors = [found for result in results for found in result.errors]
    if any(target.form == "name" for target in targets):
        for each in errors:
            print_note(sanitize(f"error: {each}"))
    if errors:
        raise typer.Exit(EXIT_INVALID_INPUT)
    raise typer.Exit(EXIT_FINDINGS if any(case.problems for each in results for case in each.cases) else EXIT_OK)
