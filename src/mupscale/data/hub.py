"""`hf:NAME`: text of the Hugging Face hub, or of its cache on this machine; the one place that
imports `datasets`.

No code that comes with a dataset is run (`datasets` refuses it since 4.0). What has been run here:
everything below `load_dataset`, against a stand-in for it. What has not: the hub itself, and
OpenWebText as a whole.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from mupscale.data.corpus import Document, held_out
from mupscale.errors import MissingExtraError, OptionError, UnknownNameError
from mupscale.targets.reasons import reason
from mupscale.targets.settings import Value

# nanoGPT's and everyone's OpenWebText.
_FULL_NAMES = {"openwebtext": "Skylion007/openwebtext"}
DEFAULT_TOKENIZER = "hub:openai-community/gpt2"


@dataclass(frozen=True)
class HubText:
    """A column of a split, and how much of it is held out."""

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
        """From what is written: `hf:NAME,split=train,column=text`.

        >>> HubText.of("openwebtext", {"validation": 0.0005})
        HubText(name='Skylion007/openwebtext', config=None, split='train', column='text', revision=None, \
validation=0.0005)
        """
        known = [field.name for field in fields(cls) if field.name != "name"]
        for key in settings:
            if key not in known:
                raise UnknownNameError(f"setting of hf:{name}", key, known)
        values: dict[str, Any] = {
            key: str(v) if key != "validation" else v for key, v in settings.items()
        }
        share = values.get("validation", cls.validation)
        if not isinstance(share, float) or not 0 < share < 1:
            raise OptionError(
                f"hf:{name}: validation={share!r} must be a share between 0 and 1. Write 0.005."
            )
        return cls(_FULL_NAMES.get(name, name), **values)

    def key(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class HubSource:
    """The documents of a dataset that is on this machine."""

    text: HubText
    dataset: Any
    state: str
    """What `datasets` calls its fingerprint: of the files that it keeps on this machine."""

    @property
    def identity(self) -> str:
        return f"{self.text.key()} {len(self.dataset)} documents {self.state}".strip()

    def documents(self, start: int) -> Iterator[Document]:
        for number, row in enumerate(self.dataset.select(range(start, len(self.dataset))), start):
            text = row[self.text.column]
            if not isinstance(text, str):
                raise OptionError(
                    f"hf:{self.text.name}: row {number} of column {self.text.column} holds a value "
                    "of type "
                    f"{type(text).__name__}, not text. Choose a column of text with column=…"
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
    """Load the split, from the cache of `datasets` or, if it is not there, from the hub."""
    datasets = import_datasets()
    try:
        dataset = datasets.load_dataset(
            text.name, text.config, split=text.split, revision=text.revision
        )
    except Exception as error:  # no network, no such dataset, no such split, a script
        raise OptionError(
            f"hf:{text.name} cannot be loaded: {reason(error)}. {_advice(error)}"
        ) from error
    if text.column not in dataset.column_names:
        raise UnknownNameError(f"column of hf:{text.name}", text.column, dataset.column_names)
    if not len(dataset):
        raise OptionError(
            f"hf:{text.name}: the split {text.split} is empty. Choose another with split=…"
        )
    return HubSource(
        text, dataset.select_columns([text.column]), str(getattr(dataset, "_fingerprint", ""))
    )


def _advice(error: Exception) -> str:
    if "script" in str(error):
        return (
            "Code of a dataset is not run. Add revision=refs/convert/parquet for the hub's own "
            "conversion, which may "
            "hold only a part of a large set."
        )
    return "Mend the name or the split, or prepare the tokens elsewhere and use bin:PATH."
