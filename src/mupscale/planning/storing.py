"""A plan as JSON: versioned, and with a checksum, so that a file that was edited or cut short is
refused.
"""

import dataclasses
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
            f"not a plan: the JSON is cut short or broken ({error}). Write it anew."
        ) from error
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise PlanMismatchError(f'not a plan: there is no "format": "{FORMAT}" in it.')
    version, checksum = data.pop("version", None), data.pop("sha256", None)
    if version != VERSION:
        raise PlanMismatchError(
            f"the plan has version {version!r}; this mupscale reads {VERSION}. Make the plan anew."
        )
    if checksum != _checksum(data):
        raise PlanMismatchError(
            "the plan was changed after it was written: its checksum does not fit. Make it anew "
            "with the settings that "
            "you want, or keep what you changed in the code that uses it."
        )
    return data


def _checksum(content: Mapping[str, Any]) -> str:
    plain = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(plain.encode()).hexdigest()


def parameter_to_dict(parameter: PlannedParameter) -> dict[str, Any]:
    return dataclasses.asdict(parameter)


def parameter_from_dict(data: Mapping[str, Any]) -> PlannedParameter:
    fields: dict[str, Any] = dict(data)
    fields["shape"] = tuple(data["shape"])
    fields["rows"] = tuple(_row_from_dict(row) for row in data["rows"])
    return PlannedParameter(**fields)


def _row_from_dict(data: Mapping[str, Any]) -> RowBlock:
    fields: dict[str, Any] = dict(data)
    fields["slices"] = _slices(data["slices"])
    return RowBlock(**fields)


def hook_from_dict(data: Mapping[str, Any]) -> Hook:
    fields: dict[str, Any] = dict(data)
    fields["rows"] = tuple((_slices(slices), factor) for slices, factor in data["rows"])
    return Hook(**fields)


def _slices(data: list[list[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((start, stop) for start, stop in data)
