"""API server client: one HTTP session, list and watch, leader election."""
