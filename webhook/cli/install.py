"""`install` and `uninstall`: the manifests that come with the program, into a cluster and out of it again."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from webhook.cache.shipped import shipped
from webhook.cli import flags
from webhook.cli.console import NO_ANSWER, say, stop
from webhook.cli.live import with_api
from webhook.documents.reading import read
from webhook.installing.applying import InstallError, install
from webhook.installing.chosen import Chosen, chosen, chosen_in
from webhook.installing.leaving import LeavingError
from webhook.installing.removing import keeps_policies, uninstall
from webhook.kube.api import Api
from webhook.manifests.hooks import NAMESPACE
from webhook.manifests.objects import with_image
from webhook.report.data import as_yaml

FILES = {"audit": "install.yaml", "enforce": "install-enforce.yaml"}


class InstallMode(StrEnum):
    """What policies may do."""

    AUDIT = "audit"
    ENFORCE = "enforce"


NEXT = {
    "audit": f"""
Nothing is changed and nothing is denied yet. Next:
  rightslice doctor                       is everything well?
  kubectl apply -f POLICY.yaml            add policies; `rightslice policy new NAME` writes one
  rightslice audit                        what would be denied, and what could be smaller
  rightslice install --mode enforce       when you have seen enough
Take it out again: rightslice uninstall (the policies in it stay; namespace {NAMESPACE}).""",
    "enforce": """
Policies do what they say now. Next:
  rightslice doctor                       is everything well?
  kubectl get gpupol                      which policies are in use, and what they did
Go back: rightslice install --mode audit. Take it out: rightslice uninstall.""",
}

ISSUED = f"""the Deployment in {NAMESPACE} takes its certificate from files, as overlay cert-manager has it; \
what `rightslice install` applies must keep its own, found --tls-cert. Apply the overlay again: \
kubectl apply --server-side -k manifests/overlays/cert-manager; or take it out first: rightslice uninstall"""

MODE_HELP = "audit: nothing is changed or denied. Default: the one that is installed, else audit."
Mode = Annotated[InstallMode | None, typer.Option("--mode", help=MODE_HELP)]
Image = Annotated[
    str,
    typer.Option(
        "--image",
        metavar="IMAGE",
        help="The image to run. Default: the one that is installed, else the one in the manifests.",
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long each wait may take.")]


def install_command(
    mode: Mode = None,
    image: Image = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="The API server checks what it can, and stores nothing.")
    ] = False,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="yaml", help="Print the manifests, and ask no cluster anything.")
    ] = "",
    timeout: Timeout = 120.0,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Install into a cluster: hooks last, once replicas are ready; then wait until they answer a pod.

    What is installed already is brought up to date, and keeps the mode and the image that are not given.

    Exit code: 0 installed, 2 a flag or the kubeconfig is wrong, 3 the cluster did not answer, or what was installed
    did not come up.
    """
    if output not in ("", "yaml"):
        stop(f"-o: must be yaml, found {output!r}. Write -o yaml, or leave it out")
    if output:
        say("---\n".join(map(as_yaml, with_image(manifests(mode or InstallMode.AUDIT), image))))
        return

    async def do(api: Api) -> InstallMode:
        wanted, objects = complete(Chosen(mode or "", image), await chosen_in(api))
        await install(api, objects, line, seconds=timeout, dry_run=dry_run)
        return wanted

    try:
        installed = with_api(kubeconfig, context, do)
    except (InstallError, LeavingError) as error:
        stop(str(error), NO_ANSWER)
    say(["Nothing was stored."] if dry_run else NEXT[installed].splitlines())


def complete(given: Chosen, there: Chosen) -> tuple[InstallMode, list[dict[str, Any]]]:
    """The mode, and the manifests: what is not given stays as it is in the cluster. Says which it came to."""
    if there.issued:
        stop(ISSUED)
    known = there.mode if there.mode in FILES else InstallMode.AUDIT
    mode = InstallMode(given.mode or known)
    objects = with_image(manifests(mode), given.image or there.image)
    [deployment] = [one for one in objects if one["kind"] == "Deployment"]
    line(f"mode {mode}{_before(given.mode, there.mode)}")
    line(f"image {chosen(deployment).image}{_before(given.image, there.image)}")
    return mode, objects


def _before(given: str, there: str) -> str:
    """What to add about what was there."""
    if not there or given == there:
        return ""
    return f", before: {there}" if given else ", as it was"


def uninstall_command(
    with_policies: Annotated[
        bool, typer.Option("--with-policies", help="Also the CRDs and the namespace: every policy and exception goes.")
    ] = False,
    timeout: Timeout = 120.0,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Remove everything that `install` made, the hooks first of all.

    With the policies, it ends once the CRDs and the namespace have gone: the agent and the extender go with them.

    Exit code: 0 removed, 2 a flag or the kubeconfig is wrong, 3 the cluster did not answer, or something did not go in
    time.
    """
    objects = manifests(InstallMode.ENFORCE)

    async def do(api: Api) -> bool:
        await uninstall(api, objects, line, with_policies=with_policies, seconds=timeout)
        return not with_policies and await keeps_policies(api, objects)

    try:
        kept = with_api(kubeconfig, context, do)
    except LeavingError as error:
        stop(str(error), NO_ANSWER)
    if kept:
        say([f"Policies, exceptions and namespace {NAMESPACE} are still there: rightslice uninstall --with-policies"])


def manifests(mode: InstallMode) -> list[dict[str, Any]]:
    """The manifests that come with the program."""
    file = shipped("manifests") / FILES[mode]
    return [document.data for document in read(file.read_bytes(), file.name, aliases=True)]


def line(text: str) -> None:
    """Say one line as it happens."""
    say([text])
