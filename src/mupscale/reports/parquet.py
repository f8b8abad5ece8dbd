"""Parquet files: the one place that knows pyarrow."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mupscale.errors import MissingExtraError
from mupscale.records import write_whole
from mupscale.reports.saving import column_names


def require_parquet() -> None:
    """Raise before any work is done, if pyarrow is not there."""
    try:
        import pyarrow  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise MissingExtraError("pyarrow", "report") from error


def save_parquet(rows: Sequence[Mapping[str, object]], path: Path) -> Path:
    """The rows as a table with a type for each column: text, whole numbers, numbers, truth values;
    None is null.
    """
    require_parquet()
    import pyarrow
    from pyarrow import parquet

    columns = {name: _column([row.get(name) for row in rows]) for name in column_names(rows)}
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer)
    write_whole(path, buffer.getvalue())
    return path


def _column(values: Sequence[object]) -> Any:
    """Values of one kind as that kind, numbers of several kinds as floats, anything else as text.

    A column without a value is one of numbers: texts that are missing are empty ones.
    """
    import pyarrow

    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pyarrow.array(values, pyarrow.bool_())
    if kinds == {int} and all(
        -(2**63) <= value < 2**63 for value in values if isinstance(value, int)
    ):
        return pyarrow.array(values, pyarrow.int64())
    if kinds <= {int, float}:
        numbers = [float(value) if isinstance(value, int | float) else None for value in values]
        return pyarrow.array(numbers, pyarrow.float64())
    texts = [
        None if value is None else str(value).encode(errors="replace").decode() for value in values
    ]
    return pyarrow.array(texts, pyarrow.string())
