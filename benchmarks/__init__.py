"""Benchmarks: costs on this machine, mostly as ratios measured in one run."""
