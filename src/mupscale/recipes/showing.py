"""A recipe for people: plain text for a terminal, Markdown for a page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mupscale.recipes.inert import one_line

if TYPE_CHECKING:
    from mupscale.recipes.recipe import Recipe
    from mupscale.recipes.rows import RecipeRow
    from mupscale.recipes.values import BaseValue

Table = list[list[str]]
WIDTH = 116
LONG = 2000
"""No paragraph is longer."""
_NOT_KNOWN = "not known"


def text(recipe: Recipe) -> str:
    """The whole recipe in columns."""
    parts = [
        *_filled(_head(recipe)),
        *_section("Base values", _columns(_values(recipe))),
        *_section("Weight decay, two ways", [*_columns(_decays(recipe)), *_filled(_taus(recipe))]),
        *_section("Run", _columns(_run(recipe))),
        *_section("Each parameter", [*_columns(_plan(recipe)), *_filled(_hooks(recipe))]),
        *_section("Not known", _bullets([recipe.request] if recipe.request else [])),
        *_section("What may go wrong", _bullets(recipe.risks)),
    ]
    return "\n".join(parts)


def markdown(recipe: Recipe) -> str:
    """The same as headings and tables."""
    head, *rest = _head(recipe)
    parts = [
        f"# {_inert(head)}", "", *_paragraphs(rest),
        "## Base values", "", *_pipes(_values(recipe)), "",
        "## Weight decay, two ways", "", *_pipes(_decays(recipe)), "", *_paragraphs(_taus(recipe)),
        "## Run", "", *_pipes([["", ""], *_run(recipe)]), "",
        "## Each parameter", "", *_pipes(_plan(recipe)), "", *_paragraphs(_hooks(recipe)),
        *(["## Not known", "", _inert(recipe.request), ""] if recipe.request else []),
        "## What may go wrong", "", *(f"- {_inert(risk).rstrip('.')}." for risk in recipe.risks),
    ]  # fmt: skip
    return "\n".join(parts)


# What is said


def _head(recipe: Recipe) -> list[str]:
    evidence = recipe.evidence
    seeds = ", ".join(str(seed) for seed in evidence.seeds)
    members = f" ({'; '.join(evidence.members)})" if evidence.members else ""
    lines = [
        f"Recipe for {one_line(recipe.target)} from the study {one_line(evidence.study)}",
        f"Rule {one_line(recipe.rule)}: {recipe.why}.",
        f"{_count(evidence.runs, 'run')} under it, {_count(len(evidence.members), 'model')} with "
        "an optimum"
        f"{members}, seed{'s' * (len(evidence.seeds) != 1)} {seeds or 'none'}.",
    ]
    if recipe.doubts:
        lines.append("INCONCLUSIVE, do not train with it: " + "; ".join(recipe.doubts) + ".")
    else:
        lines += _meaning(recipe)
    if recipe.extrapolated:
        found = recipe.extrapolated
        lines.append(
            f"Along the drift with {found.axis} the rate would be 2^{found.value:.2f} "
            f"[2^{found.low:.2f}, "
            f"2^{found.high:.2f}] at {found.axis} = {found.position:,g} (the members stand around "
            f"{found.centre:.3g}): "
            "the values below do not follow it."
        )
    return lines


def _meaning(recipe: Recipe) -> list[str]:
    """What the interval is for, so that nobody takes it for more."""
    evidence = recipe.evidence
    if len(evidence.members) < 2:
        return [
            "Transfer itself was not measured: the interval is that of the one model that was "
            "swept."
        ]
    lines = [
        "The interval holds if the target is one more of these models, which differ in "
        f"{evidence.axis} alone. It "
        "knows nothing of the distances under 'What may go wrong'."
    ]
    drift, regret = evidence.drift, evidence.regret
    if drift is not None and regret is not None:
        told = "It moves" if drift.excludes(0) else "That it moves is not told from noise"
        lines.append(
            f"Over these models the optimum goes {drift.value:+.3f} [{drift.low:+.3f}, "
            f"{drift.high:+.3f}] octaves for "
            f"each doubling of {evidence.axis}. {told}. Trained at the optimum of the least of "
            "them, the others give "
            f"up at most {regret.value:.4f} [{regret.low:.4f}, {regret.high:.4f}] nats."
        )
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _values(recipe: Recipe) -> Table:
    percent = f"{100 * recipe.evidence.confidence:g} % interval"
    lines = [["", "value", percent, ""]]
    lines.append(
        [
            "lr",
            f"{_number(recipe.lr.value)} = 2^{recipe.log2_lr.value:.2f}",
            _interval(recipe.lr),
            "searched",
        ]
    )
    if recipe.plan.optimizer.startswith("muon") and recipe.settings.get("adamw_lr"):
        lines.append(["lr beside Muon", _number(recipe.settings["adamw_lr"]), "", "not searched"])
    carried = "by its value" if recipe.decay.chosen == "wd" else "by its time scale"
    for name, value, note in (
        ("weight decay", recipe.weight_decay, f", carried over {carried}"),
        ("eps", recipe.eps, ""),
        ("init std", recipe.std, ""),
    ):
        if value is not None:
            lines.append([name, _number(value.value), _interval(value), f"{value.source}{note}"])
        elif name in recipe.unknown:
            lines.append([name, _NOT_KNOWN, "", ""])
    if "betas" in recipe.unknown:
        lines.append(["betas", _NOT_KNOWN, "", ""])
    elif recipe.betas:
        source = "given" if recipe.told.by["betas"] == "given" else "not searched"
        lines.append(["betas", ", ".join(f"{beta:g}" for beta in recipe.betas), "", source])
    return lines


def _interval(value: BaseValue) -> str:
    if not value.bounded:
        return "no bound" if value.source == "searched" else ""
    span = f"[{_number(value.low)}, {_number(value.high)}]"
    powers = (
        f"2^{math.log2(value.low):.2f} to 2^{math.log2(value.high):.2f}" if value.low > 0 else ""
    )
    return f"{span} = {powers}" if powers else span


def _decays(recipe: Recipe) -> Table:
    decay = recipe.decay
    steps = f"{decay.proxy_steps:,.0f}" if decay.proxy_steps else "unknown"
    lines = [["", "base weight decay", "interval", ""]]
    for way, value, how in (
        ("wd", decay.by_wd, "the same base value as in the study"),
        (
            "tau",
            decay.by_tau,
            f"the same time scale in runs: steps {steps} → {decay.target_steps:,}",
        ),
    ):
        chosen = "→ " if decay.chosen == way else "  "
        shown = ["unknown", ""] if value is None else [_number(value.value), _interval(value)]
        lines.append([chosen + way, *shown, how])
    return lines


def _taus(recipe: Recipe) -> list[str]:
    decay, effective = recipe.decay, recipe.effective_taus
    if decay.proxy_tau is None or decay.target_tau is None or effective is None:
        return []
    low, high = (f"{tau:.3g}" for tau in effective)
    own = (
        f"every decayed parameter's is {low}"
        if low == high
        else f"parameters have from {low} to {high}"
    )
    return [
        f"Base τ_epoch, the memory of decay in runs: {decay.proxy_tau:.3g} in the study, "
        f"{decay.target_tau:.3g} here; "
        f"{own}."
    ]


def _run(recipe: Recipe) -> Table:
    length, evidence, shape = recipe.length, recipe.evidence, recipe.shape
    share = evidence.share
    each = f"{length.tokens_per_parameter:.3g} for each of {shape.parameters:,} parameters"
    return [
        ["tokens", f"{length.tokens:,} ({each})"],
        ["batch", _batch(recipe)],
        ["steps", f"{length.steps:,}, of them {length.warmup:,} of linear warmup, then a "
                  f"cosine{_floor(recipe)}"],
        ["clipping", _clipping(recipe)],
        ["cost", f"{evidence.target_flops:.2e} FLOPs; the study took "
         + ("an unknown number" if share is None else f"{evidence.study_flops:.2e}, "
                                                      f"{_percent(share)} of that")],
    ]  # fmt: skip


def _batch(recipe: Recipe) -> str:
    length = recipe.length
    rule = (
        ""
        if length.batch_rule == "table"
        else f", by the rule that the study had: {length.batch_rule}"
    )
    if length.sequence is None or length.batch_sequences is None:
        return f"{length.batch_tokens:,} tokens; how long a sequence is, is {_NOT_KNOWN}{rule}"
    source = "" if length.sequence_source == "given" else f" ({length.sequence_source})"
    batch = f"{_count(length.batch_sequences, 'sequence')} of {length.sequence:,}{source}"
    return f"{batch} = {length.batch_tokens:,} tokens{rule}"


def _percent(share: float) -> str:
    """Two digits, and no power of ten.

    >>> _percent(4.17e-7), _percent(0.5)
    ('0.000042 %', '50 %')
    """
    digits = max(0, 1 - math.floor(math.log10(100 * share))) if share > 0 else 0
    return f"{100 * share:.{digits}f} %"


def _floor(recipe: Recipe) -> str:
    floor = recipe.told.floor
    if floor is None:
        return f" whose floor is {_NOT_KNOWN}"
    return f" to {floor:g} of the rate" if floor else " to zero"


def _clipping(recipe: Recipe) -> str:
    clip = recipe.told.clip
    if clip is None:
        return _NOT_KNOWN
    if not clip:
        return "off" if recipe.told.by["clip"] == "given" else "off, as in the study"
    folded = any(row.folded != 1 for row in recipe.rows)
    how = " (the norm before folding: plan.clip_grad_norm_, not torch's)" if folded else ""
    return f"gradients to a norm of {clip:g}{how}"


def _plan(recipe: Recipe) -> Table:
    lines = [["parameter", "shape", "init std", "lr", "weight decay", "eps"]]
    for row in recipe.rows:
        times = f" × {row.count}" if row.count > 1 else ""
        lines.append([
            one_line(row.pattern) + times, "×".join(map(str, row.shape)), _start(row), _number(row.lr),
            _number(row.weight_decay), _row_eps(recipe, row),
        ])  # fmt: skip
    return lines


def _row_eps(recipe: Recipe, row: RecipeRow) -> str:
    if row.eps is None:
        return _NOT_KNOWN if "eps" in recipe.unknown else ""
    return _number(row.eps)


def _start(row: RecipeRow) -> str:
    if row.std is not None:
        return _number(row.std)
    return "as made" if row.start is None else f"set to {row.start:g}"


def _hooks(recipe: Recipe) -> list[str]:
    folded = [one_line(row.pattern) for row in recipe.rows if row.folded != 1]
    lines = (
        [f"Factors of the forward pass are in the values of {', '.join(folded)}."] if folded else []
    )
    if recipe.plan.hooks:
        lines.append(
            f"{len(recipe.plan.hooks)} factors are hooks in the forward pass: apply this plan with "
            "mupscale "
            "(plan.initialize_, plan.param_groups)."
        )
    return lines


def _number(value: float) -> str:
    """Four digits.

    >>> _number(0.1), _number(3.125e-11), _number(0.01802)
    ('0.1', '3.125e-11', '0.01802')
    """
    return f"{value:.4g}"


# How it is laid out


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {line}".rstrip() for line in lines)] if lines else []


def _columns(table: Table) -> list[str]:
    widths = [max(len(line[k]) for line in table) for k in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]


def _filled(lines: Sequence[str]) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(one_line(line, LONG), WIDTH)]


def _bullets(lines: Sequence[str]) -> list[str]:
    said = [f"{one_line(line, LONG).rstrip('.')}." for line in lines]
    return [
        part
        for line in said
        for part in textwrap.wrap(line, WIDTH, initial_indent="- ", subsequent_indent="  ")
    ]


def _pipes(table: Table) -> list[str]:
    head, *body = [[_inert(cell) for cell in line] for line in table]
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body)]


def _paragraphs(lines: Sequence[str]) -> list[str]:
    return [part for line in lines for part in (_inert(line), "")]


def _inert(words: str) -> str:
    r"""Text that Markdown shows as it is.

    >>> print(_inert("model.layers.*.weight | <b>"))
    model.layers.\*.weight \| \<b>
    """
    return "".join(
        f"\\{letter}" if letter in "\\`*_|<[" else letter for letter in one_line(words, LONG)
    )
