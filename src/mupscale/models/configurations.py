"""Named shapes of the reference GPT: the paper's, and ours where it gives none (see `source`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mupscale.errors import UnknownNameError
from mupscale.models.gpt import GPTConfig

_PAPER = "GQA-μP, arXiv 2605.15290"


@dataclass(frozen=True)
class Configuration:
    """A shape with its name, where it comes from, and how long it is trained."""

    name: str
    model: GPTConfig
    source: str
    tokens_per_parameter: int | None = None
    """Training tokens per non-embedding parameter, if the experiment sets a number."""


def configuration(name: str) -> Configuration:
    """The configuration with this name.

    >>> configuration("kvr_2").model.repetitions
    6
    """
    if name not in CONFIGURATIONS:
        raise UnknownNameError("configuration", name, CONFIGURATIONS)
    return CONFIGURATIONS[name]


def ablation(n_kv_heads: int) -> Configuration:
    """The GQA ablation, named by its key/value heads: 10 tokens per parameter."""
    shape = GPTConfig(width=768, depth=7, n_heads=12, n_kv_heads=n_kv_heads, vocabulary=50304)
    return Configuration(
        f"kvr_{n_kv_heads}", shape, f"{_PAPER}, table of the GQA transfer experiments", 10
    )


def weight_decay(size: str, width: int, depth: int) -> Configuration:
    """The sweep over lr and weight decay: heads of 64 without sharing, 3 tokens per parameter."""
    shape = GPTConfig(width=width, depth=depth, n_heads=width // 64, vocabulary=50257)
    return Configuration(
        f"jwd-{size}", shape, f"{_PAPER}, table of the weight-decay experiments", 3
    )


def coordinate_check(n_kv_heads: int) -> Configuration:
    """The coordinate check: 12 heads of 64 as printed, although that makes 768, not 576."""
    shape = GPTConfig(
        width=576, depth=8, n_heads=12, n_kv_heads=n_kv_heads, head_dim=64, context=1024
    )
    source = f"{_PAPER}, table of the coordinate checks; the vocabulary of 50304 is ours"
    return Configuration(f"coordinate_{n_kv_heads}", shape, source)


def quick_check() -> Configuration:
    """A coordinate check that takes a minute: the paper's, thinner and shallower, on bytes."""
    shape = GPTConfig(width=192, depth=2, n_heads=12, head_dim=64, vocabulary=256, context=1024)
    return Configuration("check", shape, "ours: the paper's coordinate check in small")


def quick_study() -> Configuration:
    """A sweep for one core: 12 heads as in the paper's ablation, on bytes."""
    shape = GPTConfig(width=96, depth=2, n_heads=12, head_dim=8, vocabulary=256, context=64)
    return Configuration("study", shape, "ours: the paper's ablation of r in small")


def proxy_136m(repetitions: int) -> Configuration:
    """A proxy of the experiment with 20 tokens per parameter. The paper prints only its size and
    r; the shape is ours.

    16 heads of 64 allow r = 8. It has 139.6, 132.3, 128.6 and 126.8 million non-embedding
    parameters at r = 1, 2, 4 and 8.
    """
    shape = GPTConfig(width=1024, depth=7, n_heads=16, n_kv_heads=16 // repetitions)
    return Configuration(f"136m_r{repetitions}", shape, _ours("136M"), 20)


def target_1200m() -> Configuration:
    """The target of that experiment: 1.16 billion non-embedding parameters, our shape."""
    shape = GPTConfig(width=2048, depth=24, n_heads=32, n_kv_heads=8)
    return Configuration("1.2b_r4", shape, _ours("1.2B"), 20)


def _ours(size: str) -> str:
    return f"ours: the paper says {size} and r, and prints no shape"


def cpu(width: int, repetitions: int) -> Configuration:
    """Small enough for one core: bytes, heads of 16, depth 4, 128 tokens of context."""
    heads = width // 16
    shape = GPTConfig(
        width=width, depth=4, n_heads=heads, n_kv_heads=heads // repetitions,
        vocabulary=256, context=128,
    )  # fmt: skip
    return Configuration(f"cpu_{width}_r{repetitions}", shape, "ours: for experiments on one core")


_CPU_WIDTHS = (32, 64, 96, 128, 192)
"""Width 192 has 12 heads, like the paper's models."""

_ALL = (
    *(ablation(n_kv_heads) for n_kv_heads in (1, 2, 3, 4, 6, 12)),
    weight_decay("small", 384, 4),
    weight_decay("medium", 768, 6),
    weight_decay("large", 1024, 10),
    *(coordinate_check(n_kv_heads) for n_kv_heads in (1, 2, 3, 4, 6, 12)),
    quick_check(),
    quick_study(),
    *(proxy_136m(repetitions) for repetitions in (1, 2, 4, 8)),
    target_1200m(),
    *(cpu(width, r) for width in _CPU_WIDTHS for r in range(1, 13) if width // 16 % r == 0),
)
CONFIGURATIONS: Mapping[str, Configuration] = MappingProxyType({c.name: c for c in _ALL})
