"""A GPT with grouped-query attention: the paper's model, with the options of a modern small model.

It is an ordinary torch module with ordinary initialization, and contains no scaling: a plan gives
learning rates and initialization from outside.

The suffix of a tensor is its shape:

    B  sequences in the batch    H  query heads        F  hidden units of the feed-forward part
    T  tokens in a sequence      K  key/value heads    V  vocabulary
    C  width (channels)          D  head_dim           E  half of head_dim: the pairs of RoPE
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention, silu

from mupscale.errors import DimensionError, OptionError, UnknownNameError

Positions = Literal["learned", "rope"]
Norm = Literal["layer", "rms"]
FeedForward = Literal["gelu", "swiglu"]
AttentionScale = Literal["1/sqrt_d", "1/d"]

INIT_STD = 0.02
"""As in GPT-2. A plan draws the weights again."""
NORM_EPS = 1e-5
ROPE_BASE = 10_000.0


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The shape of a GPT. A value of None follows from the others."""

    model_type: ClassVar[str] = "mupscale-gpt"
    """As in Hugging Face configs, so that `mupscale.plan` takes a config as a base."""

    width: int
    depth: int
    n_heads: int
    n_kv_heads: int | None = None
    """Key/value heads (default: n_heads, no sharing)."""
    head_dim: int | None = None
    """Default: width / n_heads. If set, heads × head_dim may differ from the width."""
    d_ff: int | None = None
    """Hidden units of the feed-forward part (default: 4 × width, also for SwiGLU)."""
    vocabulary: int = 50304
    context: int = 8192
    positions: Positions = "learned"
    norm: Norm = "layer"
    feed_forward: FeedForward = "gelu"
    qk_norm: bool = False
    tied: bool = False
    """Whether the readout is the token embedding."""
    attention_scale: AttentionScale = "1/sqrt_d"
    embedding_multiplier: float = 1.0
    """Multiplies the embedded tokens, not the positions."""
    residual_multiplier: float = 1.0
    """Multiplies what each branch adds to the residual stream."""
    logit_scale: float = 1.0
    attention_multiplier: float = 1.0
    """Multiplies the attention scores, in addition to `attention_scale`."""

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DimensionError(f"{name}={value!r} is not a positive whole number.")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise UnknownNameError(name, getattr(self, name), known)
        for name in _MULTIPLIERS:
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < math.inf:
                raise OptionError(
                    f"{name}={value!r} is not a number above 0. It is a factor; 1 has no effect."
                )
        self._check_heads()

    def _check_heads(self) -> None:
        if self.n_heads % self.kv_heads:
            raise DimensionError(
                f"n_heads={self.n_heads} is not a multiple of n_kv_heads={self.kv_heads}. "
                f"Choose a divisor of {self.n_heads}: {divisors(self.n_heads)}."
            )
        if self.head_dim is None and self.width % self.n_heads:
            raise DimensionError(
                f"width={self.width} is not a multiple of n_heads={self.n_heads}, so head_dim "
                f"cannot follow from them. Give head_dim, or choose a divisor of {self.width} for "
                f"n_heads: {divisors(self.width)}."
            )
        if self.positions == "rope" and self.head_size % 2:
            raise DimensionError(
                f"head_dim={self.head_size} is odd. RoPE rotates pairs: choose an even head_dim."
            )

    @property
    def kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_size(self) -> int:
        return self.width // self.n_heads if self.head_dim is None else self.head_dim

    @property
    def hidden(self) -> int:
        return 4 * self.width if self.d_ff is None else self.d_ff

    @property
    def repetitions(self) -> int:
        """Query heads per key/value head: the paper's r."""
        return self.n_heads // self.kv_heads

    @property
    def score_scale(self) -> float:
        """The factor on the products of queries and keys."""
        d = self.head_size
        scale = 1 / math.sqrt(d) if self.attention_scale == "1/sqrt_d" else 1 / d
        return self.attention_multiplier * scale

    def resized(self, **changes: int) -> "GPTConfig":
        """The shape at other sizes, including `r`. At a new width, the number of heads and `d_ff`
        change in proportion; head_dim and r stay.

        >>> GPTConfig(width=128, depth=4, n_heads=8, n_kv_heads=4).resized(width=256).n_kv_heads
        8
        """
        values: dict[str, Any] = dict(changes)
        if "width" in values and "n_heads" not in values:
            share = values.get("r", self.repetitions)
            heads = max(1, round(values["width"] / self.width * self.n_heads / share)) * share
            values |= {"n_heads": heads, "head_dim": self.head_size}
            values.setdefault("n_kv_heads", heads // share)
        if "r" in values:
            values["n_kv_heads"] = values.get("n_heads", self.n_heads) // values.pop("r")
        if self.d_ff is not None and "width" in values:
            values.setdefault("d_ff", self.d_ff * values["width"] // self.width)
        return replace(self, **values)

    def to_dict(self) -> dict[str, Any]:
        """The same in the names of Hugging Face configs, which `mupscale.read` knows.

        Here `attention_multiplier` is the whole factor on the scores, as in Granite. It is left out
        if that is the usual 1/√head_dim.
        """
        usual = self.score_scale == 1 / math.sqrt(self.head_size)
        return {
            "model_type": self.model_type,
            "hidden_size": self.width,
            "num_hidden_layers": self.depth,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "intermediate_size": self.hidden,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
            "embedding_multiplier": self.embedding_multiplier,
            "residual_multiplier": self.residual_multiplier,
            "logit_scale": self.logit_scale,
        } | ({} if usual else {"attention_multiplier": self.score_scale})


_CHOICES = {
    "positions": get_args(Positions),
    "norm": get_args(Norm),
    "feed_forward": get_args(FeedForward),
    "attention_scale": get_args(AttentionScale),
}
_MULTIPLIERS = (
    "embedding_multiplier", "residual_multiplier", "logit_scale", "attention_multiplier"
)  # fmt: skip
_OPTIONAL = ("n_kv_heads", "head_dim", "d_ff")
_SIZES = ("width", "depth", "n_heads", "vocabulary", "context", *_OPTIONAL)


def divisors(number: int) -> str:
    """All divisors, as in a sentence.

    >>> divisors(12)
    '1, 2, 3, 4, 6 or 12'
    """
    *few, last = [str(k) for k in range(1, number + 1) if number % k == 0]
    return f"{', '.join(few)} or {last}" if few else last


def draw_(weight: Tensor) -> None:
    if not weight.is_meta:  # on the meta device, torch would take seconds to do nothing
        nn.init.normal_(weight, std=INIT_STD)


class Linear(nn.Linear):
    """A matrix without a bias."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out, bias=False)

    def reset_parameters(self) -> None:
        draw_(self.weight)


class TokenEmbedding(nn.Embedding):
    def reset_parameters(self) -> None:
        draw_(self.weight)


class RMSNorm(nn.RMSNorm):
    """Computes in the dtype of its gain: under autocast, queries and keys are narrower."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return super().forward(x.to(self.weight.dtype))


def make_norm(config: GPTConfig, size: int) -> nn.Module:
    """A norm with a gain and no bias."""
    if config.norm == "rms":
        return RMSNorm(size, eps=NORM_EPS)
    return nn.LayerNorm(size, eps=NORM_EPS, bias=False)


class Rotation(NamedTuple):
    """Cosines and sines of RoPE's angles, of shape T1E for all heads."""

    cos: Tensor
    sin: Tensor

    @staticmethod
    def of(length: int, head_dim: int, like: Tensor) -> "Rotation":
        # Computed each time, at little cost: a buffer would be lost when a model leaves the meta
        # device.
        options: Any = {"device": like.device, "dtype": torch.float32}
        exponents_E = torch.arange(0, head_dim, 2, **options) / head_dim
        times_T = torch.arange(length, **options)
        angles_T1E = torch.outer(times_T, ROPE_BASE**-exponents_E)[:, None]
        return Rotation(angles_T1E.cos().to(like.dtype), angles_T1E.sin().to(like.dtype))

    def turn(self, x_BTHD: Tensor) -> Tensor:
        """Rotate the first half of each head against the second, as Hugging Face's Llama does."""
        a_BTHE, b_BTHE = x_BTHD.chunk(2, dim=-1)
        turned_BTHE = a_BTHE * self.cos - b_BTHE * self.sin, b_BTHE * self.cos + a_BTHE * self.sin
        return torch.cat(turned_BTHE, dim=-1)


class Attention(nn.Module):
    """Causal attention in which `repetitions` query heads share each key/value head."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        inner, kv_inner = config.n_heads * config.head_size, config.kv_heads * config.head_size
        self.q_proj = Linear(config.width, inner)
        self.k_proj = Linear(config.width, kv_inner)
        self.v_proj = Linear(config.width, kv_inner)
        self.o_proj = Linear(inner, config.width)
        self.q_norm = make_norm(config, config.head_size) if config.qk_norm else None
        self.k_norm = make_norm(config, config.head_size) if config.qk_norm else None

    def forward(self, x_BTC: Tensor, rotation: Rotation | None) -> Tensor:
        heads = (-1, self.config.head_size)
        q_BTHD = self.q_proj(x_BTC).unflatten(-1, heads)
        k_BTKD = self.k_proj(x_BTC).unflatten(-1, heads)
        v_BTKD = self.v_proj(x_BTC).unflatten(-1, heads)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTHD, k_BTKD = self.q_norm(q_BTHD), self.k_norm(k_BTKD)
        if rotation is not None:
            q_BTHD, k_BTKD = rotation.turn(q_BTHD), rotation.turn(k_BTKD)
        y_BHTD = scaled_dot_product_attention(
            q_BTHD.transpose(1, 2), k_BTKD.transpose(1, 2), v_BTKD.transpose(1, 2),
            is_causal=True, scale=self.config.score_scale, enable_gqa=self.config.repetitions > 1,
        )  # fmt: skip
        return self.o_proj(y_BHTD.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Up, GELU, down; or Llama's SwiGLU."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        gated = config.feed_forward == "swiglu"
        self.gate_proj = Linear(config.width, config.hidden) if gated else None
        self.up_proj = Linear(config.width, config.hidden)
        self.down_proj = Linear(config.hidden, config.width)

    def forward(self, x_BTC: Tensor) -> Tensor:
        up_BTF = self.up_proj(x_BTC)
        h_BTF = gelu(up_BTF) if self.gate_proj is None else silu(self.gate_proj(x_BTC)) * up_BTF
        return self.down_proj(h_BTF)


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.residual_multiplier = config.residual_multiplier
        self.attention_norm = make_norm(config, config.width)
        self.attention = Attention(config)
        self.mlp_norm = make_norm(config, config.width)
        self.mlp = MLP(config)

    def forward(self, x_BTC: Tensor, rotation: Rotation | None) -> Tensor:
        attended_BTC = self.attention(self.attention_norm(x_BTC), rotation)
        x_BTC = torch.add(x_BTC, attended_BTC, alpha=self.residual_multiplier)
        return torch.add(x_BTC, self.mlp(self.mlp_norm(x_BTC)), alpha=self.residual_multiplier)


class ParameterCounts(NamedTuple):
    total: int
    non_embedding: int
    """As in the paper: without the tables of tokens and positions, unless tied as readout."""


class GPT(nn.Module):
    """Tokens in, logits or the loss out."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = TokenEmbedding(config.vocabulary, config.width)
        learned = config.positions == "learned"
        self.positions = TokenEmbedding(config.context, config.width) if learned else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_norm = make_norm(config, config.width)
        self.readout = Linear(config.width, config.vocabulary)
        self._tie()

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        """Logits; with targets, the mean cross-entropy in nats. Targets of -100 do not count."""
        x_BTC = self._embed(tokens_BT)
        rotation = None
        if self.config.positions == "rope":
            rotation = Rotation.of(x_BTC.shape[1], self.config.head_size, like=x_BTC)
        for block in self.blocks:
            x_BTC = block(x_BTC, rotation)
        x_BTC = self.final_norm(x_BTC)
        if self.config.logit_scale != 1:
            x_BTC = x_BTC * self.config.logit_scale
        if targets_BT is None:
            return self.readout(x_BTC)
        return cross_entropy(self.readout(x_BTC).flatten(0, 1), targets_BT.flatten())

    def _embed(self, tokens_BT: Tensor) -> Tensor:
        x_BTC, multiplier = self.tokens(tokens_BT), self.config.embedding_multiplier
        if self.positions is None:
            return x_BTC if multiplier == 1 else x_BTC * multiplier
        length = tokens_BT.shape[1]
        if length > self.config.context:
            raise DimensionError(
                f"a sequence of {length} tokens is longer than context={self.config.context}. Cut "
                "the sequences, or build the model with a larger context."
            )
        positions_TC = self.positions(torch.arange(length, device=tokens_BT.device))
        return torch.add(positions_TC, x_BTC, alpha=multiplier)

    def parameter_counts(self) -> ParameterCounts:
        total = sum(parameter.numel() for parameter in self.parameters())
        tables = [self.positions, None if self.config.tied else self.tokens]
        embedding = sum(table.weight.numel() for table in tables if table is not None)
        return ParameterCounts(total, total - embedding)

    def _tie(self) -> None:
        if self.config.tied:
            self.readout.weight = self.tokens.weight

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Leaving the meta device gives each module its own tensor.
        super()._apply(fn, recurse)
        self._tie()
        return self
