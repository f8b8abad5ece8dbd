"""The picture of README.md shows what the committed results say."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from website.picture import drawn, picture

COMMITTED = Path(__file__).parents[2] / "docs" / "assets" / "overview.png"


def test_the_committed_picture_is_that_of_the_results():
    """Otherwise: python -m website.picture docs/assets/overview.png"""
    with Image.open(COMMITTED) as image:
        shown = json.loads(image.text["Description"])
    for line, now in zip(shown, drawn(picture()), strict=True):
        np.testing.assert_allclose(line, now, atol=2e-5)
