"""Rightslice and Kueue on one control plane."""
