"""Earlier names of `policy_findings`, for modules that still import them."""

from webhook.engine.policy_findings import PolicyFinding, PolicyRef, SectionFinding, settle

__all__ = ["PolicyRef", "PolicyViolation", "Violation", "settle"]

Violation = PolicyFinding
PolicyViolation = SectionFinding
