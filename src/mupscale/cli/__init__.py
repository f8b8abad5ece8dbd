"""The command line: arguments in, text or JSON out, an exit status."""

from mupscale.cli.app import main

__all__ = ["main"]
