"""What each parameter does: one forward pass, followed operation by operation.

Names can be wrong, so the model runs once on the meta device, with tensors that have shapes but no
numbers. That costs no memory, so it is done at the model's real size. Every operation of torch is
seen: which parameter is looked up, which multiplies, which is the gain of a norm and with which
offset, which matrices end in the residual stream and with which constant, which rows of a fused
matrix become queries, keys and values, and how often a layer is used.

Every tensor carries a `Tag`: the outputs it is a sum of (`sources`, each with its constant factor),
everything it depends on (`depends`, a set of bits), and more. The model is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mupscale.reading.layouts import Layouts
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


class Operation(NamedTuple):
    """One call of a torch operator."""

    name: str
    args: Sequence[Any]
    keywords: Mapping[str, Any]
    result: Any


class AttentionStage(NamedTuple):
    """The stage of an attention in a tensor: scores, weights after the softmax, or values."""

    stage: Literal["scores", "weights", "mixed"]
    query: TensorPart | None = None
    key: TensorPart | None = None


@dataclass(frozen=True, slots=True)
class Tag:
    """What is known about one tensor."""

    depends: int = 0
    sources: Mapping[int, float] = field(default_factory=dict[int, float])
    through: frozenset[int] = frozenset()
    """Sources that reached it through an elementwise nonlinearity."""
    root: int = 0
    """Shared by a tensor, its copies and its views: links the statistic of a norm to its input."""
    squared: int = 0
    """The root that this is an elementwise power of."""
    statistic: int = 0
    """The root that this is a mean, sum, variance or norm of."""
    parameter: str | None = None
    vector: bool = False
    """Whether that parameter is a vector, even where it is expanded."""
    scale: float = 1.0
    offset: float = 0.0
    """The tensor is scale · parameter + offset."""
    constant: float | None = None
    norm: int | None = None
    """The normalization that this is the output of, before or after its gain."""
    rows: Rows | None = None
    """For each entry, the row of the single source that it came from."""
    attention: AttentionStage | None = None
    is_input: bool = False


_NOTHING = Tag()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_VIEWS = _words("""
    view _unsafe_view reshape t transpose permute unsqueeze squeeze expand slice select split
    split_with_sizes unbind chunk alias detach clone _to_copy contiguous narrow flatten unflatten
    movedim lift_fresh lift_fresh_copy repeat as_strided _reshape_alias view_copy expand_copy
    squeeze_copy unsqueeze_copy permute_copy t_copy transpose_copy slice_copy select_copy numpy_T mT
    dropout native_dropout repeat_interleave roll flip
""")
_COPIES = _words("alias detach clone _to_copy contiguous lift_fresh lift_fresh_copy dropout")
_STATISTICS = _words("mean sum var var_mean std std_mean linalg_vector_norm norm amax amin prod")
_NONLINEAR = _words("""
    gelu silu relu relu6 leaky_relu sigmoid tanh exp expm1 log log_sigmoid logsigmoid softplus elu
    celu selu mish hardswish hardsigmoid hardtanh threshold square abs log_softmax _log_softmax
    prelu glu erf sin cos
""")
_CHOOSING = _words("sigmoid topk sort argmax argsort max log_softmax _log_softmax")
_SOFTMAX = _words("_softmax _safe_softmax softmax")
_ATTENTION_KERNELS = _words("""
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_fused_attention_overrideable
    _scaled_dot_product_attention_math scaled_dot_product_attention
    _scaled_dot_product_cudnn_attention
""")


class Following(TorchDispatchMode):
    """The mode that sees every operation and tags its results."""

    def __init__(self, trace: ForwardTrace) -> None:
        super().__init__()
        self.trace = trace
        # Tensors are kept alive: the id of a freed tensor could be given to a new one.
        self.tags: dict[int, tuple[Tensor, Tag]] = {}
        self.layouts = Layouts()
        self.path: list[str] = [""]
        self.bits = 0
        self.roots = 0
        handled: Sequence[tuple[Callable[[Operation], None], str]] = [
            (self._add, "add sub rsub"),
            (self._multiply, "mul div"),
            (self._negate, "neg"),
            (self._embedding, "embedding"),
            (self._index, "index index_select"),
            (self._product, "mm bmm matmul _grouped_mm"),
            (self._biased_product, "addmm baddbmm"),
            (self._linear, "linear"),
            (self._convolution, "convolution _convolution"),
            (self._fused_norm, "native_layer_norm _fused_rms_norm"),
            (
                self._group_norm,
                "native_group_norm native_batch_norm _native_batch_norm_legit "
                "_native_batch_norm_legit_no_training",
            ),
            (self._power, "pow"),
            (self._of_statistic, "rsqrt sqrt reciprocal clamp_min clamp"),
            (self._constant, "scalar_tensor full"),
            (self._joined, "cat stack"),
            (self._complex_view, "view_as_complex view_as_real"),
            (self._copy, "copy"),
            (self._elementwise, "masked_fill where"),
            (self._view, " ".join(_VIEWS)),
            (self._statistic, " ".join(_STATISTICS)),
            (self._nonlinear, " ".join(_NONLINEAR | _CHOOSING)),
            (self._softmax, " ".join(_SOFTMAX)),
            (self._attention_kernel, " ".join(_ATTENTION_KERNELS)),
        ]
        self.handlers = {name: handler for handler, names in handled for name in names.split()}

    # The frame

    def entering(self, path: str) -> Callable[..., None]:
        return lambda *_: self.path.append(path)

    def leaving(self, *_: Any) -> None:
        self.path.pop()

    def mark_parameter(self, tensor: Tensor, name: str) -> None:
        vector = sum(size > 1 for size in tensor.shape) <= 1
        self._set(tensor, Tag(parameter=name, root=self._root(), vector=vector))

    def mark_constant(self, tensor: Tensor, value: float) -> None:
        self._set(tensor, Tag(constant=value, root=self._root()))

    def mark_input(self, tensor: Tensor) -> None:
        # Tokens and masks only look up and choose: what is made from them is not an input.
        self._set(tensor, Tag(is_input=tensor.is_floating_point(), root=self._root()))

    def finish(self, output: Any) -> None:
        """Record the outputs: the logits if named, otherwise the first float tensor."""
        tensors = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
        logits = getattr(output, "logits", None)
        first = logits if isinstance(logits, Tensor) else tensors[0] if tensors else None
        for tensor in tensors:
            self.trace.reached |= self._tag(tensor).depends
        if first is not None:
            tag = self._tag(first)
            self.trace.outputs = {**dict.fromkeys(tag.through, UNKNOWN), **tag.sources}
            self._note_sum(tag)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if name.endswith("_") and not name.endswith("__"):  # in place
            name = name.rstrip("_")
        keywords: dict[str, Any] = kwargs or {}
        if name == "_grouped_mm" and args[0].is_meta:
            # The operator accepts only bfloat16; here only the shape is needed.
            result = args[0].new_empty(args[0].shape[0], args[1].shape[-1])
        else:
            result = self.layouts.result(func, args, keywords)
        self.handlers.get(name, self._elementwise)(Operation(name, args, keywords, result))
        return result

    def _root(self) -> int:
        self.roots += 1
        return self.roots

    def _bit(self) -> int:
        self.bits += 1
        return 1 << self.bits

    def _tag(self, value: Any) -> Tag:
        entry = self.tags.get(id(value)) if isinstance(value, Tensor) else None
        return entry[1] if entry else _NOTHING

    def _set(self, tensor: Any, tag: Tag) -> None:
        if isinstance(tensor, Tensor):
            self.tags[id(tensor)] = (tensor, tag)

    def _source(self, kind: SourceKind, parameter: str | None, x: Tag, **more: Any) -> ValueSource:
        number = len(self.trace.sources)
        source = ValueSource(number, self._bit(), kind, parameter, x.sources, x.depends, **more)
        self.trace.sources.append(source)
        return source

    def _use(self, name: str, kind: UseKind, **more: Any) -> int:
        bit = self._bit()
        self.trace.uses.setdefault(name, []).append(Use(kind, bit, **more))
        return bit

    def _other_uses(self, *tags: Tag) -> int:
        """Bits of the parameters among these tags, used in a way that is not followed."""
        bits = 0
        for tag in tags:
            bits |= self._use(tag.parameter, "other") if tag.parameter else 0
        return bits

    def _note_sum(self, tag: Tag) -> None:
        kinds = [self.trace.sources[number].kind for number in tag.sources]
        if len(kinds) > 1 or "table" in kinds:
            self.trace.sums.append(tag.sources)

    # Operations that keep what is known

    def _view(self, op: Operation) -> None:
        given, tag = op.args[0], self._tag(op.args[0])
        if tag is _NOTHING:
            # torch.tensor(8.0) in a forward pass: a number made on the CPU and moved.
            if isinstance(given, Tensor) and given.numel() == 1 and not given.is_meta:
                self._set(op.result, Tag(constant=float(given), root=self._root()))
            return
        several = isinstance(op.result, tuple | list)
        for k, part in enumerate(op.result if several else [op.result]):
            rows = tag.rows
            if rows is not None and op.name not in _COPIES:
                view = view_of(op.name, op.args[1:], op.keywords, k if several else None)
                rows = rows.then(view)
            self._set(part, replace(tag, rows=rows))

    def _complex_view(self, op: Operation) -> None:
        tag = self._tag(op.args[0])
        view = paired if op.name == "view_as_complex" else unpaired
        self._set(op.result, replace(tag, rows=tag.rows and tag.rows.then(view)))

    def _copy(self, op: Operation) -> None:
        for tensor in (op.result, op.args[0]):
            self._set(tensor, self._tag(op.args[1]))

    def _joined(self, op: Operation) -> None:
        tags = [self._tag(tensor) for tensor in op.args[0]]
        together = self._combined(tags)
        for tag in tags:
            if tag.parameter:  # a class token, put in front of the others
                bit = self._use(tag.parameter, "joined")
                together = replace(together, depends=together.depends | bit)
        several = [tag.rows for tag in tags if tag.rows is not None]
        dim = op.keywords.get("dim", op.args[1] if len(op.args) > 1 else 0)
        whole = len(several) == len(tags)
        rows = Rows(lambda: joined_rows(op.name, several, dim)) if whole else None
        self._set(op.result, replace(together, rows=rows))

    def _combined(self, tags: Sequence[Tag]) -> Tag:
        """The tag of a tensor made from several in a way that is not followed."""
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
            depends, sources, through, self._root(),
            attention=attention, rows=rows, is_input=is_input,
        )  # fmt: skip

    def _elementwise(self, op: Operation) -> None:
        """Any unknown operation: the result depends on the inputs with unknown factors."""
        inputs = [*tensors_in(op.args), *tensors_in(tuple(op.keywords.values()))]
        tags = [tag for tensor in inputs if (tag := self._tag(tensor)) is not _NOTHING]
        if not tags:
            return
        combined = self._combined(tags)
        combined = replace(combined, depends=combined.depends | self._other_uses(*tags))
        if op.name in ("masked_fill", "where"):  # a mask does not change what the entries are
            kept = [tag for tag in tags if tag.sources or tag.attention]
            combined = replace(combined, sources=kept[0].sources) if len(kept) == 1 else combined
        for tensor in tensors_in(op.result):
            self._set(tensor, replace(combined, rows=if_shaped(combined.rows, tensor)))

    # Elementwise sums and products

    def _add(self, op: Operation) -> None:
        result, tags = op.result, (self._tag(op.args[0]), self._tag(op.args[1]))
        left, right = tags
        alpha = float(op.keywords.get("alpha", 1))
        signs = {"add": (1.0, alpha), "sub": (1.0, -alpha), "rsub": (-1.0, 1.0)}[op.name]
        numbers = [_number(op.args[k], tag) for k, tag in enumerate(tags)]
        for k, tag in enumerate(tags):
            number = numbers[1 - k]
            if tag.parameter and number is not None:
                offset = tag.offset * signs[k] + signs[1 - k] * number
                self._set(result, replace(tag, scale=tag.scale * signs[k], offset=offset))
                return
        if numbers[0] is not None or numbers[1] is not None:
            kept = left if numbers[0] is None else right
            root = kept.root if kept.statistic else self._root()
            self._set(result, replace(kept, root=root, norm=None))
        elif left.statistic and left.statistic == right.root and not left.parameter:
            self._set(result, right)
        elif right.statistic and right.statistic == left.root:  # x − mean(x)
            self._set(result, left)
        elif left.parameter and not right.parameter:
            self._set(result, self._with_parameter(right, left))
        elif right.parameter and not left.parameter:
            self._set(result, self._with_parameter(left, right))
        else:
            self._set(result, self._sum(left, right, signs, result))

    def _sum(self, left: Tag, right: Tag, signs: tuple[float, float], result: Tensor) -> Tag:
        sources = {number: factor * signs[0] for number, factor in left.sources.items()}
        for number, factor in right.sources.items():
            # The same source twice (the two halves of a rotation): no longer a constant times it.
            sources[number] = UNKNOWN if number in sources else factor * signs[1]
        rows = left.rows if left.rows is not None else right.rows
        return Tag(
            left.depends | right.depends | self._other_uses(left, right),
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

    def _negate(self, op: Operation) -> None:
        self._scaled(self._tag(op.args[0]), -1.0, op.result)

    def _scaled(self, tag: Tag, factor: float, result: Tensor) -> None:
        if tag.parameter:
            scaled = replace(tag, scale=tag.scale * factor, offset=tag.offset * factor)
        elif tag.constant is not None:
            scaled = replace(tag, constant=tag.constant * factor)
        else:
            sources = {number: old * factor for number, old in tag.sources.items()}
            root = tag.root if tag.statistic else self._root()
            scaled = replace(tag, sources=sources, root=root)
        self._set(result, scaled)

    def _multiply(self, op: Operation) -> None:
        result, left, right = op.result, self._tag(op.args[0]), self._tag(op.args[1])
        divides = op.name == "div"
        numbers = [_number(op.args[k], tag) for k, tag in enumerate((left, right))]
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
            self._by_parameter(left, right, result)
        elif left.parameter and not right.parameter and not divides:
            self._by_parameter(right, left, result)
        elif left.parameter and right.parameter:
            self._set(result, Tag(self._other_uses(left, right), root=self._root()))
        else:
            self._elementwise(op)

    def _by_parameter(self, tag: Tag, parameter: Tag, result: Tensor) -> None:
        """A product x · parameter: the gain of the norm that x comes from, or another scale."""
        assert parameter.parameter is not None
        name = parameter.parameter
        offset = parameter.offset / parameter.scale if parameter.scale else 0.0
        norm = None if tag.norm is None else self.trace.norms[tag.norm]
        if norm is not None and norm.gain is None:
            norm.gain, norm.offset = name, offset
            bit = self._use(name, "gain", offset=offset)
            # A constant between a norm and its gain belongs to the norm: x/‖x‖·√n is an RMS norm.
            factor = 1.0
        else:
            bit = self._use(name, "scale", offset=offset, of=frozenset(tag.sources))
            factor = UNKNOWN
        sources = dict.fromkeys(tag.sources, factor)
        depends = tag.depends | bit
        self._set(result, replace(tag, depends=depends, sources=sources, root=self._root()))

    # Norms

    def _power(self, op: Operation) -> None:
        tag = self._tag(op.args[0])
        if tag.statistic:
            self._set(op.result, tag)
        elif tag is not _NOTHING:
            power = replace(self._combined([tag]), depends=tag.depends | self._other_uses(tag))
            through = tag.through | frozenset(tag.sources)
            self._set(op.result, replace(power, sources={}, through=through, squared=tag.root))

    def _statistic(self, op: Operation) -> None:
        tag = self._tag(op.args[0])
        if tag is _NOTHING:
            return
        depends = tag.depends | self._other_uses(tag)
        combined = replace(self._combined([tag]), depends=depends, rows=None)
        for tensor in tensors_in(op.result):
            self._set(tensor, replace(combined, statistic=tag.squared or tag.root))

    def _of_statistic(self, op: Operation) -> None:
        tag = self._tag(op.args[0])
        if tag.statistic:
            self._set(op.result, tag)
        else:
            self._nonlinear(op)

    def _normalized(self, tag: Tag, result: Tensor) -> None:
        self._note_sum(tag)
        source = self._source("norm", None, tag)
        self.trace.norms.append(NormSeen(source.number, self.path[-1], tag.sources))
        normed = Tag(
            tag.depends | source.bit,
            {source.number: 1.0},
            root=self._root(),
            norm=len(self.trace.norms) - 1,
            rows=tag.rows,
            attention=tag.attention,
            is_input=tag.is_input,
        )
        self._set(result, normed)

    def _with_gain(self, x: Tensor, result: Tensor, gain: Any, bias: Any) -> None:
        self._normalized(self._tag(x), result)
        if self._tag(gain).parameter:
            self._by_parameter(self._tag(result), self._tag(gain), result)
        if self._tag(bias).parameter:
            self._set(result, self._with_parameter(self._tag(result), self._tag(bias)))

    def _fused_norm(self, op: Operation) -> None:
        args = op.args
        gain = args[2] if len(args) > 2 else op.keywords.get("weight")
        bias = args[3] if len(args) > 3 and op.name == "native_layer_norm" else None
        self._with_gain(args[0], op.result[0], gain, bias)

    def _group_norm(self, op: Operation) -> None:
        self._with_gain(op.args[0], op.result[0], op.args[1], op.args[2])

    # Matrices and tables

    def _embedding(self, op: Operation) -> None:
        table = self._tag(op.args[0])
        if table.parameter is None:
            self._elementwise(op)
            return
        source = self._source("table", table.parameter, _NOTHING)
        bit = self._use(table.parameter, "lookup", source=source.number) | source.bit
        depends = bit | self._tag(op.args[1]).depends
        self._set(op.result, Tag(depends, {source.number: table.scale}, root=self._root()))

    def _index(self, op: Operation) -> None:
        """table[tokens] and index_select look up rows as nn.Embedding does; other indexing is not
        followed.

        An index that depends on a parameter is a choice that the model makes, such as of experts.
        """
        table, index = op.args[0], op.args[-1]
        if op.name == "index":
            index = index[0] if len(index) == 1 else None
        elif op.args[1] not in (0, -table.ndim):
            index = None
        looks_up = (
            isinstance(index, Tensor)
            and not index.is_floating_point()
            and index.dtype != torch.bool
            and not self._tag(index).depends
            and table.ndim == 2
            and self._tag(table).parameter is not None
        )
        if looks_up:
            self._embedding(op._replace(args=(table, index)))
        else:
            self._elementwise(op)

    def _linear(self, op: Operation) -> None:
        self._multiplied(op.args[0], op.args[1].mT, op)
        if len(op.args) > 2 and op.args[2] is not None:
            self._bias(op.args[2], op.result)

    def _biased_product(self, op: Operation) -> None:
        bias, left, right = op.args[:3]
        alpha = float(op.keywords.get("alpha", 1))
        self._multiplied(left, right, op)
        if alpha != 1:
            self._scaled(self._tag(op.result), alpha, op.result)
        if op.keywords.get("beta", 1) != 0:
            self._bias(bias, op.result)

    def _bias(self, bias: Tensor, result: Tensor) -> None:
        tag, own = self._tag(bias), self._tag(result)
        if tag.parameter:
            bit = self._use(tag.parameter, "bias", of=frozenset(own.sources))
            self._set(result, replace(own, depends=own.depends | bit))
        elif tag is not _NOTHING:
            summed = self._sum(own, tag, (1.0, 1.0), result)
            self._set(result, replace(summed, attention=own.attention, rows=own.rows))

    def _product(self, op: Operation) -> None:
        self._multiplied(op.args[0], op.args[1], op)

    def _multiplied(self, left: Tensor, right: Tensor, op: Operation) -> None:
        a, b = self._tag(left), self._tag(right)
        if op.name == "linear" and right._base is not None:
            b = self._tag(right._base)  # the view was made outside of what is followed
        if b.parameter and not a.parameter:
            self._matrix(a, b, right, op.result, outputs=-1)
        elif a.parameter and not b.parameter:
            self._matrix(b, a, left, op.result, outputs=-2)
        elif a.parameter and b.parameter:
            self._set(op.result, Tag(self._other_uses(a, b), root=self._root()))
        else:
            self._between(left, right, op.result)

    def _matrix(self, x: Tag, weight: Tag, matrix: Tensor, result: Tensor, outputs: int) -> None:
        """A product x · W or W · x: `outputs` is the axis of the result with the outputs of W."""
        assert weight.parameter is not None
        self._note_sum(x)
        count, strides, offset = matrix.shape[outputs], matrix.stride(), matrix.storage_offset()
        # Where only a part of the parameter is used, its first row.
        start = offset // strides[outputs] if strides[outputs] else 0
        mixed = x.attention is not None and x.attention.stage == "mixed"
        source = self._source(
            "matrix", weight.parameter, x, from_input=self._is_from_input(x),
            from_attention=mixed, outputs=count, through=x.through,
        )  # fmt: skip
        axis = -1 if (outputs == -1) == (strides[-1] == 1) else -2
        bit = self._use(weight.parameter, "product", source=source.number, out_axis=axis)
        rows = Rows(lambda: numbered(start, count, outputs, result.shape))
        depends, sources = x.depends | bit | source.bit, {source.number: weight.scale}
        self._set(result, Tag(depends, sources, root=self._root(), rows=rows))

    def _is_from_input(self, tag: Tag) -> bool:
        """Whether only norms stand between the model's own input and this."""
        kinds = [self.trace.sources[number].kind for number in tag.sources]
        return tag.is_input and all(kind == "norm" for kind in kinds)

    def _convolution(self, op: Operation) -> None:
        args, x, kernel = op.args, self._tag(op.args[0]), self._tag(op.args[1])
        if kernel.parameter is None:
            self._elementwise(op)
            return
        self._note_sum(x)
        from_input = self._is_from_input(x)
        source = self._source(
            "matrix", kernel.parameter, x, from_input=from_input, through=x.through
        )
        bit = self._use(
            kernel.parameter, "convolution", source=source.number, out_axis=1 if args[6] else 0,
            groups=int(args[8]) if len(args) > 8 else 1,
        )  # fmt: skip
        depends, sources = x.depends | bit | source.bit, {source.number: kernel.scale}
        self._set(op.result, Tag(depends, sources, root=self._root()))
        if args[2] is not None:
            self._bias(args[2], op.result)

    # Attention

    def _between(self, left: Tensor, right: Tensor, result: Tensor) -> None:
        """A product of two activations: scores, or values mixed by attention weights."""
        a, b = self._tag(left), self._tag(right)
        combined = replace(self._combined([a, b]), rows=None)
        if a.attention is not None and a.attention.stage == "weights":
            self._attended(a.attention, _part(b, right))
            mixed, sources = AttentionStage("mixed"), dict.fromkeys(b.sources, UNKNOWN)
            combined = replace(combined, attention=mixed, sources=sources, through=b.through)
        else:
            scores = AttentionStage("scores", _part(a, left), _part(b, right))
            combined = replace(combined, attention=scores, sources={})
        self._set(result, combined)

    def _attended(self, weights: AttentionStage, values: TensorPart, shared: int = 1) -> None:
        assert weights.query is not None
        assert weights.key is not None
        self.trace.attentions.append(
            AttentionUse({"query": weights.query, "key": weights.key, "value": values}, shared)
        )

    def _softmax(self, op: Operation) -> None:
        stage = self._tag(op.args[0]).attention
        scores = stage if stage is not None and stage.stage == "scores" else None
        self._nonlinear(op, chooses=scores is None)
        if scores is not None:
            dim = op.args[1] if len(op.args) > 1 else -1
            over_keys = dim in (-1, op.args[0].ndim - 1)
            ends = (scores.query, scores.key) if over_keys else (scores.key, scores.query)
            weights = AttentionStage("weights", *ends)
            self._set(op.result, replace(self._tag(op.result), attention=weights))

    def _attention_kernel(self, op: Operation) -> None:
        tags = [self._tag(tensor) for tensor in op.args[:3]]
        q, k, v = (_part(tag, tensor) for tag, tensor in zip(tags, op.args[:3], strict=True))
        heads, kv_heads = (tensor.shape[-3] if tensor.ndim > 2 else 1 for tensor in op.args[:2])
        self._attended(AttentionStage("weights", q, k), v, max(1, heads // kv_heads))
        mixed, sources = AttentionStage("mixed"), dict.fromkeys(tags[2].sources, UNKNOWN)
        combined = replace(self._combined(tags), rows=None, attention=mixed, sources=sources)
        for tensor in tensors_in(op.result):
            self._set(tensor, combined)

    # The rest

    def _nonlinear(self, op: Operation, *, chooses: bool | None = None) -> None:
        tag = self._tag(op.args[0])
        if tag is _NOTHING:
            return
        if op.name in _CHOOSING if chooses is None else chooses:
            for number in tag.sources:
                self.trace.sources[number].chooses = True
        keeps = tag.attention is not None and tag.attention.stage != "mixed"
        nonlinear = Tag(
            tag.depends | self._other_uses(tag),
            through=tag.through | frozenset(tag.sources),
            root=self._root(),
            attention=tag.attention if keeps else None,
            is_input=tag.is_input,
        )
        for tensor in tensors_in(op.result):
            self._set(tensor, nonlinear)

    def _constant(self, op: Operation) -> None:
        value = op.args[0] if op.name == "scalar_tensor" else op.args[1]
        if op.result.numel() == 1 and isinstance(value, int | float):
            self._set(op.result, Tag(constant=float(value), root=self._root()))


def _part(tag: Tag, tensor: Tensor) -> TensorPart:
    return TensorPart(frozenset(tag.sources), tag.rows, tensor.numel())


def _number(value: Any, tag: Tag) -> float | None:
    """The value of a constant: a Python number, or a tensor of one entry without a parameter."""
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
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []
