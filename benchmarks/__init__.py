"""Measures: what the work costs here, in ratios taken in one run."""
