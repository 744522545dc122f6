"""Flags shared by several commands, each declared once. Names and letters mean what they mean to kubectl."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from webhook.cli.cluster_access import choose_cluster
from webhook.errors import quote_text

NAMESPACE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

LIBRARY = "the policy library shipped with Rightslice"
CLUSTER_FORMS = "live|SNAPSHOT|demo"
CLUSTER_HELP = "live, a file or folder written by `kubectl get -o yaml`, or demo for the shipped example"


def validate_namespace_name(name: str | None) -> str | None:
    """Return the name; reject one that a namespace cannot have."""
    if name and not NAMESPACE_NAME.fullmatch(name):
        must = "must be a namespace name: at most 63 lower-case letters, digits and hyphens"
        raise typer.BadParameter(f"{must}, found {quote_text(name)}")
    return name


def output_option(formats: Sequence[str], only: str = "") -> Any:
    """Return the option -o of a command that writes these formats; `only` says which of them need what."""
    formats = (*formats, "jsonpath=TEMPLATE") if "json" in formats else formats
    choices = f"{', '.join(formats)}; {only}" if only else f"{', '.join(formats[:-1])} or {formats[-1]}"
    default = formats[0]
    help_ = f"{choices}; FORMAT=PATH writes a file. Repeatable; at most one report goes to stdout. Default: {default}."
    words = complete_words([each.removesuffix("TEMPLATE") for each in formats])
    return typer.Option("-o", "--output", metavar="FORMAT[=PATH]", help=help_, autocompletion=words)


def complete_words(words: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what completes a word in a shell."""
    return lambda incomplete: [each for each in words if each.startswith(incomplete)]


def cluster_option(help_: str) -> Any:
    """Return the option --cluster, which takes a live cluster, a snapshot or the example."""
    words = complete_words(("live", "demo"))
    return typer.Option("--cluster", metavar=CLUSTER_FORMS, help=help_, autocompletion=words)


def paths_argument(help_: str, metavar: str = "FILE|DIR|-", words: Sequence[str] = ()) -> Any:
    """Return the argument for files and folders, and standard input if the metavar names it; `words` are completed."""
    return typer.Argument(metavar=metavar, help=help_, show_default=False, autocompletion=complete_words(words))


def filename_option(help_: str, *aliases: str) -> Any:
    """Return the option -f for files, folders or standard input, also by other names."""
    return typer.Option("-f", "--filename", *aliases, metavar="FILE|DIR|-", help=help_)


def namespace_option(help_: str) -> Any:
    """Return the option -n, which rejects a name that a namespace cannot have."""
    return typer.Option("-n", "--namespace", metavar="NAMESPACE", callback=validate_namespace_name, help=help_)


def policies_option(help_: str, *aliases: str) -> Any:
    """Return the option --policies, also by other names."""
    return typer.Option("--policies", *aliases, metavar="FILE|DIR", help=help_)


def policies_or_live_option(flag: str, which: str = "Policies to evaluate.") -> Any:
    """Return the option --policies of a command whose default are the policies of a live cluster that `flag` names."""
    default = f"with {flag} live the cluster's own policies, else {LIBRARY}"
    return policies_option(f"{which} Repeatable. Default: {default}.")


def policy_namespace_option(flag: str) -> Any:
    """Return the option --policy-namespace for a live cluster that `flag` names."""
    help_ = (
        f"With {flag} live: the namespace of exceptions and of the ConfigMap rightslice-policies. Default: that of the "
        "installation."
    )
    return typer.Option("--policy-namespace", metavar="NAMESPACE", help=help_)


def is_written(called: typer.Context, name: str) -> bool:
    """Return whether a flag was written, and is no default or one of `.rightslice.yaml`."""
    source = called.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


# Input

Paths = Annotated[
    list[str] | None, paths_argument("Files, folders (their YAML and JSON files) or - for standard input.")
]
Filenames = Annotated[list[str] | None, filename_option("The same as an argument. Repeatable.")]


def join_paths(paths: Sequence[str] | None, filenames: Sequence[str] | None) -> list[str]:
    """Return the files that arguments and -f name."""
    return [*(paths or ()), *(filenames or ())]


def require_paths(paths: list[str] | None, filenames: list[str] | None) -> list[str]:
    """Return the files that arguments and -f name. At least one must be named."""
    if not (named := join_paths(paths, filenames)):
        raise typer.BadParameter("name a file, a folder, or - for standard input", param_hint="FILE|DIR|-")
    return named


ClusterPaths = Annotated[
    list[str] | None,
    paths_argument("The cluster as files, instead of --cluster: what `kubectl get -o yaml` prints."),
]
ClusterFiles = Annotated[
    list[str] | None,
    filename_option("The cluster as files, instead of --cluster: what `kubectl get -o yaml` prints. Repeatable."),
]


def files_or_cluster(called: typer.Context, files: list[str], cluster: str | None) -> str | None:
    """Return the cluster to read; None if files are named instead. Exits if --cluster and files are written."""
    if not files:
        return choose_cluster(cluster)
    if is_written(called, "cluster"):
        raise typer.BadParameter("is the cluster to read, and so are the files; found both", param_hint="--cluster")
    return None


def choose_policies(called: typer.Context, paths: list[str] | None, policies: list[str] | None) -> list[str]:
    """Return the policies that arguments and --policies name; arguments override those of `.rightslice.yaml`."""
    return list(policies or ()) if not paths else join_paths(paths, policies if is_written(called, "policies") else ())


ListedPaths = Annotated[list[str] | None, paths_argument("The same as --policies.", "FILE|DIR")]
ListedPolicies = Annotated[
    list[str] | None,
    policies_option(f"Policy files or folders. Repeatable. Default: {LIBRARY}.", "-f", "--filename"),
]
PoliciesOrLive = Annotated[list[str] | None, policies_or_live_option("--cluster")]
PolicyNamespace = Annotated[str, policy_namespace_option("--cluster")]
Cluster = Annotated[
    str | None,
    cluster_option(
        f"The cluster: {CLUSTER_HELP}. Without it, there is no node data: nothing is right-sized, and placement is not "
        "checked."
    ),
]
AuditedCluster = Annotated[
    str | None, cluster_option(f"The cluster: {CLUSTER_HELP}. Default: the named files, else live.")
]
ReadCluster = Annotated[str | None, cluster_option(f"The cluster: {CLUSTER_HELP}. Default: live.")]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="For a live cluster. Default: KUBECONFIG, the service account in a pod, else ~/.kube/config.",
    ),
]
Context = Annotated[str | None, typer.Option("--context", metavar="NAME", help="The context of the kubeconfig to use.")]
Usage = Annotated[
    str | None,
    typer.Option(
        "--usage", metavar="FILE", help="GPU usage for right-sizing, as written by `rightslice usage record`."
    ),
]
SchedulerConfig = Annotated[
    Path | None,
    typer.Option(
        "--scheduler-config",
        metavar="FILE",
        help="KubeSchedulerConfiguration, for default spread, added affinity and other plugins. Default: none.",
    ),
]
NamespaceFlag = Annotated[str, namespace_option("The namespace of objects that do not set one.")]
OnlyNamespace = Annotated[
    str | None, namespace_option("Only objects in this namespace. Default: all, not the one of the context.")
]
AllNamespaces = Annotated[
    bool, typer.Option("-A", "--all-namespaces", help="All namespaces, also with --namespace. The default.")
]
SelectedNamespaces = Annotated[
    bool, typer.Option("-A", "--all-namespaces", help="With -l: pods of all namespaces, also with --namespace.")
]


def selector_option(kind: str = "pods") -> Any:
    """Return the option -l, which selects objects of this kind."""
    help_ = f"Only {kind} whose labels match, for example 'app=train,tier in (a,b),!canary'."
    return typer.Option("-l", "--selector", metavar="SELECTOR", help=help_)


Selector = Annotated[str, selector_option()]
PodNamespace = Annotated[
    str | None,
    namespace_option(
        "The namespace of the pod, or of objects that do not set one. Default: in a live cluster that of the context, "
        "else default."
    ),
]
NamespaceLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--namespace-labels",
        metavar="KEY=VALUE,...",
        help="Labels of the objects' namespaces, in addition to those in the cluster. Repeatable.",
    ),
]
Now = Annotated[
    str,
    typer.Option("--now", metavar="RFC3339", help="Evaluate as of this time. Default: now."),
]

# Output


class FailOn(StrEnum):
    """The mildest finding that makes the exit code 1, or also objects that were not evaluated."""

    DENY = "deny"
    WARN = "warn"
    SKIPPED = "skipped"
    NEVER = "never"


FailOnFlag = Annotated[
    FailOn,
    typer.Option(
        "--fail-on",
        metavar="|".join(FailOn),
        help="deny: exit with 1 on denials, also of a workload's pods; warn: on denials and warnings; skipped: on "
        "denials and objects that were not evaluated; never: exit with 0.",
    ),
]
SortBy = Annotated[
    str,
    typer.Option(
        "--sort-by",
        metavar="COLUMN|JSONPATH",
        help="Sort the rows in ascending order by a column, or by a JSONPath of a row in -o json, such as .name.",
    ),
]
NoHeaders = Annotated[
    bool, typer.Option("--no-headers", help="Print only the rows: no header, and nothing before and after the table.")
]
NoColor = Annotated[bool, typer.Option("--no-color", help="Disable colors, as NO_COLOR and TERM=dumb do.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only denials, warnings and errors, no totals.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v",
        "--verbose",
        help="Also print notes (findings in audit mode, changes that were made), and to stderr what was read.",
    ),
]
InputVerbose = Annotated[bool, typer.Option("-v", "--verbose", help="Also print to stderr what was read or skipped.")]

# Servers; each flag can also be set as a RIGHTSLICE_ variable

TlsCert = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain, PEM; reloaded on change.")
]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Private key of --tls-cert, PEM.")]
SelfSigned = Annotated[
    bool | None, typer.Option("--self-signed", help="Generate a certificate for this run, instead of --tls-cert.")
]
ClientCa = Annotated[
    Path | None,
    typer.Option("--client-ca", metavar="FILE", help="Require client certificates of this CA, PEM; reloaded."),
]
ClientName = Annotated[
    str | None, typer.Option("--client-name", metavar="NAME", help="The name that client certificates must have.")
]
DrainSeconds = Annotated[
    float | None,
    typer.Option(
        "--drain-seconds",
        metavar="SECONDS",
        help="Seconds to keep serving after SIGTERM. Default: 10, or 0 on a loopback address.",
    ),
]
LogLevel = Annotated[
    str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info (default), warning or error.")
]
MaxConnections = Annotated[
    int | None,
    typer.Option("--max-connections", metavar="N", help="Maximum number of open connections. Default: 2000."),
]
MaxInFlight = Annotated[
    int | None,
    typer.Option(
        "--max-in-flight",
        metavar="N",
        help="Maximum number of requests waiting or being received at a time. Default: 256.",
    ),
]

# Prometheus

Prometheus = Annotated[
    str | None,
    typer.Option(
        "--prometheus",
        metavar="URL|none",
        help="Read GPU usage from here, instead of --usage. Default: with --cluster live the cluster's own, if found.",
    ),
]
PrometheusCa = Annotated[
    Path | None,
    typer.Option(
        "--prometheus-ca", metavar="FILE", help="CA of Prometheus's certificate, PEM. Default: the system's CAs."
    ),
]
PrometheusTokenFile = Annotated[
    Path | None,
    typer.Option("--prometheus-token-file", metavar="FILE", help="Bearer token; read each time usage is loaded."),
]
PrometheusUser = Annotated[
    str | None, typer.Option("--prometheus-user", metavar="NAME", help="User name for basic authentication.")
]
PrometheusPasswordFile = Annotated[
    Path | None,
    typer.Option("--prometheus-password-file", metavar="FILE", help="Password for basic authentication."),
]
PrometheusSelector = Annotated[
    str | None,
    typer.Option(
        "--prometheus-selector",
        metavar="MATCHERS",
        help="""Label matchers for all queries, if it stores several clusters: 'cluster="a"'.""",
    ),
]
PrometheusDays = Annotated[
    int | None, typer.Option("--prometheus-days", metavar="DAYS", help="Days of history to read. Default: 7.")
]
