"""Composition root: builds and runs each serving process from its settings.

One module per process, so that each loads only its own parts.
"""
