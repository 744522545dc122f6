"""Generated manifests: webhook configurations, admission policies, CRDs and scheduler configurations, as values."""
