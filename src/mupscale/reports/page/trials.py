"""Every trial, column by column, so that ten thousand trials stay small in the page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mupscale.reports.words import SHORT

LONGEST = 300
"""Characters of an error in the table; the records hold all of it."""


def trial_columns(trials: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Columns with a key, a heading, a kind ("text", "number", "rate") and the values.

    Repeated words, such as rules and statuses, are stored once and referred to by index.
    """
    params = dict.fromkeys(str(name) for trial in trials for name in trial["params"])
    columns = [
        _words("trial", [f"{trial['cell']}/{trial['number']:04d}" for trial in trials]),
        _words("rule", [str(trial["rule"]) for trial in trials]),
        _words("model", [variant_text(trial["variant"]) for trial in trials]),
        *(
            _numbers(f"param:{name}", "rate", [trial["params"].get(name) for trial in trials])
            | {"heading": SHORT.get(name, name)}
            for name in params
        ),
        _words("status", [str(trial["status"]) for trial in trials]),
        _numbers("loss", "loss", [trial.get("loss") for trial in trials]),
        *(
            _numbers(key, "number", [trial.get(key) for trial in trials])
            for key in ("seed", "steps", "tokens", "seconds", "attempts")
        ),
        _words("error", [_shortened(trial.get("error")) for trial in trials]),
    ]
    return [column for column in columns if not _is_trivial(column)]


def _is_trivial(column: Mapping[str, Any]) -> bool:
    """No errors, or one attempt everywhere."""
    return (column["key"] == "error" and column["words"] == [""]) or (
        column["key"] == "attempts" and set(column["values"]) <= {1, None}
    )


def variant_text(variant: Mapping[str, Any]) -> str:
    """The varied sizes.

    >>> variant_text({"n_kv_heads": 3}), variant_text({"variant": "small"}), variant_text({})
    ('n_kv_heads=3', 'small', '')
    """
    return ", ".join(
        str(value) if name == "variant" else f"{name}={value}" for name, value in variant.items()
    )


def _numbers(key: str, kind: str, values: Sequence[Any]) -> dict[str, Any]:
    return {"key": key, "heading": key, "kind": kind, "values": [_number(one) for one in values]}


def _words(key: str, values: Sequence[str]) -> dict[str, Any]:
    words = {word: place for place, word in enumerate(dict.fromkeys(values))}
    places = [words[value] for value in values]
    return {"key": key, "heading": key, "kind": "text", "words": list(words), "values": places}


def _number(value: Any) -> float | int | None:
    """Seven digits are enough for a loss; None for anything but a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.7g}")


def _shortened(text: Any) -> str:
    words = "" if text is None else str(text)
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}…"
