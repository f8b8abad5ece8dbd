"""Safe contents of a page: escaped JSON, and scripts that are allowed by their hash."""

import base64
import hashlib
import json
import re
from typing import Any

from markupsafe import Markup, escape

from mupscale.errors import StorageError

_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
_POWER = re.compile(r"\b2\^([−-]?[0-9]+(?:\.[0-9]+)?)")


def embedded_json(value: Any) -> Markup:
    r"""JSON for a script element: no character in it can end the element or start another.

    >>> print(embedded_json({"name": "</script> & \u2028"}))
    {"name":"\u003c/script\u003e \u0026 \u2028"}
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.translate(str.maketrans(_ESCAPED)))


def embedded_script(source: str) -> Markup:
    """A script of the page, or plotly's, unchanged."""
    if re.search(r"</script|<!--", source, flags=re.IGNORECASE):
        raise StorageError(
            "the installed plotly.js cannot be embedded in a page. Install the version in "
            "constraints.txt."
        )
    return Markup(source)


def source_hash(source: str) -> str:
    """The name of a script in a content security policy.

    >>> source_hash("alert(1)")
    "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def powers(text: str) -> Markup:
    """Text with powers of two as superscripts; everything else is escaped.

    >>> print(powers("<b> 2^−6.19, 2^-7."))
    &lt;b&gt; 2<sup>−6.19</sup>, 2<sup>−7</sup>.
    """
    plain = str(escape(text))
    return Markup(_POWER.sub(lambda found: f"2<sup>{found[1].replace('-', '−')}</sup>", plain))
