"""The flags that several commands share, each declared once. kubectl's letters mean what they mean to kubectl."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import typer

from webhook.cli import cluster_flags
from webhook.errors import quote_text

NAMESPACE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def validate_namespace_name(name: str | None) -> str | None:
    """A name that a namespace can have, or none; ends the program where it cannot."""
    if name and not NAMESPACE_NAME.fullmatch(name):
        must = "must be lower-case letters, digits and hyphens, at most 63, as names of namespaces are"
        raise typer.BadParameter(f"{must}, found {quote_text(name)}")
    return name


class FailOn(StrEnum):
    """From which findings on the exit code is 1."""

    DENY = "deny"
    WARN = "warn"
    NEVER = "never"


def output_option(forms: str) -> Any:
    """The option -o of a command that writes these forms."""
    help_ = (
        f"{forms}; with =PATH into a file. May be given more than once, at most once without a path. Default: table."
    )
    return typer.Option("-o", "--output", metavar="FORMAT[=PATH]", help=help_)


Paths = Annotated[
    list[str],
    typer.Argument(metavar="FILE|DIR|-", help="Files, folders (their YAML and JSON files) or - for standard input."),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policies",
        metavar="FILE|DIR",
        help="Policies to judge by; may be given more than once. Default: the library that comes with Rightslice.",
    ),
]
PoliciesOrLive = Annotated[
    list[str] | None,
    typer.Option(
        "--policies",
        metavar="FILE|DIR",
        help="Policies to judge by; may be given more than once. Default: with --cluster live those in force there, "
        "else the library that comes with Rightslice.",
    ),
]
PolicyNamespace = Annotated[
    str,
    typer.Option(
        "--policy-namespace",
        metavar="NAME",
        help="With --cluster live: where exceptions count, and the ConfigMap rightslice-policies is.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="live|SNAPSHOT|demo",
        help="live, a file or folder of `kubectl get -o yaml`, or demo for the shipped example. "
        "Without it no cluster is known: nothing is right-sized, and nothing is said about placement.",
    ),
]
AuditedCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="live|SNAPSHOT|demo",
        help="The cluster that is judged: live, a file or folder of `kubectl get -o yaml`, or demo for the shipped "
        "example.",
    ),
]
Kubeconfig: TypeAlias = cluster_flags.Kubeconfig
Context: TypeAlias = cluster_flags.Context
Usage = Annotated[
    str | None,
    typer.Option(
        "--usage",
        metavar="FILE",
        help="What GPUs were seen to do, as `rightslice usage record` wrote it: evidence for right-sizing.",
    ),
]
NamespaceFlag = Annotated[
    str, typer.Option("-n", "--namespace", metavar="NAME", help="The namespace of objects that name none.")
]
NamespaceLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace-labels",
        metavar="KEY=VALUE,...",
        help="Labels that namespaces of the objects have, beside those that the cluster knows; more than once: all.",
    ),
]
Now = Annotated[
    str,
    typer.Option("--now", metavar="RFC3339", help="The moment to judge at, for exemptions that end. Default: now."),
]
Output = Annotated[list[str] | None, output_option("table, wide, json, yaml, name, junit, sarif or github")]
FailOnFlag = Annotated[
    FailOn, typer.Option("--fail-on", help="Exit with 1 on denials (of a workload's pods too), on warnings, or never.")
]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colour. NO_COLOR and TERM=dumb do the same.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only denials, warnings and faults; no totals.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v", "--verbose", help="Also notes of mode audit, and on stderr what was read and what was left out."
    ),
]
