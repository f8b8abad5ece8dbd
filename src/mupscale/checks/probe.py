"""One model, one seed, a few optimizer steps: every norm that a coordinate check needs."""

import dataclasses
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
from mupscale.reading import EXPERTS, ModelFacts, ParameterFact, Reading, read, read_with_base
from mupscale.reading.structure import bare
from mupscale.theory import RUNNABLE, Rule, optimizer_named, rule_named
from mupscale.training.config import OptimizerConfig
from mupscale.training.devices import device_named
from mupscale.training.preparation import optimizers

Build = Callable[..., nn.Module]
Planner = Callable[[nn.Module, nn.Module], Plan]
Loss = Callable[[nn.Module, Any], Tensor]
"""A function of the model and a batch: a `Batch` of tokens, or what your own `data` makes."""
Making = Callable[[int], Any]
"""A function of the seed that makes a batch of any kind."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How each model is trained: base values as for a plan, and one batch per seed that is used at
    every step.

    The default epsilon is so small that it has no effect, as in the paper. Set your own to have it
    checked too.
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
    # Not part of the repr, from which the command line derives the name of a check's folder.
    seeds: int | Sequence[int] = field(default=5, repr=False)
    "How many seeds, or which; at least two."
    steps: int = field(default=4, repr=False)
    data: str | Tokens | Making = field(default="python-stdlib", repr=False, compare=False)
    "A corpus by name; an array of tokens; or a function of the seed that makes a batch."
    loss: Loss | None = field(default=None, repr=False)
    "A function of the model and a batch (default: cross-entropy of the next token)."
    planner: Planner | None = field(default=None, repr=False)
    "A function (model, base) → plan that replaces the rule's plan."
    base: int | None = field(default=None, repr=False)
    "Value that counts as tuned (default: smallest width, depth 1 or most key/value heads)."

    def __post_init__(self) -> None:
        if optimizer_named(self.optimizer).name not in RUNNABLE:
            raise UnknownNameError("optimizer for a check", self.optimizer, RUNNABLE)
        if self.eps is not None and not 0 < self.eps < math.inf:
            raise OptionError(f"eps={self.eps} must be a finite number above 0.")
        for name in ("lr", "std"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise OptionError(f"{name}={value} must be a finite number above 0.")
        for name in ("batch", "sequence", "steps"):
            if getattr(self, name) < 1:
                raise DimensionError(f"{name}={getattr(self, name)} must be at least 1.")
        if callable(self.data) and self.loss is None:
            raise OptionError("data is a function that makes batches. Give loss= for them too.")

    def values(self) -> dict[str, Any]:
        """The plain values, as a check's record keeps them."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.repr}

    def optimizer_config(self, name: str) -> OptimizerConfig:
        return OptimizerConfig(
            name=name,
            lr=self.lr,
            weight_decay=self.weight_decay,
            eps=None if optimizer_named(name).eps is None else self.eps,
            betas=self.betas,
            momentum=self.momentum,
            std=self.std,
        )


@dataclass(frozen=True)
class Probe:
    """One run of a check."""

    build: Build
    name: str
    """The argument of `build` that is varied."""
    value: int
    seed: int
    rule: Rule
    setup: Setup
    reading: Reading = field(default_factory=Reading)

    def model(self, value: int) -> nn.Module:
        built = self.build(**{self.name: value})
        if not isinstance(built, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(
                f"build({self.name}={value}) returned a value of type {type(built).__name__}. "
                "Return an nn.Module."
            )
        return built


@dataclass(frozen=True)
class _Planned:
    """A model with its facts, the plan in use, and the plan that theory asks for."""

    model: nn.Module
    facts: ModelFacts
    plan: Plan
    ideal: Plan

    @staticmethod
    def of(probe: Probe) -> "_Planned":
        """Model and base are read once each, and once together if they have the same size."""
        setup, reading, rule, own = probe.setup, probe.reading, probe.rule, None
        model = probe.model(probe.value)
        base = model if setup.base in (None, probe.value) else probe.model(setup.base)
        if setup.planner is not None:
            own = setup.planner(model, base)
            # The planner may name roles itself. Measure the model as it was planned.
            reading, rule = own.reading or reading, own.rule
        if base is model:
            facts = base_facts = read(model, reading=reading)
        else:
            facts, base_facts = read_with_base(model, base, reading=reading)

        def planned(rule: Rule) -> Plan:
            return plan(
                facts, base=base_facts, optimizer=setup.optimizer, rule=rule, reading=reading
            )

        own = own or planned(rule)
        best = rule_named("gqa-mup").with_(depth=rule.depth)
        ideal = own if setup.planner is None and rule == best else planned(best)
        return _Planned(model, facts, own, ideal)


def run_probe(probe: Probe) -> dict[str, Any]:
    """Train and measure. Returns plain values only: the result is a line of a JSON file."""
    setup, planned = probe.setup, _Planned.of(probe)
    # Allocated only now: a model on the meta device has to be read before its memory, which holds
    # arbitrary numbers, could be taken for weights.
    model = _materialized(planned.model, probe)
    planned.plan.initialize_(model, std=setup.std, seed=probe.seed)
    # Without dropout, so that two passes over a batch differ by the step alone.
    model.to(device_named(setup.device)).eval()
    base = Base(lr=setup.lr, std=setup.std)
    parts = parts_of(planned.facts, planned.plan, planned.ideal, base)
    measuring = _Measuring(probe, model, planned.facts, parts)
    measuring.run(optimizers(planned.plan, model, setup.optimizer_config(planned.plan.optimizer)))
    return measuring.result(planned.plan)


def _materialized(model: nn.Module, probe: Probe) -> nn.Module:
    if any(buffer.is_meta for buffer in model.buffers()):
        raise OptionError(
            f"build({probe.name}={probe.value}) returned a model on the meta device, with buffers "
            "that only the model can compute. Build it on a real device: a check trains it."
        )
    return model.to_empty(device="cpu") if any(p.is_meta for p in model.parameters()) else model


def _batch(probe: Probe, facts: ModelFacts) -> Any:
    """The batch of a seed, on the device."""
    setup, data = probe.setup, probe.setup.data
    batch = data(probe.seed) if callable(data) else _tokens(probe, data, facts)
    device = device_named(setup.device)
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)


def _tokens(probe: Probe, data: str | Tokens, facts: ModelFacts) -> Batch:
    setup = probe.setup
    source = open_corpus(data, tokenizer=setup.tokenizer) if isinstance(data, str) else data
    batch = Batches(source, batch=setup.batch, sequence=setup.sequence, seed=probe.seed).at(0)
    embeddings = (fact for fact in facts.parameters.values() if fact.role == "embedding")
    tables = [fact.fan_in for fact in embeddings if _is_table(fact)]
    if not tables and setup.loss is None:
        raise OptionError(
            "the model has no token embedding, but a check trains on tokens by default. Give "
            "data=, a function of the seed that makes a batch, and loss=, a function of the model "
            "and that batch."
        )
    # The largest table holds the tokens. A smaller one beside it, such as BERT's segments, is for
    # something else.
    vocabulary, largest = max(tables, default=None), int(max(tokens.max() for tokens in batch))
    if vocabulary is not None and largest >= vocabulary:
        raise DimensionError(
            f"the data hold the token {largest}, but the model's vocabulary is {vocabulary}. Build "
            "it with a larger one, or choose another tokenizer."
        )
    return batch


def _is_table(fact: ParameterFact) -> bool:
    """Whether an embedding has one row per input, unlike a projection of patches."""
    return not fact.kernel and fact.out_axis == len(fact.shape) - 1


def cross_entropy_of(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of a language model that returns logits, or an object or tuple that holds them."""
    output: Any = model(batch.inputs)
    logits = getattr(output, "logits", output[0] if isinstance(output, tuple) else output)
    return cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten())


class _Measuring:
    """The steps of a run, and the norms at each."""

    def __init__(
        self, probe: Probe, model: nn.Module, facts: ModelFacts, parts: Sequence[CheckedPart]
    ) -> None:
        self.probe, self.model, self.facts = probe, model, facts
        self.batch = batch = _batch(probe, facts)
        self.tensors: dict[str, Tensor] = dict(bare(model).named_parameters())
        self.parts = [part for part in parts if self.tensors[part.name].requires_grad]
        self.modules = dict(bare(model).named_modules())
        self.places = Places.of(facts, self.modules)
        self.single = _single(self.parts, self.modules)
        self.paths = dict.fromkeys([*self.single, *self.places.paths])
        # Only the default batch is known to consist of tokens.
        self.tokens: int | None = batch.inputs.numel() if probe.setup.loss is None else None
        self.rows: dict[str, Tensor] = {}
        self.scratch: dict[torch.Size, Tensor] = {}
        self.losses: list[float] = []
        self.initial: list[WeightSizes] = []
        self.series: dict[str, list[list[float | None]]] = {}
        self.maps: dict[str, list[list[float]]] = {}
        self.of_steps = WarmNorms()

    def run(self, running: Sequence[Optimizer]) -> None:
        """Train on one batch, with one more forward pass to see the effect of the last step."""
        start, before = self._weights(), self._weights()
        trace = self._forward(step=0, backward=True)
        self.rows = _rows_in_use(self.parts, self.tensors)
        self.initial = self._sizes(WarmNorms(method="gram"), start.__getitem__)
        for step in range(1, self.probe.setup.steps + 1):
            for name, kept in before.items():
                kept.copy_(self.tensors[name].detach())
            for optimizer in running:
                optimizer.step()
                optimizer.zero_grad()
            earlier, trace = trace, self._forward(step, backward=step < self.probe.setup.steps)
            self._note_weights(step, before, start)
            self._note_activations(earlier, trace, before)

    def _weights(self) -> dict[str, Tensor]:
        return {part.name: self.tensors[part.name].detach().clone() for part in self.parts}

    def _forward(self, step: int, *, backward: bool) -> NormTrace:
        with (
            tracing(self.modules, self.paths, self.tokens) as trace,
            torch.set_grad_enabled(backward),
        ):
            loss = (self.probe.setup.loss or cross_entropy_of)(self.model, self.batch)
        self._note_loss(loss, step)
        for name, values in self.places.measured(trace).items():
            self.maps.setdefault(name, []).append([_short(value) for value in values])
        if backward:
            loss.backward()
        return trace

    def _note_weights(
        self, step: int, before: Mapping[str, Tensor], start: Mapping[str, Tensor]
    ) -> None:
        """The norm of the step; after the last step also that of the total change, which costs as
        much again.
        """
        steps = self._sizes(self.of_steps, self._change_since(before))
        self._note("step", steps)
        if step == self.probe.setup.steps:
            warm = WarmNorms(SHOWN, starts=dict(self.of_steps.starts))
            self._note(
                "moved", steps if step == 1 else self._sizes(warm, self._change_since(start))
            )

    def _change_since(self, then: Mapping[str, Tensor]) -> Callable[[str], Tensor]:
        """The change of a parameter, in memory that is reused for the next one of its shape."""

        def change(name: str) -> Tensor:
            now = self.tensors[name].detach()
            room = self.scratch.setdefault(now.shape, torch.empty_like(now))
            return torch.sub(now, then[name], out=room)

        return change

    def _note_loss(self, value: Tensor, step: int) -> None:
        number = float(value.detach())
        if not math.isfinite(number):
            raise NonFiniteError(
                f"the loss is {number} at step {step} of build({self.probe.name}="
                f"{self.probe.value}), seed {self.probe.seed}: it diverged. Set lr below "
                f"{self.probe.setup.lr:g}."
            )
        self.losses.append(_short(number))

    def _sizes(self, norms: WarmNorms, tensor_of: Callable[[str], Tensor]) -> list[WeightSizes]:
        """Norms of every part, with its multiplier; root mean squares for tables and vectors."""
        found: list[WeightSizes] = []
        for key, part in enumerate(self.parts):
            tensor = tensor_of(part.name)
            if part.kind == "matrix":
                one = norms.of(key, part.of(tensor))
            else:  # RMS over entries, or over the lengths of the rows in use
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
            return found  # the inputs of a table are tokens, which are not recorded
        x = earlier.inputs[path]
        W, dW = part.of(after).to(x.dtype), part.of(after - before).to(x.dtype)
        found["dw_x"] = rms(x @ dW.mT) * part.hooked
        found["w_dx"] = rms((now.inputs[path] - x) @ W.mT) * part.hooked
        return found

    def result(self, plan: Plan) -> dict[str, Any]:
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
        # From the matrices themselves, since a model without a config has r too.
        r = max((fact.repetitions for fact in self.facts.parameters.values()), default=1)
        dimensions = {"r": r, "width": self.facts.width, "depth": self.facts.depth}
        depth = max(self.facts.depth, 1)  # a model without blocks has no branches to scale
        beta = float(plan.rule.beta(depth)) if plan.rule.depth != "none" else 1.0
        return {
            "value": self.probe.value,
            "seed": self.probe.seed,
            **dimensions,
            "beta": _short(beta),
            "tied": self.facts.tied_readout,
            "losses": self.losses,
            "parts": parts,
            "series": self.series,
            "maps": self.maps,
        }


def _single(parts: Sequence[CheckedPart], modules: Mapping[str, nn.Module]) -> list[str]:
    """Modules that consist of one matrix, so that their output is the output of that matrix."""
    owners: dict[str, set[str]] = {}
    for part in parts:
        # Different tokens reach an expert at each step, so its activations cannot be compared.
        if part.kind != "vector" and part.role not in EXPERTS:
            owners.setdefault(part.module, set()).add(part.name)
    return [
        path
        for path, names in owners.items()
        if len(names) == 1 and not list(modules[path].children())
    ]


def _rows_in_use(parts: Sequence[CheckedPart], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows of each table that this batch looks up, because the others do not move.

    All rows if none has a gradient yet, as behind a gate that starts at zero.
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
    """Five digits: more than the norms are accurate to, and half the file size."""
    return float(f"{value:.5g}")
