"""A plan as JSON: versioned, with a checksum that detects an edited or truncated file."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mupscale.errors import PlanMismatchError
from mupscale.planning.values import Hook, PlannedParameter, RowBlock

FORMAT = "mupscale plan"
VERSION = 1


def to_json(content: Mapping[str, Any]) -> str:
    """The content with its format, version and checksum."""
    head = {"format": FORMAT, "version": VERSION, "sha256": _checksum(content)}
    return json.dumps(head | dict(content), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def from_json(text: str) -> dict[str, Any]:
    """The content, or an error that says what is wrong with it."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise PlanMismatchError(
            f"not a plan: the JSON is truncated or broken ({error}). Write it again."
        ) from error
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise PlanMismatchError(f'not a plan: it has no "format": "{FORMAT}".')
    version, checksum = data.pop("version", None), data.pop("sha256", None)
    if version != VERSION:
        raise PlanMismatchError(
            f"the plan has version {version!r}; this mupscale reads version {VERSION}. "
            "Make the plan again."
        )
    if checksum != _checksum(data):
        raise PlanMismatchError(
            "the plan was changed after it was written: its checksum does not match. Make a plan "
            "with the settings that you want, or apply your changes in the code that uses it."
        )
    return data


def _checksum(content: Mapping[str, Any]) -> str:
    plain = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(plain.encode()).hexdigest()


# JSON turns tuples into lists; these turn them back.


def parameter_from_dict(data: Mapping[str, Any]) -> PlannedParameter:
    rows = [RowBlock(**_with(row, slices=_slices(row["slices"]))) for row in data["rows"]]
    return PlannedParameter(**_with(data, shape=tuple(data["shape"]), rows=tuple(rows)))


def hook_from_dict(data: Mapping[str, Any]) -> Hook:
    return Hook(**_with(data, rows=tuple((_slices(s), factor) for s, factor in data["rows"])))


def _with(data: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    return {**data, **changes}


def _slices(data: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((start, stop) for start, stop in data)
