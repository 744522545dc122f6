"""Estimates what workloads need from recorded GPU usage: a `UsageView`."""
