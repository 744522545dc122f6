"""CRDs of operators that do not run here, so that the API server validates the objects we write for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.controlplane.definitions import definitions


@contextmanager
def serve_operator_kinds(plane: Plane, operator: str, *kinds: str) -> Iterator[None]:
    """Serve kinds of an operator within the block.

    Args:
        operator: One of `tests.controlplane.definitions.OPERATORS`.
        kinds: Names of custom resource definitions: "issuers.cert-manager.io".
    """
    files = [f"--filename={_file(operator, kind)}" for kind in kinds]
    plane.kubectl("apply", "--server-side", *files)
    try:
        # `kubectl wait` fails at once if a definition is a moment old and has no conditions yet.
        eventually(lambda: _served(plane, kinds) and _read(plane, kinds))
        yield
    finally:
        plane.kubectl("delete", "--wait", *files)


def _file(operator: str, kind: str) -> Path:
    """Return the file of a kind; controller-gen names files by group and plural."""
    plural, _, group = kind.partition(".")
    return definitions(operator) / f"{group}_{plural}.yaml"


def _served(plane: Plane, kinds: Sequence[str]) -> bool:
    """Return whether discovery lists them, which happens a moment after they are established."""
    names = plane.kubectl("api-resources", "--output=name", "--cached=false", check=False).stdout.split()
    return set(kinds) <= set(names)


def _read(plane: Plane, kinds: Sequence[str]) -> bool:
    """Return whether the API server can list their objects. It may take minutes to delete a kind that it never listed:
    see `webhook.installing.apply.is_deletion_stuck`."""
    return plane.kubectl("get", ",".join(kinds), "--all-namespaces", "--chunk-size=0", check=False).returncode == 0
