"""A config at another depth: lists with one entry per layer, and counts of layers, change with it.

Every kind of layer (sliding and full attention, dense and sparse) is kept if the depth allows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mupscale.errors import DimensionError
from mupscale.targets.keys import LAYERS, STACKS, is_positive, key_among

# Indices of layers, instead of one entry per layer.
_INDICES = ("moe_layers", "mlp_only_layers")
# How many of the first or last layers are of another kind.
_SOME = (
    "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "num_kv_shared_layers"
)  # fmt: skip
# The distance between layers of the other kind.
_STEPS = ("decoder_sparse_step", "moe_layer_interval", "interleave_moe_layer_step")

Recompute = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From values to those of a config made from them, with its defaults and derived values."""


def with_depth(recompute: Recompute, values: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """The values of a config at another depth."""
    key = key_among(values, LAYERS) or key_among(recompute(values), LAYERS)
    if key is None:
        raise DimensionError(
            f"the config has no number of layers: none of {', '.join(LAYERS)} is set."
        )
    old = values.get(key) or recompute(values)[key]
    if depth == old:
        return dict(values)
    stacks = _stacks(values)
    lists = {name: value for name, value in values.items() if _is_per_layer(name, value, old)}
    changed = {**values, key: depth, **dict.fromkeys(stacks, depth), **_counts(values, old, depth)}
    if "attention_types" in values and "attention_layers" in lists:  # GPT-Neo derives the latter
        changed["attention_types"] = [[continued(lists["attention_layers"], depth), 1]]
    derived = _derived(recompute, values, lists, changed)
    for name, items in lists.items():
        if name in _INDICES:
            marks = _marks(derived[name], depth) if name in derived else None
            resized = _resized(_marks(items, old), marks, depth)
            changed[name] = [index for index, marked in enumerate(resized) if marked]
        else:
            changed[name] = _resized(items, derived.get(name), depth)
    return changed


def _stacks(values: Mapping[str, Any]) -> list[str]:
    """The keys for the depths of encoder and decoder, which must be equal."""
    if not values.get("is_encoder_decoder"):
        return []
    stacks = {name: values[name] for name in STACKS if is_positive(values.get(name))}
    if len(set(stacks.values())) > 1:
        depths = ", ".join(f"{name}={number}" for name, number in stacks.items())
        raise DimensionError(
            f"{depths}: one depth does not say how deep each should be. Set both in a config."
        )
    return list(stacks)


def _is_per_layer(name: str, value: object, depth: int) -> bool:
    other = "token" in name or name in ("architectures", "attention_types")
    if other or not isinstance(value, list):
        return False
    return name in _INDICES or len(value) == depth


def _counts(values: Mapping[str, Any], old: int, depth: int) -> dict[str, int]:
    """Counts and indices of layers, limited so that layers of both kinds remain."""
    limits = dict.fromkeys(_SOME, depth - 1) | dict.fromkeys(_STEPS, depth)
    counts = {
        name: min(values[name], limit)
        for name, limit in limits.items()
        if isinstance(values.get(name), int)
    }
    last = values.get("moe_layer_end_index")
    if isinstance(last, int) and last >= 0:
        counts["moe_layer_end_index"] = depth - 1 if last == old - 1 else min(last, depth - 1)
    return counts


def _derived(
    recompute: Recompute,
    values: Mapping[str, Any],
    lists: Mapping[str, Any],
    changed: Mapping[str, Any],
) -> dict[str, Any]:
    """The lists that the config derives itself at the new depth, if it does so at the old one."""
    if not lists:
        return {}
    before = recompute({name: value for name, value in values.items() if name not in lists})
    trusted = {name for name, value in lists.items() if before.get(name) == value}
    after = recompute({name: value for name, value in changed.items() if name not in lists})
    return {name: list(after[name]) for name in trusted if isinstance(after.get(name), list)}


def _marks(indices: Sequence[int], depth: int) -> list[bool]:
    return [index in indices for index in range(depth)]


def _resized(items: list[Any], derived: list[Any] | None, depth: int) -> list[Any]:
    entries = derived if derived is not None and len(derived) == depth else continued(items, depth)
    return with_every_kind(entries, items)


def continued(items: Sequence[Any], length: int) -> list[Any]:
    """A list cut to a length, or continued by its pattern: first entries, then a period.

    >>> continued(["dense", "sparse", "sparse", "sparse"], 6)
    ['dense', 'sparse', 'sparse', 'sparse', 'sparse', 'sparse']
    >>> continued([1, 1, 0, 1, 1, 0], 8)
    [1, 1, 0, 1, 1, 0, 1, 1]
    """
    entries = list(items[:length])
    period = _period(items) if length > len(items) else 1
    while len(entries) < length:
        entries.append(entries[-period])
    return entries


def _period(items: Sequence[Any]) -> int:
    """The period of the tail in the shortest description of the list."""
    n = len(items)
    fits = [
        (first + period, period)
        for period in range(1, n // 2 + 1)
        for first in range(n - 2 * period + 1)
        if items[first + period :] == items[first : n - period]
    ]
    return min(fits)[1] if fits else n


def with_every_kind(entries: Sequence[Any], original: Sequence[Any]) -> list[Any]:
    """The entries, with the missing kinds of the original put at their end.

    >>> with_every_kind(["dense", "dense"], ["dense", "dense", "dense", "sparse", "sparse"])
    ['dense', 'sparse']
    """
    changed = list(entries)
    missing = [kind for k, kind in enumerate(original) if kind not in [*entries, *original[:k]]]
    for place in range(len(changed) - 1, -1, -1):
        if missing and changed.count(changed[place]) > 1:
            changed[place] = missing.pop()
    return changed
