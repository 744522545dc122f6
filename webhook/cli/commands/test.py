"""`test`: run GPUPolicyTest files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from webhook import __version__
from webhook.audit.object_files import SkippedDocument, read_objects
from webhook.audit.policy_tests import find_test_files, run_test_file
from webhook.cache.folder_documents import is_folder
from webhook.cli import flags
from webhook.cli.inputs import LOCAL_FOLDER, parse_now, reject_unread_files
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
from webhook.errors import LocatedError, SourceLocation
from webhook.model.enums import PolicyMode
from webhook.policy.policy_tests import POLICY_TEST_KIND
from webhook.report.check import kubectl_name
from webhook.report.ci_formats import CodeAnnotation, github_commands, junit_xml, sarif_document
from webhook.report.policy_tests import (
    NO_TESTS,
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
PassWithNoTests = Annotated[
    bool, typer.Option("--pass-with-no-tests", help="Warn and exit with 0 if there are no tests.")
]
TestOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]


def policy_test_command(
    called: typer.Context,
    paths: TestPaths = None,
    filename: flags.Filenames = None,
    now: flags.Now = "",
    pass_with_no_tests: PassWithNoTests = False,
    output: TestOutput = None,
    no_color: flags.NoColor = False,
) -> None:
    """Run policy tests (kind GPUPolicyTest).

    Exit code: 0 all cases passed, 1 a case failed, 2 invalid input, or no tests: a folder without tests is probably not
    the one that was meant.
    """
    targets = parse_targets(output, FORMATS)
    named = flags.join_paths(paths, filename)
    configured = named or called.lookup_default("policies") or []
    paths = configured or [LOCAL_FOLDER]
    files = _find_tests(paths) if configured or Path(LOCAL_FOLDER).exists() else []
    warnings = [] if files else [_no_tests(paths, is_error=not pass_with_no_tests)]
    moment = parse_now(now)
    results = [run_test_file(file, moment) for file in files]
    paint = paint_for(no_color=no_color)
    annotations = [*warnings, *policy_test_annotations(results)]
    reports = {
        **text_reports(lambda: [*policy_test_table(results, paint), policy_test_summary(results)]),
        **document_reports(lambda: policy_test_document(results)),
        "name": lambda: join_lines(
            kubectl_name(API_VERSION, POLICY_TEST_KIND, name) for each in results for name in each.tests
        ),
        "junit": lambda: junit_xml(policy_test_junit_cases(results), "rightslice test"),
        "sarif": lambda: json_text(sarif_document(annotations, __version__)),
        "github": lambda: join_lines(github_commands(annotations)),
    }
    write_reports(targets, reports)
    errors = [found for result in results for found in result.errors]
    if any(target.form == "name" for target in targets):
        for each in errors:
            print_note(sanitize(f"error: {each}"))
    if errors:
        raise typer.Exit(EXIT_INVALID_INPUT)
    raise typer.Exit(EXIT_FINDINGS if any(case.problems for each in results for case in each.cases) else EXIT_OK)


def _find_tests(paths: Sequence[str]) -> list[str]:
    """Return the files with policy tests. Exits if nothing can be read."""
    try:
        files = list(find_test_files(paths))
    except LocatedError as error:
        exit_with_error(str(error))
    if not files:
        skipped = (each for each in read_objects(paths) if isinstance(each, SkippedDocument))
        reject_unread_files([each for each in skipped if each.invalid and not is_folder(Path(each.location.file))])
    return files


def _no_tests(paths: Sequence[str], *, is_error: bool) -> CodeAnnotation:
    """Return the warning that there are no tests, after printing it; exits if it is an error."""
    write = "Write one with kind: GPUPolicyTest, or name another folder: rightslice test DIR"
    message = f"must contain policy tests, found none. {write}"
    if is_error:
        exit_with_error(f"{', '.join(paths)}: {message}")
    print_note(sanitize(f"warning: {', '.join(paths)}: {message}"))
    return CodeAnnotation(SourceLocation(paths[0]), PolicyMode.WARN, NO_TESTS, message)
