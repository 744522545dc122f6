"""The base of what we read from the API server and from nodes: frozen, and deaf to strangers."""

from __future__ import annotations

import msgspec


class ApiStruct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Only the fields that we use; a new field in a new Kubernetes must not break admission.

    A null means "absent" in Kubernetes. `msgspec` refuses one where a list or a map goes, so the
    decoders in this room try the fast way first and take nulls out only when that fails.
    """
