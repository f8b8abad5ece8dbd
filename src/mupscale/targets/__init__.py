"""Targets: models by name, built on the meta device, and small copies of them to tune on."""

from mupscale.targets.families import Family
from mupscale.targets.huggingface import build
from mupscale.targets.naming import reading_beside, reading_file
from mupscale.targets.proxies import proxy
from mupscale.targets.resolving import Target, resolve
from mupscale.targets.shapes import SHAPES, Shape

__all__ = [
    "SHAPES",
    "Family",
    "Shape",
    "Target",
    "build",
    "proxy",
    "reading_beside",
    "reading_file",
    "resolve",
]
