"""`install_manifests` and `uninstall_manifests`: the manifests that come with the program, into a cluster and out
of it again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from webhook.cache.bundled_files import bundled_folder
from webhook.cli import flags
from webhook.cli.cluster_flags import call_api
from webhook.cli.output import NO_ANSWER, exit_with_error, print_result
from webhook.documents.reader import read_documents
from webhook.installing.apply import InstallError, install_manifests
from webhook.installing.current_install import CurrentInstall, parse_deployment, read_current_install
from webhook.installing.removal import DeletionTimeoutError, has_policy_kinds, uninstall_manifests
from webhook.kube.api import KubeClient
from webhook.manifests.objects import with_image
from webhook.report.serialization import yaml_text
from webhook.well_known import SYSTEM_NAMESPACE

FILES = {"audit": "install.yaml", "enforce": "install-enforce.yaml"}


class InstallMode(StrEnum):
    """What policies may do."""

    AUDIT = "audit"
    ENFORCE = "enforce"


NEXT_STEPS = {
    "audit": f"""
Nothing is changed and nothing is denied yet. Next:
  rightslice doctor                       is everything well?
  kubectl apply -f POLICY.yaml            add policies; `rightslice policy new NAME` writes one
  rightslice audit                        what would be denied, and what could be smaller
  rightslice install --mode enforce       when you have seen enough
Take it out again: rightslice uninstall (the policies in it stay; namespace {SYSTEM_NAMESPACE}).""",
    "enforce": """
Policies do what they say now. Next:
  rightslice doctor                       is everything well?
  kubectl get gpupol                      which policies are in use, and what they did
Go back: rightslice install --mode audit. Take it out: rightslice uninstall.""",
}

CERT_MANAGER_INSTALLED = f"""the Deployment in {SYSTEM_NAMESPACE} \
takes its certificate from files, as overlay cert-manager has it; \
what `rightslice install` applies must keep its own, found --tls-cert. \
Apply the overlay again: \
kubectl apply --server-side -k manifests/overlays/cert-manager; or take it out first: rightslice uninstall"""

MODE_HELP = "audit: nothing is changed or denied. Default: the one that is installed, else audit."
ModeFlag = Annotated[InstallMode | None, typer.Option("--mode", help=MODE_HELP)]
ImageFlag = Annotated[
    str,
    typer.Option(
        "--image",
        metavar="IMAGE",
        help="The image to run. Default: the one that is installed, else the one in the shipped_manifests.",
    ),
]
TimeoutFlag = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long each wait may take.")]


def install_command(
    mode: ModeFlag = None,
    image: ImageFlag = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="The API server checks what it can, and stores nothing.")
    ] = False,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="yaml", help="Print the shipped_manifests, and ask no cluster anything."
        ),
    ] = "",
    timeout: TimeoutFlag = 120.0,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Install into a cluster: hooks last, once replicas are ready; then wait until they answer a pod.

    What is installed already is brought up to date, and keeps the mode and the image that are not given.

    Exit code: 0 installed, 2 a flag or the kubeconfig is wrong, 3 the cluster did not answer, or what was installed
    did not come up.
    """
    if output not in ("", "yaml"):
        exit_with_error(f"-o: must be yaml, found {output!r}. Write -o yaml, or leave it out")
    if output:
        print_result("---\n".join(map(yaml_text, with_image(shipped_manifests(mode or InstallMode.AUDIT), image))))
        return

    async def do(api: KubeClient) -> InstallMode:
        wanted, objects = resolve_install(CurrentInstall(mode or "", image), await read_current_install(api))
        await install_manifests(api, objects, print_line, seconds=timeout, dry_run=dry_run)
        return wanted

    try:
        installed = call_api(kubeconfig, context, do)
    except (InstallError, DeletionTimeoutError) as error:
        exit_with_error(str(error), NO_ANSWER)
    print_result(["Nothing was stored."] if dry_run else NEXT_STEPS[installed].splitlines())


def resolve_install(given: CurrentInstall, there: CurrentInstall) -> tuple[InstallMode, list[dict[str, Any]]]:
    """The mode, and the manifests: what is not given stays as it is in the cluster. Says which it came to."""
    if there.external_certificate:
        exit_with_error(CERT_MANAGER_INSTALLED)
    known = there.mode if there.mode in FILES else InstallMode.AUDIT
    mode = InstallMode(given.mode or known)
    objects = with_image(shipped_manifests(mode), given.image or there.image)
    [deployment] = [one for one in objects if one["kind"] == "Deployment"]
    print_line(f"mode {mode}{_describe_previous(given.mode, there.mode)}")
    print_line(f"image {parse_deployment(deployment).image}{_describe_previous(given.image, there.image)}")
    return mode, objects


def _describe_previous(given: str, there: str) -> str:
    """What to add about what was there."""
    if not there or given == there:
        return ""
    return f", before: {there}" if given else ", as it was"


def uninstall_command(
    with_policies: Annotated[
        bool, typer.Option("--with-policies", help="Also the CRDs and the namespace: every policy and exception goes.")
    ] = False,
    timeout: TimeoutFlag = 120.0,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Remove everything that `install_manifests` made, the hooks first of all.

    With the policies, it ends once the CRDs and the namespace have gone: the agent and the extender go with them.

    Exit code: 0 removed, 2 a flag or the kubeconfig is wrong, 3 the cluster did not answer, or something did not go in
    time.
    """
    objects = shipped_manifests(InstallMode.ENFORCE)

    async def do(api: KubeClient) -> bool:
        await uninstall_manifests(api, objects, print_line, with_policies=with_policies, seconds=timeout)
        return not with_policies and await has_policy_kinds(api, objects)

    try:
        kept = call_api(kubeconfig, context, do)
    except DeletionTimeoutError as error:
        exit_with_error(str(error), NO_ANSWER)
    if kept:
        print_result(
            [
                (
                    f"Policies, exceptions and namespace {SYSTEM_NAMESPACE} are still "
                    f"there: rightslice uninstall --with-policies"
                )
            ]
        )


def shipped_manifests(mode: InstallMode) -> list[dict[str, Any]]:
    """The manifests that come with the program."""
    file = bundled_folder("manifests") / FILES[mode]
    return [document.data for document in read_documents(file.read_bytes(), file.name, aliases=True)]


def print_line(text: str) -> None:
    """Say one line as it happens."""
    print_result([text])
