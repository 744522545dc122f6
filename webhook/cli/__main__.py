"""`python -m webhook.cli`: the command line without an installed script."""

from webhook.cli.main import run

run()
