"""The only file that knows plotly: the library that draws in the browser, as one text."""

from mupscale.errors import MissingExtraError


def plotly_source() -> str:
    """plotly.js whole, to stand inside a page: nothing is loaded from elsewhere."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtraError("plotly", "report") from error
    return get_plotlyjs()
