"""A recipe for people: plain text for a terminal, Markdown for a page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mupscale.recipes.risks import amount
from mupscale.text import many, markdown_table, terminal_columns, text_table, wrapped
from mupscale.theory import RUN_CHOICES
from mupscale.theory.laws import LAWS, POWER_LINES
from mupscale.training.schedule import decay_in_words

if TYPE_CHECKING:
    from mupscale.recipes.recipe import Recipe, StudyEvidence
    from mupscale.recipes.values import BaseValue

Cells = list[list[str]]
LONG = 2000
"""Paragraphs are cut to this length: names from a study file may be of any length."""
_UNKNOWN = "not known"
_SOURCES = {"not searched": "fixed"}
_BELOW = ("source",)
"""Columns that move below their row where a table is too wide."""


def text(recipe: Recipe, columns: int | None = None) -> str:
    """The whole recipe for a terminal."""
    width = terminal_columns() if columns is None else columns
    lines = [wrapped(one_line(fact, LONG), columns=width) for fact in summary(recipe)]
    for heading, table, notes in _sections(recipe):
        lines += ["", heading]
        if table:
            lines += [f"  {line}".rstrip() for line in _fitted(table, width - 2)]
        lines += [wrapped(one_line(note, LONG), "  ", columns=width) for note in notes]
    lines += ["", "What may go wrong"] if recipe.risks else []
    lines += [wrapped(_sentence(risk), "  - ", "    ", columns=width) for risk in recipe.risks]
    return "\n".join(lines)


def markdown(recipe: Recipe) -> str:
    """The same with Markdown's headings and tables."""
    title, *facts = summary(recipe)
    blocks = [f"# {_inert(title)}", *map(_inert, facts)]
    for heading, table, notes in _sections(recipe):
        blocks.append(f"## {heading}")
        if table:
            head, *rows = [[_inert(cell, bar="|") for cell in line] for line in table]
            blocks.append(markdown_table(head, rows))
        blocks += map(_inert, notes)
    risks = "\n".join(f"- {_inert(_sentence(risk))}" for risk in recipe.risks)
    return "\n\n".join([*blocks, "## What may go wrong", risks])


def _sections(recipe: Recipe) -> Iterator[tuple[str, Cells, list[str]]]:
    """Heading, table (its first line is the head) and notes of each section."""
    yield "Base values", values_table(recipe), []
    yield "Weight decay: ways to carry it over", decay_table(recipe), _taus(recipe)
    yield "Training run", [["", ""], *run_table(recipe)], []
    yield "From the study's run to the target's", crossing_table(recipe), _crossing_notes(recipe)
    folded = ", ".join(one_line(row.pattern) for row in recipe.rows if row.folded != 1)
    notes = [f"Multipliers of the forward pass are included in: {folded}."] if folded else []
    notes += [_sentence(assumption) for assumption in recipe.plan.assumptions]
    yield "Values for each parameter", _plan_table(recipe), notes
    yield "How to use it", [["", ""], *_how_to_use(recipe)], []
    if recipe.request:
        yield "Not known", [], [_sentence(recipe.request)]


# Content


def summary(recipe: Recipe) -> list[str]:
    """Title, rule, evidence, and what the interval covers."""
    evidence = recipe.evidence
    seeds = ", ".join(str(seed) for seed in evidence.seeds) or "none"
    members = f" ({'; '.join(evidence.members)})" if evidence.members else ""
    lines = [
        f"Recipe for {one_line(recipe.target)}, from the study {one_line(evidence.study)}",
        f"Rule: {one_line(recipe.rule)}, {recipe.why}.",
        f"Evidence: {many(evidence.runs, 'run')} with this rule, seeds {seeds}; the optimum was "
        f"located on {many(len(evidence.members), 'model')}{members}.",
    ]
    crossing = recipe.crossing
    if crossing.used != "none":
        lines.append(
            f"Batch and length: {one_line(crossing.used)}, {crossing.used_source}. The values for "
            f"each parameter{' and the betas' if crossing.changes_betas else ''} include it."
        )
    if recipe.doubts:
        lines.append("INCONCLUSIVE, do not train with it: " + "; ".join(recipe.doubts) + ".")
    else:
        lines += _coverage(evidence)
    return lines + ([str(recipe.extrapolated)] if recipe.extrapolated else [])


def _coverage(evidence: StudyEvidence) -> Iterator[str]:
    """What the interval of the rate does and does not cover."""
    if len(evidence.members) < 2:
        yield "Interval: that of the one swept model. Transfer itself was not measured."
        return
    axis = "r (query heads per key/value head)" if evidence.axis == "r" else evidence.axis
    yield (
        "Interval: holds if the target behaves like one more of these models, which differ only "
        f'in {axis}. It does not cover the distances listed under "What may go wrong".'
    )
    drift, regret = evidence.drift, evidence.regret
    if drift is not None and regret is not None:
        yield (
            f"Drift: the best rate moves by {drift.value:+.3f} [{drift.low:+.3f}, "
            f"{drift.high:+.3f}] octaves (factors of two) per doubling of {evidence.axis}. "
            f"Verdict: {evidence.drift_verdict}. Training every model at the optimum of the one "
            f"with the smallest {evidence.axis}, the proxy, costs at most {regret.value:.4f} "
            f"[{regret.low:.4f}, {regret.high:.4f}] nats."
        )


def values_table(recipe: Recipe) -> Cells:
    """The base values with their intervals and sources."""
    percent = f"{100 * recipe.evidence.confidence:g} % interval"
    lines = [["", "value", percent, "in log2", "source"]]
    own = recipe.training.betas
    betas = ", ".join(f"{beta:g}" for beta in own) if own else ""
    for name, value in (
        ("lr", recipe.lr),
        ("weight decay", recipe.weight_decay),
        ("eps", recipe.eps),
        ("init std", recipe.std),
        *((f"factor {name}", value) for name, value in recipe.factors.items()),
    ):
        if value is not None:
            source = _SOURCES.get(value.source, value.source)
            power = f" = 2^{recipe.log2_lr.value:.2f}" if name == "lr" else ""
            lines.append([name, _number(value.value) + power, *_interval(value), source])
        elif name in recipe.unknown:
            lines.append([name, _UNKNOWN, "", "", ""])
    if recipe.plan.optimizer.startswith("muon") and recipe.settings.get("adamw_lr"):
        rate = _number(recipe.settings["adamw_lr"])
        lines.insert(2, ["lr of AdamW", rate, "", "", _SOURCES["not searched"]])
    if betas:
        source = "given" if recipe.training.origin["betas"] == "given" else "not searched"
        if source != "given" and tuple(recipe.settings["betas"]) != own:
            source = "searched"
        lines.append(["betas", betas, "", "", _SOURCES.get(source, source)])
    elif "betas" in recipe.unknown:
        lines.append(["betas", _UNKNOWN, "", "", ""])
    return lines


def _interval(value: BaseValue) -> tuple[str, str]:
    """As values, and in log2."""
    if not value.bounded:
        return ("no bound" if value.source == "searched" else "", "")
    ends = f"{_number(value.low)} to {_number(value.high)}"
    if value.low <= 0:
        return ends, ""
    return ends, f"{math.log2(value.low):.2f} to {math.log2(value.high):.2f}"


def decay_table(recipe: Recipe) -> Cells:
    """Weight decay with its value kept, with its time scale kept, and by a law; an arrow marks the
    choice.
    """
    decay = recipe.decay
    steps = f"{decay.proxy_steps:,.0f}" if decay.proxy_steps else "unknown"
    law = "no law for this decay"
    if decay.law is not None:
        ratio = f"{decay.law.tokens_per_parameter:.3g} tokens per parameter"
        law = f"τ_epoch = {decay.law.tau:.3g}, by {POWER_LINES} at {ratio}"
    lines = [["--decay", "base value", "interval", "from"]]
    for way, value, kept in (
        ("wd", decay.by_wd, "the study's base value"),
        (
            "tau",
            decay.by_tau,
            f"the study's τ_epoch, over {decay.target_steps:,} steps, not {steps}",
        ),
        ("power-lines", decay.by_law, law),
    ):
        chosen = "→ " if decay.chosen == way else "  "
        shown = [_UNKNOWN, ""] if value is None else [_number(value.value), _interval(value)[0]]
        lines.append([chosen + way, *shown, kept])
    return lines if any(line[2] for line in lines[1:]) else [[a, b, d] for a, b, _, d in lines]


def _taus(recipe: Recipe) -> list[str]:
    decay, effective = recipe.decay, recipe.effective_taus
    law = decay.law and LAWS["decay"].outside(
        parameters=recipe.shape.parameters, tokens_per_parameter=decay.law.tokens_per_parameter
    )
    beyond = [f"Beyond the range of the law: {law}."] if law else []
    if decay.proxy_tau is None or decay.target_tau is None or effective is None:
        return beyond
    low, high = (f"{tau:.3g}" for tau in effective)
    range_ = (
        "the same for every decayed parameter" if low == high else f"per parameter {low} to {high}"
    )
    return [
        "τ_epoch = 1/(lr × decay × steps) is the memory of weight decay in runs: "
        f"{decay.proxy_tau:.3g} on the base in the study, {decay.target_tau:.3g} in the target's "
        f"run, {range_}.",
        *beyond,
    ]


def run_table(recipe: Recipe) -> Cells:
    """Tokens, batch, steps, clipping and cost of the target's run."""
    length, evidence = recipe.length, recipe.evidence
    parameters = f"{recipe.shape.parameters:,} parameters"
    study = "an unknown number"
    if evidence.share is not None:
        study = f"{evidence.study_flops:.2e} ({_percent(evidence.share)})"
    return [
        ["tokens", f"{length.tokens:,} ({length.tokens_per_parameter:.3g} × {parameters})"],
        ["batch", _batch(recipe)],
        ["batch rule", length.batch_source],
        ["steps", f"{length.steps:,}: {length.warmup:,} of linear warmup, then {_decay(recipe)}"],
        ["clipping", _clipping(recipe)],
        ["cost", f"{evidence.target_flops:.2e} FLOPs; the study took {study}"],
    ]


def crossing_table(recipe: Recipe) -> Cells:
    """What each rule for batch and length multiplies the base values by; an arrow marks the used
    one.
    """
    head = ["--run", "lr", "octaves", "decay", "eps", "1-β1", "1-β2", "source"]
    lines = [head]
    for effect in recipe.crossing.effects:
        chosen = "→ " if effect.choice == recipe.crossing.used else "  "
        numbers = [""] * 6
        if effect.factors is not None:
            found = effect.factors
            octaves = f"{effect.octaves:+.1f}"
            numbers = [amount(found.lr), "0" if octaves in ("+0.0", "-0.0") else octaves]
            numbers += [amount(x) for x in (found.weight_decay, found.eps)]
            numbers += [amount(x) for x in (found.beta1, found.beta2)]
        own = effect.choice not in RUN_CHOICES
        origin = f"{effect.source}: {one_line(effect.choice)}" if own else effect.source
        source = "; ".join(words for words in (effect.problem, origin) if words)
        lines.append([chosen + ("formulas" if own else effect.choice), *numbers, source])
    return lines if len(lines) > 1 else []


def _crossing_notes(recipe: Recipe) -> list[str]:
    crossing = recipe.crossing
    if crossing.base is None:
        return [f"Not known: {crossing.base_source}."]
    base, target = crossing.base, crossing.target
    notes = [
        f"Batch: {base.batch:,.0f} → {target.batch:,.0f} tokens (× "
        f"{amount(crossing.batch_growth)}). Whole run: {base.tokens:,.0f} → {target.tokens:,.0f} "
        f"tokens (× {amount(crossing.token_growth)}). From: {crossing.base_source}.",
        "Factors multiply the tuned base values; an octave is a factor of two in the rate.",
    ]
    if crossing.used == "none":
        return [*notes, f"The values are carried unchanged ({crossing.used_source})."]
    values = f"The values for each parameter include {crossing.used} ({crossing.used_source})"
    if crossing.betas is not None and crossing.betas != recipe.training.betas:
        values += f"; betas become {', '.join(f'{beta:.6g}' for beta in crossing.betas)}"
    return [*notes, f"{values}."]


def _batch(recipe: Recipe) -> str:
    length = recipe.length
    if length.sequence is None or length.batch_sequences is None:
        return f"{length.batch_tokens:,} tokens; the sequence length is {_UNKNOWN}"
    source = "" if length.sequence_source == "given" else f" ({length.sequence_source})"
    batch = f"{many(length.batch_sequences, 'sequence')} of {length.sequence:,} tokens{source}"
    return f"{batch} = {length.batch_tokens:,} tokens"


def _decay(recipe: Recipe) -> str:
    training = recipe.training
    note = " (assumed)" if training.origin["schedule"] == "assumed" else ""
    return decay_in_words(training.schedule, training.floor, recipe.decay_steps, note)


def _clipping(recipe: Recipe) -> str:
    clip = recipe.training.clip
    if clip is None:
        return _UNKNOWN
    if not clip:
        return "off" if recipe.training.origin["clip"] == "given" else "off, as in the study"
    folded = any(row.folded != 1 for row in recipe.rows)
    how = " (with plan.clip_grad_norm_: torch's would see folded weights)" if folded else ""
    return f"gradient norm at most {clip:g}{how}"


def _percent(share: float) -> str:
    """Two digits without a power of ten.

    >>> _percent(4.17e-7), _percent(0.5)
    ('0.000042 %', '50 %')
    """
    digits = max(0, 1 - math.floor(math.log10(100 * share))) if share > 0 else 0
    return f"{100 * share:.{digits}f} %"


def _plan_table(recipe: Recipe) -> Cells:
    lines = [["parameter", "shape", "init std", "lr", "weight decay", "eps"]]
    for row in recipe.rows:
        start = "unchanged" if row.start is None else f"set to {row.start:g}"
        eps = _UNKNOWN if "eps" in recipe.unknown else ""
        lines.append(
            [
                one_line(row.pattern) + (f" × {row.count}" if row.count > 1 else ""),
                "×".join(map(str, row.shape)),
                start if row.std is None else _number(row.std),
                _number(row.lr),
                _number(row.weight_decay),
                eps if row.eps is None else _number(row.eps),
            ]
        )
    return lines


def _how_to_use(recipe: Recipe) -> Cells:
    lines = [
        ["Python", f"recipe.plan.initialize_(model, std={_number(recipe.std.value)}, seed=0)"],
        ["", "recipe.plan.param_groups(model, **recipe.base_values)"],
    ]
    if recipe.plan.hooks:
        hooks = f"needs {many(len(recipe.plan.hooks), 'hook')} in the forward pass, so no export"
        return [*lines, ["", f"{hooks} can hold this plan"]]
    return [["command line", "add --export pytorch --output recipe.py"], *lines]


def _number(value: float) -> str:
    """Four digits.

    >>> _number(0.1), _number(3.125e-11), _number(0.01802)
    ('0.1', '3.125e-11', '0.01802')
    """
    return f"{value:.4g}"


# Layout


def one_line(words: str, longest: int = 120) -> str:
    r"""The words on one line: unprintable characters become spaces, long text is cut.

    >>> one_line("gqa\n\x1b[31m red"), len(one_line("x" * 500))
    ('gqa [31m red', 120)
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in words)
    plain = " ".join(plain.split())
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"


def _fitted(table: Cells, columns: int) -> list[str]:
    """The table's lines. Where long names leave too little room, each stands above its numbers."""
    head, *rows = table
    width = sum(max(len(line[k]) for line in table) + 2 for k in range(len(head))) - 2
    below = _BELOW if len(head) >= 6 and head[-1] in _BELOW else ()
    if len(head) < 6 or width <= columns or below:
        lines = text_table(head, rows, columns=columns, details=below).split("\n")
        return lines[1:] if not any(head) else lines
    first, *numbers = text_table(head[1:], [row[1:] for row in rows], columns=columns).split("\n")
    pairs = zip(rows, numbers, strict=True)
    return [f"  {first}", *(line for row, values in pairs for line in (row[0], f"  {values}"))]


def _sentence(words: str) -> str:
    return f"{one_line(words, LONG).rstrip('.')}."


def _inert(words: str, bar: str = "\\|") -> str:
    r"""Text that Markdown shows as it is. `bar` is how | is written; a table escapes its own.

    >>> print(_inert("model.layers.*.weight | <b>"))
    model.layers.\*.weight \| \<b>
    """
    escaped = {letter: f"\\{letter}" for letter in "\\`*_<["} | {"|": bar}
    return "".join(escaped.get(letter, letter) for letter in one_line(words, LONG))
