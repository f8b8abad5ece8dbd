"""Units: the kinds of weights. Each has a shape and overrides what differs from a dense layer.

Your own unit needs `shape`; the other methods default to a dense layer. See docs/add-a-unit.md.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast, get_args

import sympy

from mupscale.errors import DimensionError, OptionError, UnknownNameError
from mupscale.theory import formulas
from mupscale.theory.formulas import Dimension, Expr, dimension, inline

Standing = Literal["derived", "extrapolated"]
Initial = Literal["random", "zero", "constant"]
Part = Literal["key", "value"]


@dataclass(frozen=True)
class Unit(ABC):
    """A weight and its place in the network.

    Fields annotated `Dimension` are checked and become expressions.
    """

    standing: ClassVar[Standing] = "derived"
    remark: ClassVar[str] = ""
    """Why it is an extrapolation, or another limit; it is printed with the result."""
    initial: ClassVar[Initial] = "random"
    decays: ClassVar[bool] = True
    grows_both_ways: ClassVar[bool] = True
    """Both dimensions grow with the model; optimizers of whole matrices (Muon) need that."""
    vocabulary: ClassVar[bool] = False
    """It has an entry for each token of a vocabulary, which may be larger than the width."""
    thin_readout: ClassVar[bool] = False
    """Few outputs read many aligned inputs: the spectral norm is attained, and sets the init."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            left_out = value is None and field.default is None
            if field.type in ("Dimension", Dimension) and not left_out:
                object.__setattr__(self, field.name, dimension(field.name, value))

    @abstractmethod
    def shape(self) -> tuple[Expr, Expr]:
        """(n_out, n_in) of the parameter; a dimension that does not grow counts as 1."""

    def reference(self) -> "Unit":
        """The dense unit that this one stands in for: itself, unless it is stored smaller than it
        acts.
        """
        return self

    def multiplier(self) -> Expr:
        """Factor on the output in the forward pass; with it, the base values of a thin unit need no
        scaling.
        """
        return sympy.Integer(1)

    def token_share(self) -> Expr:
        """Share of the tokens that reach the weight. `gradient_entry` includes it."""
        return sympy.Integer(1)

    def gradient_entry(self) -> Expr:
        """Size of one entry of the loss gradient with respect to multiplier × weight: 1/width."""
        return 1 / self.shape()[1]

    def gradient_norm(self) -> Expr:
        """Spectral norm of that gradient, which is coherent: entry × √(n_out·n_in)."""
        n_out, n_in = self.shape()
        return self.gradient_entry() * sympy.sqrt(n_out * n_in)

    def dimensions(self) -> set[str]:
        """The names of its symbols."""
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        return {str(s) for value in values for s in getattr(value, "free_symbols", ())}

    def at(self, values: Mapping[str, int]) -> "Unit":
        """The unit with numbers for symbols; raises if the numbers do not fit together."""
        known = {formulas.symbol(name): value for name, value in values.items()}
        changes = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Unit):
                changes[field.name] = value.at(values)
            elif isinstance(value, sympy.Expr):
                changes[field.name] = value.subs(known)
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        shown: list[str] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                text = inline(value) if isinstance(value, sympy.Expr) else str(value)
                positional = field.default is dataclasses.MISSING
                shown.append(text if positional else f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True)
class Dense(Unit):
    """A hidden matrix. `width` is the embedding width, if that is not the fan-in (attention output,
    MLP down).

    >>> print(Dense("4*n", "n"))
    Dense(4n, n)
    """

    n_out: Dimension
    n_in: Dimension
    width: Dimension = None

    def shape(self) -> tuple[Expr, Expr]:
        return self.n_out, self.n_in

    def gradient_entry(self) -> Expr:
        return 1 / (self.n_in if self.width is None else self.width)


@dataclass(frozen=True)
class Embedding(Unit):
    """Token embedding: looks up one of a fixed number of columns of length n."""

    n: Dimension
    grows_both_ways: ClassVar[bool] = False
    vocabulary: ClassVar[bool] = True

    def shape(self) -> tuple[Expr, Expr]:
        return self.n, sympy.Integer(1)

    def gradient_entry(self) -> Expr:
        return 1 / self.n


@dataclass(frozen=True)
class Table(Embedding):
    """Any other table: positions, taps of a filter."""

    vocabulary: ClassVar[bool] = False


@dataclass(frozen=True)
class Readout(Unit):
    """Unembedding: n features to a fixed number of logits, multiplied by 1/n."""

    n: Dimension
    grows_both_ways: ClassVar[bool] = False
    thin_readout: ClassVar[bool] = True

    def shape(self) -> tuple[Expr, Expr]:
        return sympy.Integer(1), self.n

    def multiplier(self) -> Expr:
        return 1 / self.n

    def gradient_entry(self) -> Expr:
        return sympy.Integer(1)


@dataclass(frozen=True)
class KeyValue(Unit):
    """Key or value projection whose heads serve r query heads each: inner/r × n, repeated r times.

    `inner` is heads × head_dim (default: n). `part` says which of the two it is; only a rule that
    treats them differently needs it.

    >>> print(KeyValue("n", "r"), KeyValue(576, 12, inner=768).shape())
    KeyValue(n, r) (64, 576)
    >>> KeyValue(768, 5)
    Traceback (most recent call last):
    mupscale.errors.DimensionError: r=5 does not divide heads × head_dim = 768. Choose ...
    """

    n: Dimension
    r: Dimension
    inner: Dimension = None
    part: Part | None = None

    def __post_init__(self) -> None:
        if self.inner is None:
            object.__setattr__(self, "inner", self.n)
        if self.part not in (None, *get_args(Part)):
            raise UnknownNameError("part", self.part, get_args(Part))
        super().__post_init__()
        whole, parts = cast(Expr, self.inner), self.r
        if whole.is_Integer and parts.is_Integer and whole % parts:
            divisors = [str(divisor) for divisor in sympy.divisors(whole)]
            few = ", ".join([*divisors[:6], *(["…"] if len(divisors) > 6 else [])])
            raise DimensionError(
                f"r={parts} does not divide heads × head_dim = {whole}. Choose a divisor: {few}."
            )

    def shape(self) -> tuple[Expr, Expr]:
        return self.inner / self.r, self.n

    def __str__(self) -> str:
        beside = "" if self.inner == self.n else f", inner={inline(self.inner)}"
        return f"KeyValue({inline(self.n)}, {inline(self.r)}{beside})"

    def reference(self) -> Unit:
        return Dense(self.inner, self.n)

    def gradient_norm(self) -> Expr:
        # A shared head sums the gradients of r query heads. If these are independent the sum is √r
        # times as large, which makes up for the √r that the smaller matrix lacks. The paper does
        # not cover this: it is the one extrapolated step under SGD.
        return self.reference().gradient_norm()


@dataclass(frozen=True)
class Residual(Unit):
    """A weight inside a residual branch, x + β·branch(x), of a network with L blocks.

    `output=True` is for the branch's last matrix (attention output, MLP down), which carries β. For
    the others, only the gradient shrinks by β.
    """

    branch: Unit
    L: Dimension
    output: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.branch, Residual | Fused):
            kind = type(self.branch).__name__
            raise OptionError(
                f"Residual({kind}(…)) is not a unit. Put Residual inside: {kind}(Residual(…), …)."
            )

    @property
    def standing(self) -> Standing:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.branch.standing

    @property
    def remark(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.branch.remark

    def shape(self) -> tuple[Expr, Expr]:
        return self.branch.shape()

    def dimensions(self) -> set[str]:
        return super().dimensions() | self.branch.dimensions()


@dataclass(frozen=True)
class Vector(Unit):
    """A norm's gain or a bias: n numbers that start at a constant and are not decayed."""

    n: Dimension
    initial: ClassVar[Initial] = "constant"
    decays: ClassVar[bool] = False
    grows_both_ways: ClassVar[bool] = False
    remark: ClassVar[str] = (
        "gains and biases are not decayed (Dey et al. 2025); Adam and its like keep their base rate"
    )

    def shape(self) -> tuple[Expr, Expr]:
        return self.n, sympy.Integer(1)

    def gradient_entry(self) -> Expr:
        return 1 / self.n


@dataclass(frozen=True)
class Fused(Unit):
    """One matrix with the rows of q, k and v. Rows of k and v get their own multiplier."""

    q: Unit
    k: Unit
    v: Unit

    def shape(self) -> tuple[Expr, Expr]:
        rows = [unit.shape()[0] for unit in (self.q, self.k, self.v)]
        return sympy.Add(*rows), self.q.shape()[1]

    def dimensions(self) -> set[str]:
        return self.q.dimensions() | self.k.dimensions() | self.v.dimensions()


@dataclass(frozen=True)
class LowRank(Dense):
    """One factor of a low-rank projection, as in multi-head latent attention: down (rank × n) or
    up (n × rank).
    """

    standing: ClassVar[Standing] = "extrapolated"
    remark: ClassVar[str] = (
        "each factor is treated as dense in its own fans, with a rank that grows in proportion to "
        "n; their product then has the expected norm √(n_out/n_in)"
    )


@dataclass(frozen=True)
class Expert(Dense):
    """A matrix of one expert of a mixture. It sees the share `active` of the tokens: active experts
    / experts.
    """

    active: Expr = 1
    standing: ClassVar[Standing] = "extrapolated"
    remark: ClassVar[str] = (
        "an expert is treated as dense in its own fans; its mean gradient shrinks with its share "
        "of the tokens"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        share = (
            formulas.parse(self.active)
            if isinstance(self.active, str)
            else sympy.nsimplify(self.active)
        )
        if share.is_number and not 0 < share <= 1:
            raise OptionError(
                f"active={self.active} is not a share of the tokens. Give active / all experts, "
                "such as 2/8."
            )
        object.__setattr__(self, "active", share)

    def token_share(self) -> Expr:
        return self.active

    def gradient_entry(self) -> Expr:
        return self.active * super().gradient_entry()


@dataclass(frozen=True)
class Router(Readout):
    """The matrix that scores the experts, treated as a readout of a fixed number of scores."""

    standing: ClassVar[Standing] = "extrapolated"
    remark: ClassVar[str] = (
        "a router is treated as a readout: a fixed number of scores from n aligned features"
    )


@dataclass(frozen=True)
class Adapter(Unit):
    """A low-rank adapter (LoRA) of fixed rank: side "a" reads n features (rank × n), side "b"
    writes n (n × rank).
    """

    n: Dimension
    side: Literal["a", "b"]
    grows_both_ways: ClassVar[bool] = False
    standing: ClassVar[Standing] = "extrapolated"
    remark: ClassVar[str] = (
        "the rank is assumed fixed; a starts random, b at zero (compare LoRA+, Hayou et al. 2024)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side not in ("a", "b"):
            raise UnknownNameError("adapter side", self.side, ["a", "b"])

    @property
    def initial(self) -> Initial:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "random" if self.side == "a" else "zero"

    def shape(self) -> tuple[Expr, Expr]:
        one = sympy.Integer(1)
        return (one, self.n) if self.side == "a" else (self.n, one)

    def gradient_entry(self) -> Expr:
        return sympy.Integer(1) if self.side == "a" else 1 / self.n


_n, _r, _L, _inner = formulas.n, formulas.r, formulas.L, formulas.inner

NAMED: Mapping[str, Unit] = {
    "embedding": Embedding(_n),
    "position": Table(_n),
    "readout": Readout(_n),
    "dense": Dense(_n, _n),
    "kv": KeyValue(_n, _r),
    "kv-inner": KeyValue(_n, _r, _inner),
    "residual": Residual(Dense(_n, _n), _L),
    "vector": Vector(_n),
    "fused": Fused(Dense(_n, _n), KeyValue(_n, _r, part="key"), KeyValue(_n, _r, part="value")),
    "low-rank-down": LowRank("rank", _n),
    "low-rank-up": LowRank(_n, "rank", width=_n),
    "expert": Expert(_n, _n),
    "router": Router(_n),
    "adapter-a": Adapter(_n, "a"),
    "adapter-b": Adapter(_n, "b"),
}
"""Units in symbols, by their name on the command line."""

ALIASES: Mapping[str, str] = {
    "embed": "embedding",
    **dict.fromkeys(["unembed", "unembedding", "head", "lm-head", "output"], "readout"),
    **dict.fromkeys(["hidden", "q", "o", "query", "ffn", "mlp", "feed-forward"], "dense"),
    **dict.fromkeys(["k", "v", "key", "value", "key-value", "keyvalue"], "kv"),
    **dict.fromkeys(["gain", "bias", "norm"], "vector"),
    "qkv": "fused",
    "lora-a": "adapter-a",
    "lora-b": "adapter-b",
}


_PARTS: Mapping[str, Part] = {"k": "key", "key": "key", "v": "value", "value": "value"}


def unit_named(name: str) -> Unit:
    """The unit with this name, in symbols.

    >>> print(unit_named("unembed"), unit_named("k").part)
    Readout(n) key
    """
    plain = name.lower()
    known = NAMED.get(ALIASES.get(plain, plain))
    if known is None:
        raise UnknownNameError("unit", name, NAMED, ALIASES)
    return dataclasses.replace(known, part=_PARTS[plain]) if plain in _PARTS else known
