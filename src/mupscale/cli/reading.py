"""What the user says about a model, for every command that reads one: flags, a file, or
mupscale.toml beside it.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mupscale.cli.training import toml_value
from mupscale.errors import OptionError

if TYPE_CHECKING:
    from mupscale.reading import Inputs, Reading


Repeated = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ReadingFlags:
    """How the model is read."""

    role: Repeated = ()
    "Role of the parameters that match a pattern: '*.mixer.in_proj.weight=hidden'. May be repeated."
    ignore: Repeated = ()
    """Key of the config that looks like a multiplier but does not change with width or depth. May
    be repeated.
    """
    inputs: Repeated = ()
    """Argument of the forward pass: 'pixels=float32[1,3,32,32]', or 'int64[1,16]<256' by position.
    May be repeated.
    """
    reading: Path | None = None
    """TOML file with a [reading] table; flags override its entries. (default: mupscale.toml beside
    the model)
    """

    @property
    def given(self) -> bool:
        return bool(self.role or self.ignore or self.inputs or self.reading)

    def of_target(self, name: str) -> "Reading":
        """What was said about a model: the flags over --reading, or over the file beside the
        model.
        """
        from mupscale.reading import Reading
        from mupscale.targets import reading_file

        if self.reading is not None:
            return Reading.load(self.reading) | self._flags()
        found = reading_file(name)
        if found is None:
            return self._flags()
        print(f"reading: {found}", file=sys.stderr)
        return Reading.load(found) | self._flags()

    def put_into(self, study: dict[str, Any]) -> None:
        """The same for the model of a study's trainer; a [reading] table takes the place of the
        file beside it.
        """
        from mupscale.reading import Reading
        from mupscale.training import settings

        own = settings.table("reading", study.get("reading", {}))
        if own and self.reading is None:
            said = Reading.from_dict(own) | self._flags()
        else:
            said = self.of_target(_target(study) or "")
        if said:
            study["reading"] = said.to_dict()

    def _flags(self) -> "Reading":
        from mupscale.reading import Reading

        return Reading(_roles(self.role), self.ignore, _inputs(self.inputs))


def _target(study: Mapping[str, Any]) -> str | None:
    trainer = study.get("trainer")
    target: Any = trainer.get("target") if isinstance(trainer, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return target if isinstance(target, str) else None


def _roles(texts: tuple[str, ...]) -> dict[str, str]:
    roles: dict[str, str] = {}
    for text in texts:
        pattern, equals, role = text.rpartition("=")
        if not equals or not pattern:
            raise OptionError(
                f"--role {text!r} is not pattern=role. Write it like '*.in_proj.weight=hidden'."
            )
        roles[pattern] = role
    return roles


def _inputs(texts: tuple[str, ...]) -> "Inputs | None":
    """By name, by position, or None.

    >>> _inputs(("input_ids=int64[1,16]<256", "use_cache=false"))
    {'input_ids': 'int64[1,16]<256', 'use_cache': False}
    >>> _inputs(("float32[1,3,32,32]",))
    ('float32[1,3,32,32]',)
    """
    if not texts:
        return None
    parts = [text.partition("=") for text in texts]
    named = [(name.strip(), value) for name, equals, value in parts if equals]
    if not named:
        return tuple(toml_value(text) for text in texts)
    if len(named) < len(texts):
        raise OptionError(f"--inputs {' '.join(texts)}: name all arguments, or none of them.")
    for name, _ in named:
        if not name.isidentifier():
            raise OptionError(
                f"--inputs: {name!r} is not a name. Write it like 'input_ids=int64[1,16]<256'."
            )
    if len(dict(named)) < len(named):
        raise OptionError(f"--inputs {' '.join(texts)}: an argument is given twice.")
    return {name: toml_value(value) for name, value in named}
