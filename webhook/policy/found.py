"""Found: a policy or exception as it was written, and where."""

from __future__ import annotations

from typing import NamedTuple

from webhook.documents.places import Document
from webhook.policy.written.kinds import GPUPolicy, GPUPolicyException


class PolicySource(NamedTuple):
    """A written policy or exception that is well-formed, and where it stands."""

    document: Document
    model: GPUPolicy | GPUPolicyException

    @property
    def name(self) -> str:
        """Its name."""
        return self.model.metadata.name

    def is_replaced_by(self, other: PolicySource) -> bool:
        """Is the other one of the same kind and name?"""
        return self.name == other.name and self.model.kind == other.model.kind
