"""Parquet files: the only module that imports pyarrow."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mupscale.errors import MissingExtraError
from mupscale.records import write_whole
from mupscale.reports.saving import column_names


def require_parquet() -> None:
    """Raise before any work is done if pyarrow is missing."""
    try:
        import pyarrow  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise MissingExtraError("pyarrow", "report") from error


def save_parquet(rows: Sequence[Mapping[str, object]], path: Path) -> Path:
    """Save rows with one type per column: text, integer, float or boolean; None is null."""
    require_parquet()
    import pyarrow
    from pyarrow import parquet

    columns = {name: _column([row.get(name) for row in rows]) for name in column_names(rows)}
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer)
    write_whole(path, buffer.getvalue())
    return path


def _column(values: Sequence[object]) -> Any:
    """One type if all values share it, float for mixed numbers, otherwise text.

    A column of Nones is numeric: missing texts are empty strings.
    """
    import pyarrow

    kinds = {type(value) for value in values if value is not None}
    small = all(-(2**63) <= value < 2**63 for value in values if isinstance(value, int))
    if kinds == {bool} or (kinds == {int} and small):
        return pyarrow.array(values)
    if kinds <= {int, float}:
        numbers = [float(value) if isinstance(value, int | float) else None for value in values]
        return pyarrow.array(numbers, pyarrow.float64())
    texts = [None if one is None else str(one).encode(errors="replace").decode() for one in values]
    return pyarrow.array(texts, pyarrow.string())
