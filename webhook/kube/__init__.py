"""The API server's client: one HTTP session, calls with deadlines, list and watch."""
