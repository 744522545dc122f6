"""`test`: run GPUPolicyTest files."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.audit.policytests import files_with_tests, run_file
from webhook.cli import flags
from webhook.cli.console import CLEAN, FINDINGS, WRONG_INPUT, paint_for, stop
from webhook.cli.inputs import moment_of
from webhook.cli.output import lines, targets, write
from webhook.cli.version import rightslice_version
from webhook.errors import PlacedError
from webhook.report.cases import case_notes, cases_document, cases_table, junit_cases, total_line
from webhook.report.data import as_json, as_yaml
from webhook.report.github import github
from webhook.report.junit import junit
from webhook.report.sarif import sarif

FORMATS = ("table", "json", "yaml", "name", "junit", "sarif", "github")


def run_tests(
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
    wanted = targets(output, FORMATS)
    where = paths or ["policies"]
    try:
        files = list(files_with_tests(where))
    except PlacedError as error:
        stop(str(error))
    if not files:
        stop(f"{', '.join(where)}: no policy tests here. Write one with kind: GPUPolicyTest, or name another folder")
    moment = moment_of(now)
    results = [run_file(file, moment) for file in files]
    paint = paint_for(no_color=no_color)
    write(
        wanted,
        {
            "table": lambda: lines([*cases_table(results, paint), total_line(results)]),
            "json": lambda: as_json(cases_document(results)),
            "yaml": lambda: as_yaml(cases_document(results)),
            "name": lambda: lines([f"{each.file}: {case.name}" for each in results for case in each.cases]),
            "junit": lambda: junit(junit_cases(results), "rightslice test"),
            "sarif": lambda: as_json(sarif(list(case_notes(results)), rightslice_version())),
            "github": lambda: lines(github(case_notes(results))),
        },
    )
    if any(result.faults for result in results):
        raise typer.Exit(WRONG_INPUT)
    raise typer.Exit(FINDINGS if any(case.problems for each in results for case in each.cases) else CLEAN)
