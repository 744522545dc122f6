"""The commands, run as in the tests of the command line."""

from tests.cli.conftest import rightslice

__all__ = ["rightslice"]
