"""Scoring strategies: the value of a node's free GPUs to future pods."""
