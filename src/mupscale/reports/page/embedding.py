"""What may stand inside a page, and nothing else may run: escaped JSON, scripts known by their
hash.
"""

import base64
import hashlib
import json
import re
from typing import Any

from markupsafe import Markup, escape

from mupscale.errors import StorageError

_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
_POWER = re.compile(r"\b2\^(−?[0-9.]+[0-9])")


def embedded_json(value: Any) -> Markup:
    r"""JSON for a script element: no character in it can end the element or begin another. U+2028
    is escaped, too.

    >>> print(embedded_json({"name": "</script> & \u2028"}))
    {"name":"\u003c/script\u003e \u0026 \u2028"}
    """
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.translate(str.maketrans(_ESCAPED)))


def embedded_script(source: str) -> Markup:
    """A script of ours, or plotly's, as it stands."""
    if re.search(r"</script|<!--", source, flags=re.IGNORECASE):
        raise StorageError(
            "the installed plotly.js cannot stand inside a page. Install the version in "
            "constraints.txt."
        )
    return Markup(source)


def source_hash(source: str) -> str:
    """As a content-security policy names a script.

    >>> source_hash("alert(1)")
    "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def powers(text: str) -> Markup:
    """Text with its powers of two set as such; everything else in it is escaped.

    >>> print(powers("<b> 2^−6.19"))
    &lt;b&gt; 2<sup>−6.19</sup>
    """
    return Markup(_POWER.sub(r"2<sup>\1</sup>", str(escape(text))))
