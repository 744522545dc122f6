"""A real, current browser for tests of HTML."""
