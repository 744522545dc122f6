"""The manifests: `python -m tests.manifests` writes those that are made from code."""
