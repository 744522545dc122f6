"""The base of objects read from the API server and from nodes: frozen, unknown fields ignored."""

from __future__ import annotations

import msgspec


class ApiStruct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Only the fields in use; a new field in a new Kubernetes must not break admission.

    A null means "absent" in Kubernetes. `msgspec` rejects null for a list or a map, so decoders remove nulls, but only
    after a first attempt fails.
    """
