"""`hf:NAME`: text from the Hugging Face hub or its local cache. Only this file imports `datasets`.

Code that comes with a dataset is never run (`datasets` refuses it since 4.0). Tested: everything
below `load_dataset`, against a stand-in. Not tested: the hub itself, and all of OpenWebText.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from mupscale.data.corpus import Document, held_out
from mupscale.errors import MissingExtraError, OptionError, UnknownNameError
from mupscale.targets.reasons import reason
from mupscale.targets.settings import Value

# The copy of OpenWebText that nanoGPT and most others use.
_FULL_NAMES = {"openwebtext": "Skylion007/openwebtext"}
DEFAULT_TOKENIZER = "hub:openai-community/gpt2"


@dataclass(frozen=True)
class HubText:
    """A column of a split, and how much of it is held out. Its repr names the cache folder."""

    name: str
    config: str | None = None
    split: str = "train"
    column: str = "text"
    revision: str | None = None
    validation: float = 0.005
    """Share of the documents, by a hash of their content, so that copies of a document are on the
    same side.
    """

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Value]) -> "HubText":
        """Parse the settings of `hf:NAME,split=train,column=text`."""
        known = [field.name for field in fields(cls) if field.name != "name"]
        for key in settings:
            if key not in known:
                raise UnknownNameError(f"setting of hf:{name}", key, known)
        values: dict[str, Any] = {
            key: v if key == "validation" else str(v) for key, v in settings.items()
        }
        share = values.get("validation", cls.validation)
        if not isinstance(share, float) or not 0 < share < 1:
            raise OptionError(
                f"hf:{name}: validation={share!r} must be a share between 0 and 1, such as 0.005."
            )
        return cls(_FULL_NAMES.get(name, name), **values)


@dataclass(frozen=True)
class HubSource:
    """The documents of a dataset on this machine."""

    text: HubText
    dataset: Any
    state: str
    """The fingerprint that `datasets` keeps of its cached files."""

    @property
    def identity(self) -> str:
        return f"{self.text!r} {len(self.dataset)} documents {self.state}".strip()

    def documents(self, start: int) -> Iterator[Document]:
        for number, row in enumerate(self.dataset.select(range(start, len(self.dataset))), start):
            text = row[self.text.column]
            if not isinstance(text, str):
                raise OptionError(
                    f"hf:{self.text.name}: row {number} of column {self.text.column} holds a value "
                    f"of type {type(text).__name__}, not text. Choose a text column with column=…"
                )
            content = text.encode("utf-8", errors="replace")
            part = "validation" if held_out(content, self.text.validation) else "train"
            yield Document(f"row {number}", part, content)


def import_datasets() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise MissingExtraError("datasets", "hf") from error


def open_hub(text: HubText) -> HubSource:
    """Load the split from the local cache of `datasets`, or else from the hub."""
    datasets = import_datasets()
    try:
        dataset = datasets.load_dataset(
            text.name, text.config, split=text.split, revision=text.revision
        )
    except Exception as error:  # no network, no such dataset, no such split, a script
        fix = "Fix the name or the split, or prepare the tokens elsewhere and use bin:PATH."
        if "script" in str(error):
            fix = (
                "Dataset scripts are not run. Add revision=refs/convert/parquet to use the hub's "
                "own conversion, which may hold only part of a large dataset."
            )
        raise OptionError(f"could not load hf:{text.name}: {reason(error)}. {fix}") from error
    if text.column not in dataset.column_names:
        raise UnknownNameError(f"column of hf:{text.name}", text.column, dataset.column_names)
    if not len(dataset):
        raise OptionError(f"hf:{text.name}: the split {text.split} is empty. Set another split=…")
    return HubSource(
        text, dataset.select_columns([text.column]), str(getattr(dataset, "_fingerprint", ""))
    )
