"""Settings after a name: `hf:qwen3,hidden_size=1024,tie_word_embeddings=false`."""

import math
import re

from mupscale.errors import OptionError

Value = int | float | bool | str | None

_WORDS: dict[str, Value] = {"true": True, "false": False, "none": None, "null": None}
_KEY = re.compile(r"[A-Za-z_]\w*")


def split_settings(name: str) -> tuple[str, dict[str, Value]]:
    """The part before the first comma, and the settings after it.

    >>> split_settings("hf:qwen3,hidden_size=1024,tie_word_embeddings=false,hidden_act=gelu")
    ('hf:qwen3', {'hidden_size': 1024, 'tie_word_embeddings': False, 'hidden_act': 'gelu'})
    """
    head, *parts = name.split(",")
    settings: dict[str, Value] = {}
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not _KEY.fullmatch(key):
            raise OptionError(
                f"{name}: {part.strip()!r} is not a setting. Write key=value after each comma."
            )
        if key in settings:
            raise OptionError(f"{name}: {key} is set twice. Give it one value.")
        settings[key] = parse_value(value)
    return head.strip(), settings


def parse_value(text: str) -> Value:
    """An integer, a number, true, false or none; anything else is a string.

    >>> [parse_value(text) for text in ("4_096", "1e-5", "True", "none", "silu", "nan")]
    [4096, 1e-05, True, None, 'silu', 'nan']
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return value
    return text
