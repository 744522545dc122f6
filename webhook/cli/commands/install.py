"""`install` and `uninstall`: apply the shipped manifests to a cluster, and delete them again."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from webhook.cache.bundled_files import bundled_folder
from webhook.cli import flags
from webhook.cli.cluster_access import ClusterFlags, call_api
from webhook.cli.output import EXIT_NO_ANSWER, exit_with_error, print_note, print_result
from webhook.documents.reader import read_documents
from webhook.errors import quote_text
from webhook.installing.apply import (
    DeletionTimeoutError,
    InstallError,
    has_policy_kinds,
    install_manifests,
    uninstall_manifests,
)
from webhook.installing.facts import CurrentInstall, parse_deployment, read_current_install
from webhook.kube.api import KubeClient
from webhook.kube.installation import find_installed_namespace
from webhook.manifests.objects import is_image_reference, with_image
from webhook.manifests.sent_resources import MAX_NAMES, is_resource_glob, with_gpu_resources
from webhook.report.serialization import yaml_text
from webhook.well_known import AGENT_NAMESPACE, SYSTEM_NAMESPACE

MANIFEST_FILES = {"audit": "install.yaml", "enforce": "install-enforce.yaml"}


class InstallMode(StrEnum):
    """The strictest mode that policies may have."""

    AUDIT = "audit"
    ENFORCE = "enforce"


NEXT_STEPS = {
    "audit": f"""
No pod is changed or denied yet. Next:
  rightslice doctor                       check the installation
  kubectl apply -f POLICY.yaml            add policies; `rightslice policy new NAME` prints one
  rightslice audit --cluster live         see what would be denied, and what could be smaller
  rightslice install --mode enforce       enforce the policies
To remove it: rightslice uninstall (policies and namespace {SYSTEM_NAMESPACE} stay).""",
    "enforce": """
Policies are enforced now. Next:
  rightslice doctor                       check the installation
  rightslice policy list --cluster live   see which policies are in use
To go back: rightslice install --mode audit. To remove it: rightslice uninstall.""",
}

CERT_MANAGER_INSTALLED = f"""the Deployment in {SYSTEM_NAMESPACE} reads its certificate from files, as in overlay \
cert-manager; `rightslice install` needs managed certificates, found --tls-cert. Apply the overlay again: \
kubectl apply --server-side -k manifests/overlays/cert-manager; or remove it first: rightslice uninstall"""

HELM_INSTALLED = """the Deployment in {1} must not belong to Helm, found release {0}. Use helm \
upgrade {0} CHART --namespace {1} --reset-then-reuse-values --set mode={2}; or remove it first: \
helm uninstall {0} --namespace {1}"""

OTHER_NAMESPACE = f"""the webhooks must call a Service in {SYSTEM_NAMESPACE}, found one in {{0}}. Remove that \
installation first, as it was installed: helm uninstall RELEASE --namespace {{0}}"""


WARNING = f"""deleting all policies and exceptions, and namespaces {SYSTEM_NAMESPACE} and {AGENT_NAMESPACE} with \
everything in them"""


def _validate_image(image: str) -> str:
    """Return the image; reject one that no container runtime could pull."""
    if image and not is_image_reference(image):
        must = f"must be an image reference, found {quote_text(image)}"
        raise typer.BadParameter(f"{must}. Write registry.example.com/rightslice:0.1.0")
    return image


def _validate_gpu_resources(names: list[str] | None) -> list[str] | None:
    """Return the resource names; reject one that no pod can request, and too many."""
    for name in names or ():
        if name and not is_resource_glob(name):
            must = "must be an extended resource outside of kubernetes.io, or a prefix and *"
            raise typer.BadParameter(f"{must}, found {quote_text(name)}. Write example.com/gpu, or example.com/*")
    if len(names or ()) > MAX_NAMES:
        raise typer.BadParameter(f"must be at most {MAX_NAMES} names, found {len(names or ())}. Write example.com/*")
    return names


ModeFlag = Annotated[
    InstallMode | None,
    typer.Option(
        "--mode",
        metavar="|".join(InstallMode),
        help="audit: nothing is changed or denied. Default: the installed mode, else audit; "
        "`rightslice serve webhook` starts with enforce.",
    ),
]
ImageFlag = Annotated[
    str,
    typer.Option(
        "--image",
        metavar="IMAGE",
        callback=_validate_image,
        help="The image to run. Default: the installed one, else the one in the manifests.",
    ),
]
GpuResourceFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu-resource",
        metavar="NAME",
        callback=_validate_gpu_resources,
        help="A further resource name of pods that the webhooks get, or a prefix and *: that of a DeviceClass outside "
        "of nvidia.com. Repeatable. Default: the installed ones; '' for none.",
    ),
]
InstallDryRun = Annotated[bool, typer.Option("--dry-run", help="Validate on the API server and store nothing.")]
InstallOutput = Annotated[
    str, typer.Option("-o", "--output", metavar="yaml", help="Print the manifests without contacting a cluster.")
]
WithPolicies = Annotated[
    bool,
    typer.Option(
        "--with-policies",
        help="Also delete the CRDs, with all policies and exceptions, and the namespaces, with everything in them.",
    ),
]
TimeoutFlag = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=1, help="Maximum duration of each wait.")
]


def install_command(
    mode: ModeFlag = None,
    image: ImageFlag = "",
    gpu_resource: GpuResourceFlag = None,
    dry_run: InstallDryRun = False,
    output: InstallOutput = "",
    timeout: TimeoutFlag = 120.0,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Install into a cluster. Webhooks are registered last, once replicas are ready, and then tested with a pod.

    An existing installation is upgraded, and keeps its mode, image and resource names unless they are given.

    Exit code: 0 installed, 2 invalid input, 3 the cluster did not answer, or the installation did not become ready.
    """
    if output not in ("", "yaml"):
        exit_with_error(f"-o: must be yaml, found {output!r}. Write -o yaml, or leave it out")
    names = tuple(filter(None, gpu_resource)) if gpu_resource else None
    if output:
        objects = with_image(with_gpu_resources(shipped_manifests(mode or InstallMode.AUDIT), names or ()), image)
        print_result("---\n".join(map(yaml_text, objects)))
        return

    async def install(api: KubeClient) -> InstallMode:
        given = CurrentInstall(mode or "", image, gpu_resources=names)
        chosen, objects = resolve_install(given, await read_current_install(api))
        await install_manifests(api, objects, print_line, seconds=timeout, dry_run=dry_run)
        return chosen

    try:
        installed_mode = call_api(ClusterFlags(kubeconfig, context), install)
    except (InstallError, DeletionTimeoutError) as error:
        exit_with_error(str(error), EXIT_NO_ANSWER)
    print_result(["Nothing was stored."] if dry_run else NEXT_STEPS[installed_mode].splitlines())


def resolve_install(given: CurrentInstall, current: CurrentInstall) -> tuple[InstallMode, list[dict[str, Any]]]:
    """Return the mode and the manifests, and print them: what is not given stays as it is in the cluster."""
    if current.helm_release:
        exit_with_error(HELM_INSTALLED.format(current.helm_release, current.namespace, given.mode or current.mode))
    if current.namespace != SYSTEM_NAMESPACE:
        exit_with_error(OTHER_NAMESPACE.format(current.namespace))
    if current.external_certificate:
        exit_with_error(CERT_MANAGER_INSTALLED)
    current_mode = current.mode if current.mode in MANIFEST_FILES else InstallMode.AUDIT
    mode = InstallMode(given.mode or current_mode)
    names = (current.gpu_resources if given.gpu_resources is None else given.gpu_resources) or ()
    objects = with_image(with_gpu_resources(shipped_manifests(mode), names), given.image or current.image)
    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    print_line(f"mode {mode}{_describe_previous(given.mode, current.mode)}")
    image = parse_deployment(deployment).image
    print_line(f"image {image}{_describe_previous(given.image, current.image)}")
    if names or current.gpu_resources:
        unchanged = ", unchanged" if names == current.gpu_resources else ""
        print_line(f"further resource names {', '.join(names) or 'none'}{unchanged}")
    if "/" not in image:
        print_note(f"note: {image} names no registry, so the nodes must have it. Name another one: --image")
    return mode, objects


def _describe_previous(given: str, current: str) -> str:
    if not current or given == current:
        return ""
    return f", before: {current}" if given else ", unchanged"


def uninstall_command(
    with_policies: WithPolicies = False,
    timeout: TimeoutFlag = 120.0,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Delete everything that `install` created, the webhooks first.

    With --with-policies, waits until the CRDs and the namespaces rightslice-system and rightslice-agent, with the
    extender, the agent and everything else in them, are deleted. A namespace rightslice-agent that an admin made before
    the agent was installed stays, without the agent.

    Exit code: 0 removed, 2 invalid input, 3 the cluster did not answer, or a deletion did not finish in time.
    """
    objects = shipped_manifests(InstallMode.ENFORCE)

    async def uninstall(api: KubeClient) -> list[str]:
        namespace = await find_installed_namespace(api)
        if namespace != SYSTEM_NAMESPACE:
            exit_with_error(OTHER_NAMESPACE.format(namespace))
        if with_policies:
            print_line(WARNING)
        release = (await read_current_install(api)).helm_release
        await uninstall_manifests(api, objects, print_line, with_policies=with_policies, seconds=timeout)
        if with_policies:
            return []
        return list(remaining_parts(release, has_policies=await has_policy_kinds(api, objects)))

    try:
        remaining = call_api(ClusterFlags(kubeconfig, context), uninstall)
    except DeletionTimeoutError as error:
        exit_with_error(str(error), EXIT_NO_ANSWER)
    for line in remaining:
        print_line(line)


def remaining_parts(helm_release: str, *, has_policies: bool) -> Iterator[str]:
    """Yield what an uninstallation without --with-policies leaves in the cluster, and how to remove it."""
    if has_policies:
        kept = f"Policies, exceptions and namespace {SYSTEM_NAMESPACE} are still there"
        yield f"{kept}: rightslice uninstall --with-policies"
    if helm_release:
        kept = f"Helm still lists the release {helm_release}"
        yield f"{kept}: helm uninstall {helm_release} --namespace {SYSTEM_NAMESPACE}"


def shipped_manifests(mode: InstallMode) -> list[dict[str, Any]]:
    """Return the manifests shipped with the program."""
    file = bundled_folder("manifests") / MANIFEST_FILES[mode]
    return [document.data for document in read_documents(file.read_bytes(), file.name, aliases=True)]


def print_line(text: str) -> None:
    """Print one line as progress."""
    print_result([text])
