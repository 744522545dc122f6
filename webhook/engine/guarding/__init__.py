"""Bypasses of GPU accounting, by subject: environment variables, host access, annotations and requests."""
