"""Rules: presets of independent choices. Your own rule is another `Rule`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import sympy

from mupscale.errors import OptionError, UnknownNameError
from mupscale.theory import formulas
from mupscale.theory.formulas import Expr
from mupscale.theory.runs import run_formulas

Scaled = Literal["scaled", "none"]
Width = Literal["scaled", "init", "none"]
Parts = Literal["both", "keys", "values"]

DERIVED = ("derived", "paper", "rms")
"""Key/value factors that follow from a derivation; every other one is set."""

EMBEDDINGS = ("table", "sqrt")
"""Rates of the token embedding that follow from a derivation."""

NEWER: Mapping[str, str] = {"kv_part": "both", "embedding": "table", "run": "none"}
"""Choices that files of earlier versions do not have, with their defaults."""

EVIDENCE = ("evidence", "run_ranges")
"""What a rule says about how its choices were measured."""

_SETTINGS: Mapping[str, Sequence[str]] = {
    "width": get_args(Width),
    "kv_part": get_args(Parts),
    "decay": get_args(Scaled),
    "eps": get_args(Scaled),
}


@dataclass(frozen=True)
class Rule:
    """What scales, and how.

    width      "scaled": all five values follow the derivation; "init": only the initial std follows
               the fan-in, 1/√n_in, as in PyTorch's default; "none": they keep the base value, and
               decay and epsilon change with depth only
    kv_factor  the rate of repeated key/value heads over the hidden rate: "hidden" (1), "derived"
               (from the unit's true dimensions), "paper" (derived as if heads × head_dim = n),
               "rms" (derived with one norm for initial matrix and update, RMS to RMS), or a formula
               in r, n, inner: "sqrt(r)"
    decay      "scaled": as derived for the decay mode; "none": the base value
    depth      β on residual branches: "none" (1), "1/L", "1/sqrt(L)", or any formula in L
    eps        "scaled": follows the gradient; "none": the base value
    evidence   how the key/value factor was measured, if it was; changes no value
    kv_part    what gets the key/value factor: "both", "keys" or "values"; the others keep the
               hidden rate and decay
    embedding  the rate of the token embedding: "table" (derived for a fixed vocabulary: constant),
               "sqrt" (derived for a vocabulary far larger than the width: 1/√n), or a formula in n
    run        what changes with batch B and tokens D: "none", "sde" or "completed-p" (derived), a
               published rule such as "hyperp", or formulas: "lr=sqrt(B)/D**0.3, eps=1/sqrt(B)"
    run_ranges the batch and tokens (both in tokens) between which `run` was measured, if it was:
               (("batch", 512, 8192), ("tokens", 1e6, 8e6)); changes no value

    >>> Rule("mine", kv_factor="((1 + sqrt(r))/2)**0.7").kv_factor
    '((1 + sqrt(r))/2)**0.7'
    >>> RULES["gqa-mup"].with_(depth="none").depth
    'none'
    """

    name: str
    width: Width = "scaled"
    kv_factor: str = "derived"
    decay: Scaled = "scaled"
    depth: str = "1/L"
    eps: Scaled = "scaled"
    evidence: str | None = None
    kv_part: Parts = "both"
    embedding: str = "table"
    run: str = "none"
    run_ranges: tuple[tuple[str, float, float], ...] = ()

    def __post_init__(self) -> None:
        for field, known in _SETTINGS.items():
            if getattr(self, field) not in known:
                raise UnknownNameError(f"setting for {field}", getattr(self, field), known)
        self.beta(formulas.L)
        self.literal_kv_factor()
        self.literal_embedding()
        run_formulas(self.run)

    @property
    def choices(self) -> dict[str, str]:
        """Everything that changes a value: two rules are the same if these are equal.

        Choices that are newer than the first files are left out at their defaults: a rule that has
        not changed keeps its records and fingerprints.
        """
        return {
            key: value
            for key, value in asdict(self).items()
            if key not in EVIDENCE and NEWER.get(key) != value
        }

    def to_dict(self) -> dict[str, Any]:
        """The rule as files hold it. The evidence keeps its first key there, "because"."""
        evidence: dict[str, Any] = {} if self.evidence is None else {"because": self.evidence}
        if self.run_ranges:
            evidence["run_ranges"] = [list(one) for one in self.run_ranges]
        return self.choices | evidence

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> "Rule":
        """The inverse of `to_dict`; the evidence may have either key."""
        if "run_ranges" in fields:
            fields = {**fields, "run_ranges": tuple(map(tuple, fields["run_ranges"]))}
        if "because" in fields:
            fields = {("evidence" if key == "because" else key): v for key, v in fields.items()}
        return Rule(**fields)

    def beta(self, depth: Expr) -> Expr:
        """Factor on the residual branches of a network with `depth` blocks."""
        if self.depth == "none":
            return sympy.Integer(1)
        formula = _positive("depth", self.depth, ["L"], "none, 1/L, 1/sqrt(L)")
        return formula.subs(formulas.L, depth)

    def literal_kv_factor(self) -> Expr | None:
        """The key/value factor if it is given as a formula; None if it is derived."""
        if self.kv_factor in DERIVED:
            return None
        if self.kv_factor == "hidden":
            return sympy.Integer(1)
        words = ", ".join(["hidden", *DERIVED])
        return _positive("kv_factor", self.kv_factor, ["n", "r", "inner"], words)

    def literal_embedding(self) -> Expr | None:
        """The embedding's rate if it is given as a formula; None if it is derived."""
        if self.embedding in EMBEDDINGS:
            return None
        return _positive("embedding", self.embedding, ["n"], ", ".join(EMBEDDINGS))

    def of_part(self, part: str | None) -> "Rule":
        """The rule for "key" or "value": without the factor, where `kv_part` leaves it out.

        >>> Rule("mine", kv_part="keys").of_part("value").kv_factor
        'hidden'
        """
        if self.kv_part in ("both", f"{part}s"):
            return self
        return replace(self, kv_factor="hidden", evidence=None)

    def with_(self, **changes: Any) -> "Rule":
        """The rule with some choices changed, which its name then lists; None changes nothing."""
        changes = {
            key: value
            for key, value in changes.items()
            if value is not None and value != getattr(self, key)
        }
        if not changes:
            return self
        if "run" in changes and self.run_ranges:  # the evidence was for another choice
            changes = {"run_ranges": (), "evidence": None} | changes
        if "kv_factor" in changes or "kv_part" in changes:
            changes.setdefault("evidence", None)
        altered = ", ".join(
            f"{key} {value}" for key, value in changes.items() if key not in EVIDENCE
        )
        return replace(self, name=f"{self.name} ({altered})", **changes)

    def __str__(self) -> str:
        return self.name


def _positive(field: str, text: str, symbols: list[str], words: str) -> Expr:
    try:
        formula = formulas.parse(text, symbols)
    except (OptionError, UnknownNameError) as error:
        raise OptionError(f"{field}={text!r}: {error} Or choose one of: {words}.") from error
    if not formula.is_positive:
        raise OptionError(
            f"{field}={text!r} is not positive for all {', '.join(symbols)}. Give a positive "
            f"formula, or choose one of: {words}."
        )
    return formula


RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("sp", width="none", kv_factor="hidden", decay="none", depth="none", eps="none"),
        Rule("mup", width="scaled", kv_factor="hidden", decay="none", depth="none", eps="none"),
        Rule("complete-p", "scaled", kv_factor="hidden", decay="scaled", depth="1/L", eps="scaled"),
        Rule("gqa-mup", "scaled", kv_factor="derived", decay="scaled", depth="1/L", eps="scaled"),
    )
}
