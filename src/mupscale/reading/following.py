"""What each parameter does: one forward pass, followed operation by operation.

Names are claims. So the model runs once on the meta device, with tensors that have shapes and no
numbers, and every operation of torch is seen: which parameter is looked up, which multiplies, which
is the gain of a norm and with which offset, which matrices end in the residual stream and with
which constant, which rows of a fused matrix become queries, keys and values, and how often a layer
is used. That costs no memory, so it is done at the model's real size.

Every tensor carries a `Tag`: the sum of which outputs it is (`sources`, each with its constant
factor), what it depends on at all (`depends`, a set of bits), and what else is known of it. The
model is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mupscale.reading.roles import Role
from mupscale.reading.rows import Rows, if_shaped, joined_rows, numbered, paired, unpaired, view_of
from mupscale.reading.traces import (
    UNKNOWN,
    UNSEEN,
    AttentionUse,
    ForwardTrace,
    NormSeen,
    SourceKind,
    TensorPart,
    Use,
    UseKind,
    ValueSource,
)


@dataclass(frozen=True, slots=True)
class Tag:
    """What is known of one tensor."""

    depends: int = 0
    sources: Mapping[int, float] = field(default_factory=dict[int, float])
    through: frozenset[int] = frozenset()
    """Sources that reached it through a nonlinearity, entry by entry."""
    root: int = 0
    """The same for a tensor and its copies and views, so that a norm's statistic finds what it is
    of.
    """
    squared: int = 0
    """The root of which this is a power, entry by entry."""
    statistic: int = 0
    """The root of which this is a mean, sum, variance or norm."""
    parameter: str | None = None
    vector: bool = False
    """Whether that parameter is a vector, however it is expanded."""
    scale: float = 1.0
    offset: float = 0.0
    """The tensor is scale · parameter + offset."""
    constant: float | None = None
    norm: int | None = None
    """The normalization that this is the output of, before or after its gain."""
    rows: Rows | None = None
    """For each entry, the row of the one source that it came from."""
    attention: tuple[str, Any, Any] | None = None
    """("scores", queries, keys), ("weights", queries, keys) behind the softmax, or ("mixed", None,
    None).
    """
    is_input: bool = False


_NOTHING = Tag()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VIEWS = _words(
    "view _unsafe_view reshape t transpose permute unsqueeze squeeze expand slice select split "
    "split_with_sizes unbind "
    "chunk alias detach clone _to_copy contiguous narrow flatten unflatten movedim lift_fresh "
    "lift_fresh_copy repeat "
    "as_strided _reshape_alias view_copy expand_copy squeeze_copy unsqueeze_copy permute_copy "
    "t_copy transpose_copy "
    "slice_copy select_copy numpy_T mT dropout native_dropout repeat_interleave roll flip"
)
_COPIES = _words("alias detach clone _to_copy contiguous lift_fresh lift_fresh_copy dropout")
_STATISTICS = _words("mean sum var var_mean std std_mean linalg_vector_norm norm amax amin prod")
_NONLINEAR = _words(
    "gelu silu relu relu6 leaky_relu sigmoid tanh exp expm1 log log_sigmoid logsigmoid softplus "
    "elu celu selu mish "
    "hardswish hardsigmoid hardtanh threshold square abs log_softmax _log_softmax prelu glu erf "
    "sin cos"
)
_CHOOSING = _words("sigmoid topk sort argmax argsort max log_softmax _log_softmax")
_SOFTMAX = _words("_softmax _safe_softmax softmax")
_ATTENTION_KERNELS = _words(
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_fused_attention_overrideable "
    "_scaled_dot_product_attention_math scaled_dot_product_attention "
    "_scaled_dot_product_cudnn_attention"
)


class Following(TorchDispatchMode):
    """The mode that sees every operation and says what comes out of it."""

    def __init__(self, trace: ForwardTrace) -> None:
        super().__init__()
        self.trace = trace
        # Tensors are kept, so that no other one can come to have the identity of one that has gone.
        self.tags: dict[int, tuple[Tensor, Tag]] = {}
        self.path: list[str] = [""]
        self.bits = 0
        self.roots = 0
        self.handlers: dict[str, Callable[..., None]] = {
            "add": self._add, "sub": self._add, "rsub": self._add, "mul": self._multiply, "div": self._multiply,
            "neg": self._negate, "embedding": self._embedding, "mm": self._product, "bmm": self._product,
            "index": self._index, "index_select": self._index,
            "matmul": self._product, "addmm": self._biased_product, "baddbmm": self._biased_product,
            "linear": self._linear, "convolution": self._convolution, "_convolution": self._convolution,
            "_grouped_mm": self._product, "native_layer_norm": self._fused_norm, "_fused_rms_norm": self._fused_norm,
            "native_group_norm": self._group_norm, "native_batch_norm": self._batch_norm,
            "_native_batch_norm_legit_no_training": self._batch_norm, "_native_batch_norm_legit": self._batch_norm,
            "pow": self._power, "rsqrt": self._of_statistic, "sqrt": self._of_statistic,
            "reciprocal": self._of_statistic, "clamp_min": self._of_statistic, "clamp": self._of_statistic,
            "scalar_tensor": self._scalar, "full": self._full, "cat": self._joined, "stack": self._joined,
            "view_as_complex": self._as_complex, "view_as_real": self._as_real, "copy": self._copy,
            "masked_fill": self._elementwise, "where": self._elementwise,
        }  # fmt: skip

    # The frame

    def entering(self, path: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self.path.append(path)

        return hook

    def leaving(self, *_: Any) -> None:
        self.path.pop()

    def mark_parameter(self, tensor: Tensor, name: str) -> None:
        vector = sum(size > 1 for size in tensor.shape) <= 1
        self._set(tensor, Tag(parameter=name, root=self._root(), vector=vector))

    def mark_constant(self, tensor: Tensor, value: float) -> None:
        self._set(tensor, Tag(constant=value, root=self._root()))

    def mark_input(self, tensor: Tensor) -> None:
        # Tokens and masks only look up and choose; what is made of them is not the input any more.
        self._set(tensor, Tag(is_input=tensor.is_floating_point(), root=self._root()))

    def finish(self, output: Any) -> None:
        """The outputs: the logits where the model names them, otherwise the first tensor of real
        numbers.
        """
        tensors = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
        named = getattr(output, "logits", None)
        first = named if isinstance(named, Tensor) else tensors[0] if tensors else None
        for tensor in tensors:
            self.trace.reached |= self._tag(tensor).depends
        if first is not None:
            tag = self._tag(first)
            self.trace.outputs = {**dict.fromkeys(tag.through, UNKNOWN), **tag.sources}
            self._note_sum(tag)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        in_place = name.endswith("_") and not name.endswith("__")
        name = name.rstrip("_") if in_place else name
        keywords: dict[str, Any] = kwargs or {}
        if (
            name == "_grouped_mm" and args[0].is_meta
        ):  # takes bfloat16 only, and only its shape is wanted
            result = args[0].new_empty(args[0].shape[0], args[1].shape[-1])
        else:
            result = func(*args, **keywords)
        self._see(name, args, keywords, result)
        return result

    def _see(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        if name in self.handlers:
            self.handlers[name](name, args, keywords, result)
        elif name in _VIEWS:
            self._view(name, args, keywords, result)
        elif name in _STATISTICS:
            self._statistic(name, args, keywords, result)
        elif name in _NONLINEAR or name in _CHOOSING:
            self._nonlinear(args, result, chooses=name in _CHOOSING)
        elif name in _SOFTMAX:
            self._softmax(args, result)
        elif name in _ATTENTION_KERNELS:
            self._attention_kernel(args, keywords, result)
        else:
            self._elementwise(name, args, keywords, result)

    def _root(self) -> int:
        self.roots += 1
        return self.roots

    def _bit(self) -> int:
        self.bits += 1
        return 1 << self.bits

    def _tag(self, value: Any) -> Tag:
        found = self.tags.get(id(value)) if isinstance(value, Tensor) else None
        return found[1] if found else _NOTHING

    def _set(self, tensor: Any, tag: Tag) -> None:
        if isinstance(tensor, Tensor):
            self.tags[id(tensor)] = (tensor, tag)

    def _source(
        self, kind: SourceKind, parameter: str | None, given: Tag, **more: Any
    ) -> ValueSource:
        made = ValueSource(
            len(self.trace.sources),
            self._bit(),
            kind,
            parameter,
            self.path[-1],
            given.sources,
            given.depends,
            **more,
        )
        self.trace.sources.append(made)
        return made

    def _use(self, name: str, kind: UseKind, **more: Any) -> int:
        bit = self._bit()
        self.trace.uses.setdefault(name, []).append(Use(kind, self.path[-1], bit, **more))
        return bit

    def _note_sum(self, tag: Tag) -> None:
        if len(tag.sources) > 1 or any(
            self.trace.sources[one].kind == "table" for one in tag.sources
        ):
            self.trace.sums.append(tag.sources)

    # Operations that keep what is known

    def _view(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        tag = self._tag(args[0])
        if tag is _NOTHING:
            self._moved_constant(args[0], result)
            return
        if not isinstance(result, tuple | list):
            moved = (
                tag.rows
                if name in _COPIES
                else tag.rows and tag.rows.then(view_of(name, args[1:], keywords))
            )
            self._set(result, replace(tag, rows=moved))
            return
        for k, one in enumerate(result):
            own = None if tag.rows is None else tag.rows.then(view_of(name, args[1:], keywords, k))
            self._set(one, replace(tag, rows=own))

    def _moved_constant(self, given: Any, result: Any) -> None:
        """A number that is made on the CPU and moved (torch.tensor(…) in a forward pass) keeps its
        value.
        """
        if (
            isinstance(given, Tensor)
            and given.numel() == 1
            and not given.is_meta
            and isinstance(result, Tensor)
        ):
            self._set(result, Tag(constant=float(given), root=self._root()))

    def _as_complex(self, _: str, args: Sequence[Any], __: Mapping[str, Any], result: Any) -> None:
        tag = self._tag(args[0])
        self._set(result, replace(tag, rows=tag.rows and tag.rows.then(paired)))

    def _as_real(self, _: str, args: Sequence[Any], __: Mapping[str, Any], result: Any) -> None:
        tag = self._tag(args[0])
        self._set(result, replace(tag, rows=tag.rows and tag.rows.then(unpaired)))

    def _copy(self, _: str, args: Sequence[Any], __: Mapping[str, Any], result: Any) -> None:
        self._set(result, self._tag(args[1]))
        self._set(args[0], self._tag(args[1]))

    def _joined(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        tags = [self._tag(tensor) for tensor in args[0]]
        together = self._combined(tags)
        tables = [tag.parameter for tag in tags if tag.parameter]
        for parameter in tables:  # a class token, put in front of the others
            together = replace(together, depends=together.depends | self._use(parameter, "joined"))
        several = [tag.rows for tag in tags if tag.rows is not None]
        dim = keywords.get("dim", args[1] if len(args) > 1 else 0)
        joined = (
            Rows(lambda: joined_rows(name, several, dim)) if len(several) == len(tags) else None
        )
        self._set(result, replace(together, rows=joined))

    def _combined(self, tags: Sequence[Tag]) -> Tag:
        """What a tensor is that was made of several in a way that is not followed."""
        depends, sources, through = 0, dict[int, float](), frozenset[int]()
        attention, rows, is_input = None, None, False
        for tag in tags:
            depends |= tag.depends
            sources |= dict.fromkeys(tag.sources, UNKNOWN)
            through |= tag.through
            attention = attention or tag.attention
            rows = tag.rows if rows is None else rows
            is_input = is_input or tag.is_input
        return Tag(
            depends,
            sources,
            through,
            self._root(),
            attention=attention,
            rows=rows,
            is_input=is_input,
        )

    def _elementwise(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        """Whatever is not known: what goes in comes out, with factors that are not known."""
        given = [*tensors_in(args), *tensors_in(tuple(keywords.values()))]
        tags = [self._tag(tensor) for tensor in given]
        tags = [tag for tag in tags if tag is not _NOTHING]
        if not tags:
            return
        combined = self._combined(tags)
        for tag in tags:
            if tag.parameter is not None:
                combined = replace(
                    combined, depends=combined.depends | self._use(tag.parameter, "other")
                )
        masked = name in ("masked_fill", "where")
        if masked:  # a mask does not change what the entries are
            kept = [tag for tag in tags if tag.sources or tag.attention]
            combined = replace(combined, sources=kept[0].sources) if len(kept) == 1 else combined
        for one in tensors_in(result if isinstance(result, tuple | list) else (result,)):
            self._set(one, replace(combined, rows=if_shaped(combined.rows, one)))

    # Sums and products, entry by entry

    def _add(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        left, right = self._tag(args[0]), self._tag(args[1])
        alpha = float(keywords.get("alpha", 1))
        signs = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-1.0, 1.0)}[name]
        numbers = [_number(args[k], tag) for k, tag in enumerate((left, right))]
        if left.parameter and numbers[1] is not None:
            self._set(
                result,
                replace(
                    left,
                    scale=left.scale * signs[0],
                    offset=left.offset * signs[0] + signs[1] * numbers[1],
                ),
            )
            return
        if right.parameter and numbers[0] is not None:
            self._set(
                result,
                replace(
                    right,
                    scale=right.scale * signs[1],
                    offset=right.offset * signs[1] + signs[0] * numbers[0],
                ),
            )
            return
        if numbers[1] is not None or numbers[0] is not None:
            kept = right if numbers[0] is not None else left
            self._set(
                result, replace(kept, root=kept.root if kept.statistic else self._root(), norm=None)
            )
            return
        if left.statistic and left.statistic == right.root and not left.parameter:
            self._set(result, right)
            return
        if right.statistic and right.statistic == left.root:  # x − mean(x)
            self._set(result, left)
            return
        if left.parameter and not right.parameter:
            self._set(result, self._with_parameter(right, left))
        elif right.parameter and not left.parameter:
            self._set(result, self._with_parameter(left, right))
        else:
            self._set(result, self._sum(left, right, signs, result))

    def _sum(self, left: Tag, right: Tag, signs: tuple[float, float], result: Tensor) -> Tag:
        sources = {number: factor * signs[0] for number, factor in left.sources.items()}
        for number, factor in right.sources.items():
            # The same source twice (a rotation's two halves) is one that is no longer a constant
            # times itself.
            sources[number] = UNKNOWN if number in sources else factor * signs[1]
        for tag in (left, right):
            if tag.parameter:
                bit = self._use(tag.parameter, "other")
                left = replace(left, depends=left.depends | bit)
        rows = left.rows if left.rows is not None else right.rows
        return Tag(
            left.depends | right.depends,
            sources,
            left.through | right.through,
            self._root(),
            attention=left.attention or right.attention,
            rows=if_shaped(rows, result),
            is_input=left.is_input or right.is_input,
        )

    def _with_parameter(self, tag: Tag, parameter: Tag) -> Tag:
        """A sum x + parameter: a bias, or a table of positions."""
        assert parameter.parameter is not None
        name = parameter.parameter
        if parameter.vector:
            bit = self._use(name, "bias", of=frozenset(tag.sources))
            return replace(tag, depends=tag.depends | bit, root=self._root())
        source = self._source("table", name, _NOTHING)
        depends = tag.depends | self._use(name, "added", source=source.number) | source.bit
        sources = {**tag.sources, source.number: parameter.scale}
        return replace(tag, depends=depends, sources=sources, root=self._root(), norm=None)

    def _negate(self, _: str, args: Sequence[Any], __: Mapping[str, Any], result: Any) -> None:
        self._scaled(self._tag(args[0]), -1.0, result)

    def _scaled(self, tag: Tag, factor: float, result: Tensor) -> None:
        if tag.parameter:
            self._set(result, replace(tag, scale=tag.scale * factor, offset=tag.offset * factor))
            return
        if tag.constant is not None:
            self._set(result, replace(tag, constant=tag.constant * factor))
            return
        sources = {number: old * factor for number, old in tag.sources.items()}
        self._set(
            result, replace(tag, sources=sources, root=tag.root if tag.statistic else self._root())
        )

    def _multiply(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        left, right = self._tag(args[0]), self._tag(args[1])
        divides = name == "div"
        numbers = [_number(args[k], tag) for k, tag in enumerate((left, right))]
        if numbers[1] is not None:
            inverted = divides and numbers[1] and not math.isinf(numbers[1])
            self._scaled(left, 1 / numbers[1] if inverted else numbers[1], result)
        elif numbers[0] is not None and not divides:
            self._scaled(right, numbers[0], result)
        elif left.root and left.root == right.root and not divides and not left.parameter:  # x · x
            self._set(result, replace(self._combined([left]), squared=left.root))
        elif right.statistic and right.statistic == left.root:
            self._normalized(left, result)
        elif left.statistic and left.statistic == right.root and not divides:
            self._normalized(right, result)
        elif right.parameter and not left.parameter and not divides:
            self._by_parameter(left, args[1], right, result)
        elif left.parameter and not right.parameter and not divides:
            self._by_parameter(right, args[0], left, result)
        elif left.parameter and right.parameter:
            depends = self._use(left.parameter, "other") | self._use(right.parameter, "other")
            self._set(result, Tag(depends, root=self._root()))
        else:
            self._elementwise(name, args, keywords, result)

    def _by_parameter(self, tag: Tag, vector: Tensor, parameter: Tag, result: Tensor) -> None:
        """A product x · parameter: the gain of the norm that x comes from, or a scale of another
        kind.
        """
        assert parameter.parameter is not None
        name = parameter.parameter
        offset = parameter.offset / parameter.scale if parameter.scale else 0.0
        norm = tag.norm
        if norm is not None and self.trace.norms[norm].gain is None:
            seen = self.trace.norms[norm]
            seen.gain, seen.offset = name, offset
            bit = self._use(name, "gain", offset=offset)
            # A constant between a norm and its gain belongs to the norm: x/‖x‖·√n is a norm by the
            # root mean square.
            sources = dict.fromkeys(tag.sources, 1.0)
        else:
            bit = self._use(name, "scale", offset=offset, of=frozenset(tag.sources))
            sources = dict.fromkeys(tag.sources, UNKNOWN)
        self._set(
            result, replace(tag, depends=tag.depends | bit, sources=sources, root=self._root())
        )

    # Norms

    def _power(self, _: str, args: Sequence[Any], __: Mapping[str, Any], result: Any) -> None:
        tag = self._tag(args[0])
        if tag is _NOTHING:
            return
        if tag.statistic:
            self._set(result, tag)
            return
        bit = self._use(tag.parameter, "other") if tag.parameter else 0
        combined = self._combined([tag])
        nonlinear = replace(
            combined, sources={}, through=tag.through | frozenset(tag.sources), squared=tag.root
        )
        self._set(result, replace(nonlinear, depends=tag.depends | bit))

    def _statistic(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        tag = self._tag(args[0])
        if tag is _NOTHING:
            return
        root = tag.squared or tag.root
        bit = self._use(tag.parameter, "other") if tag.parameter else 0
        combined = replace(self._combined([tag]), depends=tag.depends | bit)
        for one in tensors_in(result if isinstance(result, tuple | list) else (result,)):
            self._set(one, replace(combined, rows=None, statistic=root))

    def _of_statistic(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        tag = self._tag(args[0])
        if tag.statistic:
            self._set(result, tag)
        else:
            self._nonlinear(args, result)

    def _normalized(self, tag: Tag, result: Tensor) -> NormSeen:
        self._note_sum(tag)
        source = self._source("norm", None, tag)
        seen = NormSeen(source.number, self.path[-1], tag.sources)
        self.trace.norms.append(seen)
        self._set(
            result,
            Tag(
                tag.depends | source.bit,
                {source.number: 1.0},
                root=self._root(),
                norm=len(self.trace.norms) - 1,
                rows=tag.rows,
                attention=tag.attention,
                is_input=tag.is_input,
            ),
        )
        return seen

    def _with_gain(self, given: Tensor, result: Tensor, gain: Any, bias: Any) -> None:
        self._normalized(self._tag(given), result)
        if isinstance(gain, Tensor) and self._tag(gain).parameter:
            self._by_parameter(self._tag(result), gain, self._tag(gain), result)
        if isinstance(bias, Tensor) and self._tag(bias).parameter:
            self._set(result, self._with_parameter(self._tag(result), self._tag(bias)))

    def _fused_norm(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        gain = args[2] if len(args) > 2 else keywords.get("weight")
        bias = args[3] if len(args) > 3 and name == "native_layer_norm" else None
        self._with_gain(args[0], result[0], gain, bias)

    def _group_norm(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        self._with_gain(args[0], result[0], args[1], args[2])

    def _batch_norm(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        self._with_gain(args[0], result[0], args[1], args[2])

    # Matrices and tables

    def _embedding(self, _: str, args: Sequence[Any], __: Mapping[str, Any], result: Any) -> None:
        parameter = self._tag(args[0])
        if parameter.parameter is None:
            self._elementwise(_, args, __, result)
            return
        source = self._source("table", parameter.parameter, _NOTHING)
        bit = self._use(parameter.parameter, "lookup", source=source.number) | source.bit
        depends = bit | self._tag(args[1]).depends
        self._set(result, Tag(depends, {source.number: parameter.scale}, root=self._root()))

    def _index(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        """table[tokens] looks up as nn.Embedding does, and so does index_select. Other indexing is
        not followed.

        An index that depends on a parameter is a choice that the model makes, of experts, say.
        """
        table, rows = args[0], args[-1]
        if name == "index":
            rows = rows[0] if len(rows) == 1 else None
        elif args[1] not in (0, -table.ndim):
            rows = None
        whole = (
            isinstance(rows, Tensor) and not rows.is_floating_point() and rows.dtype != torch.bool
        )
        chosen = whole and bool(self._tag(rows).depends)
        if whole and not chosen and table.ndim == 2 and self._tag(table).parameter is not None:
            self._embedding(name, (table, rows), keywords, result)
        else:
            self._elementwise(name, args, keywords, result)

    def _linear(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        self._multiplied(args[0], args[1].mT, result, name)
        if len(args) > 2 and args[2] is not None:
            self._bias(args[2], result)

    def _biased_product(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        bias, left, right = args[:3]
        alpha = float(keywords.get("alpha", 1))
        self._multiplied(left, right, result, name)
        if alpha != 1:
            self._scaled(self._tag(result), alpha, result)
        if keywords.get("beta", 1) != 0:
            self._bias(bias, result)

    def _bias(self, bias: Tensor, result: Tensor) -> None:
        tag, own = self._tag(bias), self._tag(result)
        if tag.parameter:
            bit = self._use(tag.parameter, "bias", of=frozenset(own.sources))
            self._set(result, replace(own, depends=own.depends | bit))
        elif tag is not _NOTHING:
            summed = self._sum(own, tag, (1.0, 1.0), result)
            self._set(result, replace(summed, attention=own.attention, rows=own.rows))

    def _product(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        self._multiplied(args[0], args[1], result, name)

    def _multiplied(self, left: Tensor, right: Tensor, result: Tensor, name: str) -> None:
        a, b = self._tag(left), self._tag(right)
        if name == "linear":  # the view was made outside of what is followed
            b = self._tag(right._base) if right._base is not None else b
        if b.parameter and not a.parameter:
            self._matrix(a, b, right, result, outputs=-1)
        elif a.parameter and not b.parameter:
            self._matrix(b, a, left, result, outputs=-2)
        elif a.parameter and b.parameter:
            depends = self._use(a.parameter, "other") | self._use(b.parameter, "other")
            self._set(result, Tag(depends, root=self._root()))
        else:
            self._between(left, right, result)

    def _matrix(
        self, given: Tag, parameter: Tag, matrix: Tensor, result: Tensor, outputs: int
    ) -> None:
        """A product x · W, or W · x: `outputs` is the axis of the result that holds what comes out
        of W.
        """
        assert parameter.parameter is not None
        self._note_sum(given)
        count = matrix.shape[outputs]
        stored = matrix.stride()
        contiguous_last = stored[-1] == 1
        out_is_last = outputs == -1
        from_attention = given.attention is not None and given.attention[0] == "mixed"
        start = self._first_row(matrix, outputs)
        source = self._source(
            "matrix", parameter.parameter, given, from_input=self._is_from_input(given),
            from_attention=from_attention, outputs=count, through=given.through,
        )  # fmt: skip
        axis = -1 if out_is_last == contiguous_last else -2
        bit = self._use(parameter.parameter, "product", source=source.number, out_axis=axis)
        bit |= source.bit
        rows = Rows(lambda: numbered(start or 0, count, outputs, result.shape))
        self._set(
            result,
            Tag(
                given.depends | bit, {source.number: parameter.scale}, root=self._root(), rows=rows
            ),
        )

    def _is_from_input(self, given: Tag) -> bool:
        """Whether only norms stand between the model's own input and this."""
        return given.is_input and all(
            self.trace.sources[number].kind == "norm" for number in given.sources
        )

    def _first_row(self, matrix: Tensor, outputs: int) -> int | None:
        """Where a part of a parameter begins along its outputs, where only a part is used."""
        stride = matrix.stride()[outputs]
        return matrix.storage_offset() // stride if stride and matrix.storage_offset() else None

    def _convolution(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        given, parameter, bias = self._tag(args[0]), self._tag(args[1]), args[2]
        if parameter.parameter is None:
            self._elementwise(name, args, keywords, result)
            return
        self._note_sum(given)
        source = self._source(
            "matrix",
            parameter.parameter,
            given,
            from_input=self._is_from_input(given),
            through=given.through,
        )
        bit = self._use(
            parameter.parameter, "convolution", source=source.number, out_axis=1 if args[6] else 0,
            groups=int(args[8]) if len(args) > 8 else 1,
        )  # fmt: skip
        bit |= source.bit
        self._set(
            result, Tag(given.depends | bit, {source.number: parameter.scale}, root=self._root())
        )
        if bias is not None:
            self._bias(bias, result)

    # Attention

    def _between(self, left: Tensor, right: Tensor, result: Tensor) -> None:
        """A product of two activations: scores, or what attention mixes by its weights."""
        a, b = self._tag(left), self._tag(right)
        combined = replace(self._combined([a, b]), rows=None)
        if a.attention is not None and a.attention[0] == "weights":
            self._attended(a.attention, _part(b, right))
            combined = replace(
                combined,
                attention=("mixed", None, None),
                sources=dict.fromkeys(b.sources, UNKNOWN),
                through=b.through,
            )
        else:
            combined = replace(
                combined, attention=("scores", _part(a, left), _part(b, right)), sources={}
            )
        self._set(result, combined)

    def _attended(
        self, weights: tuple[str, Any, Any], values: TensorPart, shared_inside: int = 1
    ) -> None:
        parts: dict[Role, TensorPart] = {"query": weights[1], "key": weights[2], "value": values}
        self.trace.attentions.append(AttentionUse(self.path[-1], parts, shared_inside))

    def _softmax(self, args: Sequence[Any], result: Any) -> None:
        tag = self._tag(args[0])
        scores = (
            tag.attention if tag.attention is not None and tag.attention[0] == "scores" else None
        )
        self._nonlinear(args, result, chooses=scores is None)
        if scores is not None:
            dim = args[1] if len(args) > 1 else -1
            first = dim in (-1, args[0].ndim - 1)
            ends = scores[1:] if first else scores[:0:-1]
            self._set(result, replace(self._tag(result), attention=("weights", *ends)))

    def _attention_kernel(
        self, args: Sequence[Any], keywords: Mapping[str, Any], result: Any
    ) -> None:
        query, key, value = (self._tag(tensor) for tensor in args[:3])
        q, k, v = (_part(self._tag(tensor), tensor) for tensor in args[:3])
        heads, kv_heads = (tensor.shape[-3] if tensor.ndim > 2 else 1 for tensor in args[:2])
        self._attended(("weights", q, k), v, max(1, heads // kv_heads))
        mixed = replace(
            self._combined([query, key, value]), rows=None, attention=("mixed", None, None)
        )
        for one in tensors_in(result if isinstance(result, tuple | list) else (result,)):
            self._set(one, replace(mixed, sources=dict.fromkeys(value.sources, UNKNOWN)))

    # The rest

    def _mark_choosing(self, tag: Tag) -> None:
        for number in tag.sources:
            self.trace.sources[number].chooses = True

    def _nonlinear(self, args: Sequence[Any], result: Any, *, chooses: bool = False) -> None:
        tag = self._tag(args[0])
        if tag is _NOTHING:
            return
        if chooses:
            self._mark_choosing(tag)
        bit = self._use(tag.parameter, "other") if tag.parameter else 0
        attention = tag.attention if tag.attention is None or tag.attention[0] != "mixed" else None
        made = Tag(
            tag.depends | bit, {}, tag.through | frozenset(tag.sources), self._root(), attention=attention,
            is_input=tag.is_input,
        )  # fmt: skip
        for one in tensors_in(result if isinstance(result, tuple | list) else (result,)):
            self._set(one, made)

    def _scalar(self, _: str, args: Sequence[Any], __: Mapping[str, Any], result: Any) -> None:
        self._set(result, Tag(constant=float(args[0]), root=self._root()))

    def _full(self, _: str, args: Sequence[Any], __: Mapping[str, Any], result: Any) -> None:
        if result.numel() == 1 and isinstance(args[1], int | float):
            self._set(result, Tag(constant=float(args[1]), root=self._root()))


def _part(tag: Tag, tensor: Tensor) -> TensorPart:
    return TensorPart(frozenset(tag.sources), tag.rows, tensor.numel())


def _number(value: Any, tag: Tag) -> float | None:
    """The value of a constant: a number of Python, or a tensor of one entry that holds no
    parameter.
    """
    if isinstance(value, bool | int | float):
        return float(value)
    if tag.constant is not None:
        return tag.constant
    if isinstance(value, Tensor) and value.ndim == 0 and tag is _NOTHING:
        return float(value.detach()) if not value.is_meta else UNSEEN
    return None


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [tensor for one in value.values() for tensor in tensors_in(one)]
    if isinstance(value, tuple | list):
        return [tensor for one in value for tensor in tensors_in(one)]
    return []
