"""Commands: a module each, from flags to an exit code."""
