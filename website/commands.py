"""Every command's help as one page, written by the parser that the commands themselves use."""

import re

from mupscale.cli.app import app


def page() -> str:
    """Without its table of contents: the site shows one beside each page."""
    text = re.sub(
        r"^## Table of Contents\n.*?(?=^\*\*Commands)", "", app.generate_docs(), flags=re.M | re.S
    )
    return text.replace("# mupscale\n", "# Commands\n", 1)
