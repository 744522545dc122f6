"""Evaluation of manifests and of whole clusters, for commands."""
