"""The manifests: `python -m tests.manifests` writes the generated ones."""
