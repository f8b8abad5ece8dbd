"""The skeleton of a model: each parameter once, with its module and its block."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

Kind = Literal["embedding", "linear", "convolution", "norm", "other"]

# What torch.compile, FSDP 1 and activation checkpointing put into names.
_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)


@dataclass(frozen=True, eq=False)
class Entry:
    """A parameter and its place in the model."""

    name: str
    tied: tuple[str, ...]
    shape: tuple[int, ...]
    path: str
    """The owner's path in the model, wrappers included."""
    leaf: str
    tensor: Tensor
    owner: nn.Module
    parent: nn.Module
    """The module that holds the owner: the attention, for one of its projections."""
    kind: Kind
    stack: str | None
    block: int | None
    inside: str
    """The owner's path from its block inward; the whole path outside of blocks."""

    @property
    def transposed(self) -> bool:
        """Whether the weight is stored as (in, out), as by Hugging Face's Conv1D."""
        return type(self.owner).__name__ == "Conv1D" and hasattr(self.owner, "nf")

    @property
    def template(self) -> str:
        if self.stack is None:
            return self.name
        return f"{self.stack}.*" + self.name.removeprefix(f"{self.stack}.{self.block}")


def bare(model: nn.Module) -> nn.Module:
    """The model without DistributedDataParallel or torch.compile around it."""
    while True:
        inner: Any = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def class_of(model: nn.Module) -> type[nn.Module]:
    """The model's own class: FSDP2 puts another one in front of it."""
    model = bare(model)
    return next(
        kind
        for kind in type(model).__mro__
        if not any(base.__name__ == "FSDPModule" for base in kind.__mro__)
    )


def bare_name(name: str) -> str:
    """A parameter's name without the parts that wrappers add.

    >>> bare_name("layers.0._orig_mod.mlp.weight")
    'layers.0.mlp.weight'
    """
    return _WRAPPERS.sub("", name)


def entries(model: nn.Module) -> Iterator[Entry]:
    """Every parameter of the bare model once, in its order, with all its names."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    modules = dict(model.named_modules(remove_duplicate=False))
    bare_modules = {
        bare_name(f"{path}.").removesuffix("."): module for path, module in modules.items()
    }
    for key, (first, *others) in names.items():
        path, _, leaf = first.rpartition(".")
        stack, block, inside = _place(bare_name(path), bare_modules)
        yield Entry(
            name=bare_name(first),
            tied=tuple(bare_name(name) for name in others),
            shape=tuple(tensors[key].shape),
            path=path,
            leaf=leaf,
            tensor=tensors[key],
            owner=modules[path],
            parent=modules[path.rpartition(".")[0]],
            kind=kind_of(modules[path]),
            stack=stack,
            block=block,
            inside=inside,
        )


def _place(
    path: str, modules: Mapping[str, nn.Module] | None = None
) -> tuple[str | None, int | None, str]:
    """Stack, index and path inside the block, from the first number in a path that counts blocks.

    >>> _place("model.layers.3.mlp.experts.0.w1")
    ('model.layers', 3, 'mlp.experts.0.w1')
    """
    parts = path.split(".")
    for k, part in enumerate(parts):
        stack = ".".join(parts[:k])
        if part.isdigit() and k > 0 and not _is_sequence((modules or {}).get(stack)):
            return stack, int(part), ".".join(parts[k + 1 :])
    return None, None, path


def _is_sequence(container: nn.Module | None) -> bool:
    """Whether a container holds layers in sequence (a norm, a matrix), not equal blocks."""
    if not isinstance(container, nn.Sequential):
        return False
    kinds = Counter(type(child) for child in container if any(True for _ in child.parameters()))
    if not kinds:
        return False
    common = kinds.most_common(1)[0][0]
    first = next(child for child in container if type(child) is common)
    return kind_of(first) != "other" or not any(True for _ in first.children())


def kind_of(owner: nn.Module) -> Kind:
    """What a module is, by its type and the attributes of that type."""
    name = type(owner).__name__.lower()
    if isinstance(owner, nn.Embedding):
        return "embedding"
    if isinstance(owner, nn.Linear) or hasattr(owner, "nf"):
        return "linear"
    if isinstance(owner, nn.modules.conv._ConvNd):  # pyright: ignore[reportPrivateUsage]
        return "convolution"
    if "norm" in name or isinstance(owner, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm):
        return "norm"
    return "other"
