"""One model, one seed, a few real optimizer steps: every norm that a coordinate check looks at."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from mupscale.checks.norming import SHOWN, WarmNorms, WeightSizes
from mupscale.checks.parts import Base, CheckedPart, parts_of
from mupscale.checks.places import Places
from mupscale.checks.tracing import NormTrace, rms, tracing
from mupscale.data import Batch, Batches, open_corpus
from mupscale.data.corpus import Tokens
from mupscale.errors import DimensionError, NonFiniteError, OptionError, UnknownNameError
from mupscale.planning import Plan, plan
from mupscale.reading import ModelFacts, ParameterFact, Reading, read
from mupscale.reading.structure import bare
from mupscale.theory import RUNNABLE, Rule, optimizer_named, rule_named
from mupscale.training.config import OptimizerConfig
from mupscale.training.preparation import optimizers

Build = Callable[..., nn.Module]
Planner = Callable[[nn.Module, nn.Module], Plan]
Loss = Callable[[nn.Module, Any], Tensor]
"""Of a model and a batch: a `Batch` of tokens, or what the caller's own function of the seed
makes.
"""
Making = Callable[[int], Any]
"""A batch for each seed, of whatever kind the loss takes."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the steps are taken with: base values, and one batch a seed, which is used at every
    step.

    Epsilon is so small that it plays no part, as in the paper; give your own to have that checked
    too.
    """

    optimizer: str = "adamw"
    lr: float = 2**-16
    weight_decay: float = 0.0
    eps: float | None = 1e-12
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    std: float = 0.02
    batch: int = 4
    sequence: int = 128
    tokenizer: str | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        if optimizer_named(self.optimizer).name not in RUNNABLE:
            raise UnknownNameError("optimizer for a check", self.optimizer, RUNNABLE)
        if self.eps is not None and not 0 < self.eps < math.inf:
            raise OptionError(f"eps={self.eps} must be a finite number above 0.")
        for name in ("lr", "std"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise OptionError(
                    f"{name}={value} must be a finite number above 0, or nothing moves."
                )
        for name in ("batch", "sequence"):
            if getattr(self, name) < 1:
                raise DimensionError(f"{name}={getattr(self, name)} must be at least 1.")

    def optimizer_config(self, name: str) -> OptimizerConfig:
        eps = None if optimizer_named(name).eps is None else self.eps
        return OptimizerConfig(
            name=name, lr=self.lr, weight_decay=self.weight_decay, eps=eps, betas=self.betas, momentum=self.momentum,
            std=self.std,
        )  # fmt: skip


@dataclass(frozen=True)
class Probe:
    """A job: which model, and what is done with it."""

    build: Build
    name: str
    """The argument of `build` that is varied."""
    value: int
    base: int
    seed: int
    steps: int
    rule: Rule
    setup: Setup
    data: str | Tokens | Making
    planner: Planner | None = None
    loss: Loss | None = None
    reading: Reading = field(default_factory=Reading)
    """What the caller says about the model."""

    def model(self, value: int) -> nn.Module:
        built = self.build(**{self.name: value})
        if not isinstance(built, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(
                f"build({self.name}={value}) returned a value of type {type(built).__name__}. "
                "Return an nn.Module."
            )
        return built

    def plan(self, model: nn.Module, base: nn.Module, rule: Rule, reading: Reading) -> Plan:
        return plan(model, base=base, optimizer=self.setup.optimizer, rule=rule, reading=reading)


def run_probe(probe: Probe) -> dict[str, Any]:
    """Take the steps and measure. Plain values only: this is a line of a ledger."""
    model, base = probe.model(probe.value), probe.model(probe.base)
    planned = probe.planner or (
        lambda model, base: probe.plan(model, base, probe.rule, probe.reading)
    )
    made = planned(model, base)
    # A planner may say roles itself: what is measured must be what it planned.
    reading = made.reading or probe.reading
    ideal = rule_named("gqa-mup").with_(depth=made.rule.depth)
    right = (
        made
        if probe.planner is None and probe.rule == ideal
        else probe.plan(model, base, ideal, reading)
    )
    facts = read(model, reading=reading)
    model = _materialized(
        model, probe
    )  # after it was read: memory that was only set aside holds no model's numbers
    made.initialize_(model, std=probe.setup.std, seed=probe.seed)
    model.to(
        _device(probe.setup.device)
    ).eval()  # without dropout: two passes over a batch differ by the step alone
    parts = parts_of(facts, made, right, Base(lr=probe.setup.lr, std=probe.setup.std))
    measuring = _Measuring(probe, model, facts, parts, _batch(probe, facts))
    measuring.run(optimizers(made, model, probe.setup.optimizer_config(made.optimizer)))
    return measuring.result(made)


def _materialized(model: nn.Module, probe: Probe) -> nn.Module:
    if any(buffer.is_meta for buffer in model.buffers()):
        raise OptionError(
            f"build({probe.name}={probe.value}) returned a model on the meta device, with buffers "
            "that only the model "
            "can compute. Build it on a real device: a check trains it."
        )
    return model.to_empty(device="cpu") if any(p.is_meta for p in model.parameters()) else model


def _device(name: str) -> torch.device:
    return torch.device(
        ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    )


def _batch(probe: Probe, facts: ModelFacts) -> Any:
    """What the loss takes, on the device: of the caller's own making, or tokens that the model
    knows.
    """
    made = probe.data(probe.seed) if callable(probe.data) else _tokens(probe, probe.data, facts)
    device = _device(probe.setup.device)
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), made)


def _tokens(probe: Probe, data: str | Tokens, facts: ModelFacts) -> Batch:
    setup = probe.setup
    source = open_corpus(data, tokenizer=setup.tokenizer) if isinstance(data, str) else data
    batch = Batches(source, batch=setup.batch, sequence=setup.sequence, seed=probe.seed).at(0)
    tables = [
        fact.fan_in
        for fact in facts.parameters.values()
        if fact.role == "embedding" and _is_table(fact)
    ]
    if not tables and probe.loss is None:
        raise OptionError(
            "the model has no token embedding, and a check trains on tokens unless told otherwise. "
            "Give data=, a "
            "function of the seed that makes a batch, and loss=, a function of the model and that "
            "batch."
        )
    # The largest table holds the tokens. A small one beside it (the segments of BERT) is for
    # something else.
    vocabulary, largest = max(tables, default=None), int(max(tokens.max() for tokens in batch))
    if vocabulary is not None and largest >= vocabulary:
        raise DimensionError(
            f"the data hold the token {largest}, and the model has a vocabulary of {vocabulary}. "
            "Build it with a "
            "larger one, or choose another tokenizer."
        )
    return batch


def _is_table(fact: ParameterFact) -> bool:
    """Whether an embedding has a row for each input, as one that is looked up: a projection of
    patches has not.
    """
    return not fact.kernel and fact.out_axis == len(fact.shape) - 1


def cross_entropy_of(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a language model that gives logits, or an object or tuple that holds them."""
    output: Any = model(batch.inputs)
    logits = getattr(output, "logits", output[0] if isinstance(output, tuple) else output)
    return cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten())


class _Measuring:
    """The steps of a probe, and what was seen at each."""

    def __init__(
        self,
        probe: Probe,
        model: nn.Module,
        facts: ModelFacts,
        parts: Sequence[CheckedPart],
        batch: Any,
    ) -> None:
        self.probe, self.model, self.facts, self.batch = probe, model, facts, batch
        self.tensors: dict[str, Tensor] = dict(bare(model).named_parameters())
        self.parts = [part for part in parts if self.tensors[part.name].requires_grad]
        self.modules = dict(bare(model).named_modules())
        self.places = Places.of(facts, self.modules)
        self.single = _single(self.parts, self.modules)
        self.paths = dict.fromkeys([*self.single, *self.places.paths])
        # Only of a language model's own batch is it known how many tokens there are.
        self.tokens: int | None = batch.inputs.numel() if probe.loss is None else None
        self.rows: dict[str, Tensor] = {}
        self.scratch: dict[torch.Size, Tensor] = {}
        self.losses: list[float] = []
        self.initial: list[WeightSizes] = []
        self.series: dict[str, list[list[float | None]]] = {}
        self.maps: dict[str, list[list[float]]] = {}
        self.of_steps = WarmNorms()

    def run(self, steppers: Sequence[Optimizer]) -> None:
        """Steps on one batch, and one more forward pass to see what the last of them did."""
        start, before = self._weights(), self._weights()
        trace = self._forward(step=0, backward=True)
        self.rows = _rows_in_use(self.parts, self.tensors)
        self.initial = self._sizes(WarmNorms(method="gram"), start.__getitem__)
        for step in range(1, self.probe.steps + 1):
            for name, kept in before.items():
                kept.copy_(self.tensors[name].detach())
            for optimizer in steppers:
                optimizer.step()
                optimizer.zero_grad()
            earlier, trace = trace, self._forward(step, backward=step < self.probe.steps)
            self._note_weights(step, before, start)
            self._note_activations(earlier, trace, before)

    def _weights(self) -> dict[str, Tensor]:
        return {part.name: self.tensors[part.name].detach().clone() for part in self.parts}

    def _forward(self, step: int, *, backward: bool) -> NormTrace:
        with (
            tracing(self.modules, self.paths, self.tokens) as trace,
            torch.set_grad_enabled(backward),
        ):
            loss = (self.probe.loss or cross_entropy_of)(self.model, self.batch)
        self._note_loss(loss, step)
        for name, values in self.places.measured(trace).items():
            self.maps.setdefault(name, []).append([_short(value) for value in values])
        if backward:
            loss.backward()
        return trace

    def _note_weights(
        self, step: int, before: Mapping[str, Tensor], start: Mapping[str, Tensor]
    ) -> None:
        """The norm of the step; after the last, also that of all of them together, which costs as
        much again.
        """
        steps = self._sizes(self.of_steps, self._change_since(before))
        self._note("step", steps)
        if step == self.probe.steps:
            warm = WarmNorms(SHOWN, starts=dict(self.of_steps.starts))
            self._note(
                "moved", steps if step == 1 else self._sizes(warm, self._change_since(start))
            )

    def _change_since(self, then: Mapping[str, Tensor]) -> Callable[[str], Tensor]:
        """The change of a parameter, in memory that the next one of its shape takes over."""

        def change(name: str) -> Tensor:
            now = self.tensors[name].detach()
            room = self.scratch.setdefault(now.shape, torch.empty_like(now))
            return torch.sub(now, then[name], out=room)

        return change

    def _note_loss(self, value: Tensor, step: int) -> None:
        number = float(value.detach())
        if not math.isfinite(number):
            raise NonFiniteError(
                f"the loss is {number} at step {step} of "
                f"build({self.probe.name}={self.probe.value}), seed "
                f"{self.probe.seed}: it diverged. Take a smaller lr than {self.probe.setup.lr:g}."
            )
        self.losses.append(_short(number))

    def _sizes(self, norms: WarmNorms, tensor_of: Callable[[str], Tensor]) -> list[WeightSizes]:
        """Norms of every part, with its multiplier. Of a table and a vector, root mean squares."""
        found: list[WeightSizes] = []
        for key, part in enumerate(self.parts):
            tensor = tensor_of(part.name)
            if part.kind == "matrix":
                one = norms.of(key, part.of(tensor))
            else:  # over the rows in use of a row's length, or over the entries
                size = rms(tensor) if part.kind == "vector" else self._row_length(part, tensor)
                one = WeightSizes(size, size)
            found.append(
                WeightSizes(one.spectral * part.multiplier, one.frobenius * part.multiplier)
            )
        return found

    def _row_length(self, part: CheckedPart, tensor: Tensor) -> float:
        return rms(part.of(tensor)[self.rows[part.name]]) * part.n_out**0.5

    def _note(self, name: str, sizes: Sequence[WeightSizes]) -> None:
        self.series.setdefault(name, []).append([_short(size.spectral) for size in sizes])
        self.series.setdefault(f"{name}_frobenius", []).append(
            [_short(size.frobenius) for size in sizes]
        )

    def _note_activations(
        self, earlier: NormTrace, now: NormTrace, before: Mapping[str, Tensor]
    ) -> None:
        columns: dict[str, list[float | None]] = {name: [] for name in ("h", "dh", "dw_x", "w_dx")}
        for part in self.parts:
            numbers = self._activations(part, earlier, now, before[part.name])
            for name, column in columns.items():
                column.append(_short(numbers[name]) if name in numbers else None)
        for name, column in columns.items():
            self.series.setdefault(name, []).append(column)

    def _activations(
        self, part: CheckedPart, earlier: NormTrace, now: NormTrace, before: Tensor
    ) -> dict[str, float]:
        """Δh = ΔW·x + W·Δx, with x before the step and W after it, so that the two add up to Δh."""
        path, after = part.module, self.tensors[part.name].detach()
        if part.kind == "vector" or path not in self.single or after.ndim > 2:
            return {}
        if not now.comparable(earlier, path):
            return {}
        h = part.outputs(now.outputs[path], 1)
        found = {"h": rms(h), "dh": rms(h - part.outputs(earlier.outputs[path], 1))}
        if part.kind == "table" or path not in now.inputs or now.inputs[path].shape[1] != part.n_in:
            return found  # what a table takes in are tokens, which are not recorded
        x = earlier.inputs[path]
        W, dW = part.of(after).to(x.dtype), part.of(after - before).to(x.dtype)
        found["dw_x"] = rms(x @ dW.mT) * part.hooked
        found["w_dx"] = rms((now.inputs[path] - x) @ W.mT) * part.hooked
        return found

    def result(self, made: Plan) -> dict[str, Any]:
        fields = ("name", "role", "kind", "layer", "n_out", "n_in", "repetitions")
        sizes = ("wanted", "predicted_start", "predicted_step")
        parts: dict[str, list[Any]] = {
            name: [getattr(part, name) for part in self.parts] for name in fields
        }
        parts |= {name: [_short(getattr(part, name)) for part in self.parts] for name in sizes}
        parts |= {
            "start": [_short(size.spectral) for size in self.initial],
            "start_frobenius": [_short(size.frobenius) for size in self.initial],
        }
        # Of the matrices themselves: a model without a config has r, too.
        r = max((fact.repetitions for fact in self.facts.parameters.values()), default=1)
        dimensions = {"r": r, "width": self.facts.width, "depth": self.facts.depth}
        depth = max(self.facts.depth, 1)  # a model without blocks has no branches to scale
        beta = float(made.rule.beta(depth)) if made.rule.depth != "none" else 1.0
        return {
            "value": self.probe.value, "seed": self.probe.seed, **dimensions, "beta": _short(beta),
            "tied": self.facts.tied_readout,
            "losses": self.losses, "parts": parts, "series": self.series, "maps": self.maps,
        }  # fmt: skip


_EXPERTS = ("expert_in", "expert_out")
"""Which tokens reach them changes from step to step, so that activations of two steps are not of
the same tokens.
"""


def _single(parts: Sequence[CheckedPart], modules: Mapping[str, nn.Module]) -> list[str]:
    """Modules that are one matrix: what comes out of them is that matrix's output.

    One that holds several, or other modules beside it, returns something else, which says nothing
    of either.
    """
    owners: dict[str, set[str]] = {}
    for part in parts:
        if part.kind != "vector" and part.role not in _EXPERTS:
            owners.setdefault(part.module, set()).add(part.name)
    return [
        path
        for path, names in owners.items()
        if len(names) == 1 and not list(modules[path].children())
    ]


def _rows_in_use(parts: Sequence[CheckedPart], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of each table, the rows that this batch looks up: the others do not move.

    All of them where none has a gradient yet, as behind a gate that starts at zero.
    """
    found: dict[str, Tensor] = {}
    for part in (part for part in parts if part.kind == "table"):
        tensor = tensors[part.name]
        gradient = part.of(tensor if tensor.grad is None else tensor.grad).detach()
        used = (
            gradient.abs().amax(dim=1).nonzero().flatten()
            if tensor.grad is not None
            else gradient.new_empty(0)
        )
        found[part.name] = used if len(used) else torch.arange(len(gradient), device=tensor.device)
    return found


def _short(value: float) -> float:
    """Five digits: more than the norms have, and half the size of the file."""
    return float(f"{value:.5g}")
