"""Policy texts for tests."""

from __future__ import annotations

import json
from typing import Any

from webhook.policy.loader import load_policies
from webhook.policy.policy_set import Policy, PolicySet


def policy_text(name: str = "p", **spec: Any) -> str:
    """Return a GPUPolicy with a spec given by its JSON names."""
    data = {"apiVersion": "rightslice.dev/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": name}, "spec": spec}
    return json.dumps(data)


def exception_text(name: str = "e", **spec: Any) -> str:
    """Return a GPUPolicyException of policy "p" for a year, with some spec fields changed."""
    whole = {
        "policyName": "p",
        "codes": ["GPU-S201"],
        "match": {"namespaces": ["team"]},
        "reason": "because",
        "expirationTime": "2027-01-01T00:00:00Z",
    }
    data = {
        "apiVersion": "rightslice.dev/v1alpha1",
        "kind": "GPUPolicyException",
        "metadata": {"name": name, "namespace": "admin"},
        "spec": whole | spec,
    }
    return json.dumps(data)


def load_texts(*texts: str) -> PolicySet:
    """Load valid texts."""
    loaded = load_policies((f"{number}.yaml", text) for number, text in enumerate(texts))
    assert loaded.errors == ()
    assert loaded.policies is not None
    return loaded.policies


def load_policy(**spec: Any) -> Policy:
    """Load one valid policy."""
    (policy,) = load_texts(policy_text(**spec)).policies
    return policy
