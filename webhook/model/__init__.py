"""The project's types as frozen values: pods, nodes, offers, findings, decisions. No I/O, and no decisions."""
