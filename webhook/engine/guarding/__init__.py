"""Bypasses of GPU accounting, by subject: environment variables, host access and annotations."""
