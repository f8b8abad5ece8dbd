"""A recipe as the page shows it, from its plain values."""

from collections.abc import Mapping
from typing import Any

from mupscale.reports.page.data import RecipeView
from mupscale.reports.page.words import decimal, many, signed

_VALUES = {
    "lr": "base learning rate",
    "weight_decay": "base weight decay",
    "eps": "base ε",
    "std": "base std of weights",
}


def recipe_view(recipe: Mapping[str, Any], text: str) -> RecipeView:
    """Of `Recipe.to_dict()`; `text` is the whole of it, for those who want every parameter."""
    values, unknown = recipe["base_values"], recipe["not_known"]
    rows = [
        _value_row(label, values[name])
        for name, label in _VALUES.items()
        if values[name] or name in unknown
    ]
    rows.insert(2, _other_decay(recipe["decay"]))
    return RecipeView(
        title=f"Recipe for {recipe['target']['name']} under {recipe['rule']['name']}",
        headings=("", "value", "interval", "where from"),
        rows=[*rows, *_run_rows(recipe["length"])],
        notes=_notes(recipe),
        warnings=[
            *(f"Inconclusive, do not train with it: {doubt}." for doubt in recipe["doubts"]),
            *recipe["risks"],
        ],
        text=text,
    )


def no_recipe(target: str, reason: str) -> RecipeView:
    """Where the study cannot carry one."""
    return RecipeView(title=f"No recipe for {target}", notes=[f"{reason[:1].upper()}{reason[1:]}"])


def _value_row(label: str, value: Mapping[str, Any] | None) -> list[str]:
    if value is None:
        return [label, "not known", "–", "neither the study nor the caller says it"]
    bounds = "–" if value["low"] is None else f"[{decimal(value['low'])}, {decimal(value['high'])}]"
    return [label, decimal(value["value"]), bounds, str(value["source"])]


def _other_decay(decay: Mapping[str, Any]) -> list[str]:
    """The way to carry decay over that was not chosen: with many more steps the two differ
    widely.
    """
    other, kept = ("tau", "τ_epoch") if decay["chosen"] == "wd" else ("wd", "its value")
    label = f"base weight decay, if {kept} is kept instead"
    if decay[other] is None:
        return [label, "–", "–", "the study does not say its steps"]
    return _value_row(label, decay[other])


def _run_rows(length: Mapping[str, Any]) -> list[list[str]]:
    rule = "by the batch and warmup rules"
    return [
        [
            "tokens",
            f"{length['tokens']:,}",
            "–",
            f"{length['tokens_per_parameter']:.3g} for each parameter",
        ],
        ["batch", f"{_batch(length)} tokens", "–", rule],
        ["steps, of them warmup", f"{length['steps']:,}, {length['warmup']:,}", "–", rule],
    ]


def _batch(length: Mapping[str, Any]) -> str:
    if length["sequence"] is None:
        return f"{length['batch_tokens']:,}"
    return f"{length['batch_sequences']:,} × {length['sequence']:,}"


def _meaning(evidence: Mapping[str, Any]) -> str:
    """What the interval of the rate is for, so that nobody takes it for more."""
    if len(evidence["members"]) < 2:
        return "Transfer itself was not measured: the interval is that of the one model that was swept."
    return (
        "The interval of the rate holds if the target is one more of these models, which differ "
        "in "
        f"{evidence['axis']} alone. It knows nothing of what is listed below."
    )


def _notes(recipe: Mapping[str, Any]) -> list[str]:
    evidence = recipe["evidence"]
    why = f"{recipe['rule']['name']}: {recipe['rule']['why'].rstrip('.')}."
    seeds, members = many(len(evidence["seeds"]), "seed"), many(len(evidence["members"]), "model")
    rests = f"It rests on {many(evidence['runs'], 'run')} with {seeds} on {members}"
    share = (
        ""
        if evidence["share"] is None
        else f", which cost {100 * evidence['share']:.2g} % of the target's run"
    )
    notes = [
        why,
        f"{rests}{share}. Intervals are of {evidence['confidence']:.0%}.",
        _meaning(evidence),
    ]
    far = recipe.get("extrapolated")
    if far:
        ends = (
            "no bound"
            if far["low"] is None or far["high"] is None
            else f"[{signed(far['low'])}, {signed(far['high'])}]"
        )
        notes.append(
            f"Along the drift with {far['axis']}, log2 of the rate would be {signed(far['value'])} "
            f"{ends} at "
            f"{far['axis']} = {far['position']:,g}; the values above do not follow it."
        )
    return notes
