"""Puts Rightslice into a cluster, takes it out again, and looks whether it is well: over the API server alone."""
