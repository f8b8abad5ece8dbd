"""Check a study without running it: every model on the meta device, its plan, optimizer, schedule.

Nothing is downloaded, and no memory is allocated for weights. Errors name the cell.
"""

from collections.abc import Iterator
from pathlib import Path

from mupscale.data.hub import DEFAULT_TOKENIZER, HubText
from mupscale.data.opening import FORMS
from mupscale.data.tokenizing import FORMS as TOKENIZERS
from mupscale.data.tokenizing import bpe_size
from mupscale.errors import DimensionError, MupscaleError, OptionError, UnknownNameError
from mupscale.models import CONFIGURATIONS, SEQUENCE_TOKENS, parameter_counts
from mupscale.paper.catalogue import middle_run
from mupscale.paper.configurations import PRINTED, cells_of
from mupscale.planning import Plan
from mupscale.studies import StudyConfig
from mupscale.studies.config import Cell
from mupscale.targets.settings import split_settings
from mupscale.training import RunConfig, lengths
from mupscale.training.preparation import Lengths, on_meta, optimizers, plan_for
from mupscale.training.schedule import decay_in_words


def validate(config: StudyConfig) -> Iterator[str]:
    """One line per cell, and the paper's row for its models. Raises for a cell that cannot run."""
    if config.trainer is not None:
        raise OptionError(
            f"{config.name}: a custom trainer cannot be checked here. Remove [trainer]."
        )
    printed: set[str] = set()
    for cell in config.cells():
        try:
            lines = _checked(config, cell)
        except MupscaleError as error:
            raise OptionError(f"{config.name}, cell {cell.name}: {error}") from error
        yield from (line for line in lines if line not in printed)
        printed.update(lines)


def _checked(config: StudyConfig, cell: Cell) -> list[str]:
    """The lines of a cell. What cells share is on separate lines, which are printed once."""
    run = middle_run(config, cell)
    corpus = corpus_named(run.data.corpus, run.data.tokenizer)
    model, made, found = on_meta(run.model), plan_for(run), lengths(run)
    optimizers(made, model, run.optimizer)
    _check_shares(run, found, config.engine.ranks)
    size = f"{parameter_counts(run.model).total / 1e6:.2f}M parameters"
    length = (
        f"{found.steps} steps of {found.batch} × {run.data.sequence} tokens, warmup {found.warmup}"
    )
    decay = decay_in_words(found.schedule.name, run.length.floor, found.schedule.decay_steps)
    line = f"{cell.name}: {size}, {_rates(made)}, {length}, then {decay}"
    return [f"corpus: {corpus} (not opened)", line, *_row(run, found)]


def _rates(made: Plan) -> str:
    """The factors on the base learning rate for queries and keys, which is where rules differ."""
    by_role = {parameter.role: parameter.lr for parameter in made.parameters.values()}
    return f"lr × {by_role['query']:.4g} (queries), {by_role['key']:.4g} (keys)"


def _check_shares(run: RunConfig, found: Lengths, ranks: int) -> None:
    """Find what would stop a run at its first step."""
    parts = ranks * run.length.accumulate
    if found.batch % parts:
        raise DimensionError(
            f"A batch of {found.batch} sequences cannot be split over {ranks} ranks and "
            f"{run.length.accumulate} slices. Choose length.accumulate so that ranks × slices "
            "divides it."
        )
    if (run.machine.shard == "none") != (ranks == 1):
        raise OptionError(
            f"engine.ranks = {ranks} and machine.shard = {run.machine.shard} contradict each other."
        )
    if found.warmup >= found.steps:
        raise OptionError(
            f"A warmup of {found.warmup} steps fills the whole run of {found.steps}. Set "
            "length.warmup."
        )


def _row(run: RunConfig, found: Lengths) -> list[str]:
    """The paper's row of this model, if it is one of the paper's; an error if it differs."""
    name = printed_name(run)
    if name is None:
        return []
    cells, ours = cells_of(name), {"batch (sequences)": found.batch, "iterations": found.steps}
    wrong = [cell.difference for cell in cells if not cell.equal]
    wrong += [
        f"{cell.column} of the run is {ours[cell.column]}, printed {cell.printed}"
        for cell in cells
        if cell.column in ours and str(ours[cell.column]) != cell.printed
    ]
    if wrong:
        raise OptionError(f"The paper's row {name} differs: {'; '.join(wrong)}.")
    computed = " | ".join(cell.ours for cell in cells)
    return [f"  the paper's {name}: {computed}: equal to the printed digit"]


def printed_name(run: RunConfig) -> str | None:
    """The row of the paper's tables with the run's shape, tokens per parameter, sequence and batch
    rule.
    """
    length = run.length
    ruled = length.batch is None and length.batch_rule == "table" and length.steps is None
    if not ruled or run.data.sequence != SEQUENCE_TOKENS:
        return None
    named = (CONFIGURATIONS[name] for name in PRINTED)
    trained = (run.model, length.tokens_per_parameter)
    return next(
        (one.name for one in named if (one.model, one.tokens_per_parameter) == trained), None
    )


def corpus_named(name: str, tokenizer: str | None) -> str:
    """The full names of a corpus and its tokenizer, without opening either.

    >>> corpus_named("hf:openwebtext", None)
    'hf:Skylion007/openwebtext by hub:openai-community/gpt2'
    """
    kind, _, rest = name.partition(":")
    if kind == "hf" and rest:
        text = HubText.of(*split_settings(rest))
        return f"hf:{text.name} by {_tokenizer_named(tokenizer or DEFAULT_TOKENIZER)}"
    if name == "python-stdlib":
        return f"{name} by {_tokenizer_named(tokenizer or 'bytes')}"
    if kind in ("text", "bin") and rest:
        if not Path(split_settings(rest)[0]).expanduser().exists():
            raise OptionError(f"data.corpus = {name!r}: there is no such file or folder.")
        return name
    raise UnknownNameError("corpus", name, FORMS)


def _tokenizer_named(spec: str) -> str:
    kind, _, rest = spec.partition(":")
    known = spec == "bytes" or bpe_size(spec) is not None or (kind in ("file", "hub") and rest)
    if not known:
        raise UnknownNameError("tokenizer", spec, TOKENIZERS)
    return spec
