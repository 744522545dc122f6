"""The ways round GPU accounting, by subject: variables, host access, marks (annotations) and requests."""
