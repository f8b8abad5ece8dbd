"""`Plan`: what every parameter of a model gets, and how to apply it."""

from __future__ import annotations

import dataclasses
import fnmatch
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from mupscale.errors import MupscaleError, OptionError, PlanMismatchError, UnknownNameError
from mupscale.planning import (
    clipping,
    groups,
    hooks,
    initialization,
    showing,
    storing,
    verification,
)
from mupscale.planning.factors import applying, multiplied
from mupscale.planning.groups import PerRole
from mupscale.planning.run_sizes import RunJump
from mupscale.planning.start import start_std
from mupscale.planning.values import Hook, Multipliers, PlannedParameter
from mupscale.planning.verification import Verified
from mupscale.reading import Reading, run_once
from mupscale.reading.making import is_zero
from mupscale.reading.structure import bare, bare_name
from mupscale.records import write_whole
from mupscale.text import wrapped
from mupscale.theory import Decay, Rule, RunSize, optimizer_named


@dataclass(frozen=True)
class Plan:
    """What every parameter gets, relative to values tuned on the base model.

    A plan is an immutable value. Methods whose name ends in _ change the model passed to them.
    """

    model: str
    """The class of the model."""
    optimizer: str
    rule: Rule
    decay: Decay
    target: Mapping[str, int]
    """Width, depth, r and the like of the model."""
    base: Mapping[str, int]
    multipliers: Multipliers
    parameters: Mapping[str, PlannedParameter] = field(repr=False)
    hooks: tuple[Hook, ...] = field(default=(), repr=False)
    final_norm: str | None = None
    reference_r: int | None = None
    warnings: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading)
    """What the user declared about the model: roles, ignored keys, inputs."""
    factors: Mapping[str, float] = field(default_factory=dict[str, float])
    """Tuned factors by kind of weight, which the values of `parameters` contain."""
    run: RunJump | None = None
    """The batch and length of the tuned run and of the target's, if `with_run` set them; the values
    of `parameters` contain their factors.
    """

    def with_run(self, *, base: RunSize, target: RunSize) -> Plan:
        """For another batch and length than those of the run in which the values were tuned.

        The rule says how: `rule.with_(run="sde")` or another choice. It multiplies rates, decay and
        epsilon of every parameter; `param_groups` also changes the betas.
        """
        if self.run is not None:
            raise OptionError(
                f"this plan is already for another run: {self.run.base} to {self.run.target}. "
                "Call with_run once, on the plan that mupscale.plan returns."
            )
        jump = RunJump(base, target)
        return replace(
            self,
            parameters=jump.apply(self.parameters, self.rule, self.decay),
            run=jump,
            warnings=(*self.warnings, *jump.warnings(self.rule)),
        )

    def with_factors(self, factors: Mapping[str, float]) -> Plan:
        """Multiply in tuned factors by kind of weight: {"lr.embedding": 2, "std.readout": 4}.

        A name is lr, std, weight_decay or eps, a dot, and what it applies to: embedding, hidden,
        readout, gains, or a single role such as mlp_out. Factors that apply to the same weight are
        multiplied, also with those that the plan already has.
        """
        parameters = multiplied(self.parameters, factors)
        product = {name: factors.get(name, 1.0) * self.factors.get(name, 1.0) for name in factors}
        return replace(self, parameters=parameters, factors={**self.factors, **product})

    # Applying it

    def initialize_(
        self, model: nn.Module, *, std: PerRole | None = None, seed: int, draw: Sequence[str] = ()
    ) -> None:
        """Draw the weights, set gains and biases, and attach the plan's hooks, if any.

        `std` is the base's standard deviation, or one per role with a "default":
        {"default": 0.02, "embedding": 1.0} (default: `start_std`, 0.8 over the square root of the
        base's width). Each parameter is drawn from (seed, its name), so that order, sharding and
        device do not matter.

        Only tensors that the model itself drew at random are drawn again. Zeros and other
        constants, frozen tensors and buffers keep their values, and the plan's warnings name them;
        `draw` holds patterns of parameter names to draw anyway. After `to_empty`, the model must
        recompute its own buffers, such as rotary frequencies. Raises if all logits are equal
        afterwards although the readout is not zero.
        """
        if std is None:
            std = start_std(self.base.get("width", self.target["width"]))
        groups.check_per_role("std", std, [p.role for p in self.parameters.values() if p.drawn])
        if isinstance(seed, bool) or not isinstance(seed, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(f"seed={seed!r} is not a whole number.")
        tensors = self._tensors(model)
        self.attach_(model)
        padding, wanted = _padding(model), self._matching(draw)
        for name, parameter in self.parameters.items():
            sigma = groups.value_of(std, parameter.role)
            planned = replace(parameter, kept="") if name in wanted else parameter
            initialization.initialize(
                planned, tensors[name], std=sigma, seed=seed, padding=padding.get(name)
            )
        self._refuse_constant_logits(model, tensors)

    def _matching(self, patterns: Sequence[str]) -> set[str]:
        """The weights that match `draw`; a pattern without a match raises."""
        weights = [name for name, p in self.parameters.items() if p.drawn]
        matching: set[str] = set()
        for pattern in patterns:
            names = [name for name in weights if fnmatch.fnmatchcase(name, pattern)]
            if not names:
                raise OptionError(f"draw: the pattern {pattern!r} matches no weight of the plan.")
            matching.update(names)
        return matching

    def _refuse_constant_logits(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Logits that ignore the input mean that a gain or an embedding is zero."""
        readouts = [tensors[p.name] for p in self.parameters.values() if p.role == "readout"]
        if not readouts or any(is_zero(tensor) for tensor in readouts):
            return  # a readout that starts at zero gives zeros, and trains
        logits = run_once(bare(model), self.reading)
        if logits is None or logits.numel() < 2 or bool((logits - logits.flatten()[0]).any()):
            return
        gains = [name for name, p in self.parameters.items() if p.role == "gain"]
        zero = [name for name in gains if is_zero(tensors[name])]
        which = f"{len(zero)} gains are zero; the first is {zero[0]}. " if zero else ""
        raise PlanMismatchError(
            f"after initialize_ every logit of the model is {float(logits.flatten()[0]):g}, "
            f"although its readout is not zero. {which}Check the roles with plan.evidence, and "
            "correct wrong ones with roles={…}."
        )

    def param_groups(
        self,
        model: nn.Module,
        lr: PerRole,
        weight_decay: PerRole = 0.0,
        eps: PerRole | None = None,
        betas: tuple[float, float] | None = None,
        *,
        momentum: float | None = None,
        optimizer: str | None = None,
        split_rows: bool = False,
    ) -> list[dict[str, Any]]:
        """Parameter groups for a torch optimizer: one per set of distinct values.

        `lr`, `weight_decay` and `eps` are the values tuned on the base: one number, or numbers per
        role with a "default": lr={"default": 2**-7, "embedding": 2**-5}. `eps` defaults to torch's.
        `betas` and `momentum` are the base's, too: a plan for another batch (`with_run`) changes
        them.

        A plan for Muon holds parameters of two optimizers: optimizer="muon" and optimizer="adamw"
        give the groups of each. `split_rows` describes fused, stacked and transposed matrices to
        `mupscale.optim.Muon`.
        """
        tensors = self._tensors(model)
        if set(self.hooks) != hooks.attached(model):
            raise PlanMismatchError(
                f"the plan has {len(self.hooks)} hooks (the first on {self.hooks[0].module}) that "
                "the model does not have. Call plan.initialize_(model, …), or "
                "plan.attach_(model) after loading weights."
                if self.hooks
                else "the model has hooks of another plan. Remove them with that plan's detach_."
            )
        base = groups.BaseValues(lr, weight_decay, eps, self.decay)
        trained = self._trained_by(optimizer)
        averages = self._averages(trained[0].optimizer, betas, momentum)
        return groups.make_groups(trained, tensors, base, split_rows=split_rows, extra=averages)

    def _averages(
        self, optimizer: str, betas: tuple[float, float] | None, momentum: float | None
    ) -> dict[str, Any]:
        """Betas and momentum for the optimizer: the base's, changed with the batch."""
        jump = None if self.run is None else self.run.factors(self.rule, optimizer, self.decay)
        if self.run is None or jump is None or (jump.beta1, jump.beta2) == (1, 1):
            given = {"betas": betas, "momentum": momentum}
            return {name: value for name, value in given.items() if value is not None}
        if optimizer_named(optimizer).momentum:
            return {"momentum": self.run.momentum(self.rule, optimizer, self.decay, momentum)}
        changed = self.run.betas(self.rule, optimizer, self.decay, betas)
        return {} if changed is None else {"betas": changed}

    def _trained_by(self, optimizer: str | None) -> list[PlannedParameter]:
        names = list(dict.fromkeys(p.optimizer for p in self.parameters.values()))
        if optimizer is None:
            if len(names) > 1:
                each = ", ".join(f"optimizer={name!r}" for name in names)
                raise OptionError(
                    f"this plan is for {' and '.join(names)} together. Request the groups of "
                    f"each: {each}."
                )
            return list(self.parameters.values())
        if optimizer not in names:
            raise UnknownNameError("optimizer in this plan", optimizer, names)
        return [p for p in self.parameters.values() if p.optimizer == optimizer]

    def verify(
        self,
        optimizer: Optimizer,
        *,
        model: nn.Module | None = None,
        lr: PerRole | None = None,
        weight_decay: PerRole | None = None,
        eps: PerRole | None = None,
        betas: tuple[float, float] | None = None,
        std: PerRole | None = None,
        drawn: bool | None = None,
        trainer: object = None,
    ) -> Verified:
        """Raise `PlanMismatchError` if the optimizer or the weights differ from the plan.

        Parameters
        ----------
        optimizer
            Must be of the plan's kind: AdamW for adamw, not Adam, which decays differently. Classes
            of other packages are recognized by name (AdamW8bit, FusedAdam); an unknown class gives
            a warning.
        model
            The model that it trains. The parameters of a group are then identified by their
            tensors, not by `param_names`, which `load_state_dict` overwrites. The size and shape of
            the weights' distribution are compared with what `initialize_` draws, unless the
            optimizer has stepped.
        lr, weight_decay, eps, betas
            The base values. Without them, only the ratios between the groups are checked.
        std
            The value passed to `initialize_`. Without it, only the ratios between the weights are
            checked.
        drawn
            True always checks the weights, False never does (for weights that you loaded).
        trainer
            Trainer or TrainingArguments of transformers, or Lightning's Trainer: warns if it clips
            gradients as well.
        """
        if model is None and (std is not None or drawn):
            raise OptionError("std and drawn are about the weights. Pass the model too: model=….")
        if betas is not None and self.run is not None:
            betas = self.run.betas(self.rule, self.optimizer, self.decay, betas)
        base = {"lr": lr, "weight_decay": weight_decay, "eps": eps, "betas": betas}
        weights = None
        if model is not None:
            weights = verification.Weights(self._tensors(model), std, _padding(model), drawn)
        verified = verification.verify(self.parameters, optimizer, base, self.decay, weights)
        if trainer is not None:
            hook = clipping.hook_of(verification.unwrapped(optimizer))
            twice = clipping.clipped_twice(self.parameters.values(), hook, trainer)
            more = (twice,) if twice else ()
            verified = replace(
                verified,
                checked=(*verified.checked, "clipping"),
                warnings=verified.warnings + more,
            )
        for warning in verified.warnings:
            warnings.warn(warning, UserWarning, stacklevel=2)
        return verified

    def clip_grad_norm_(
        self, model: nn.Module, max_norm: float, *, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Like torch's `clip_grad_norm_`, with the norm that the gradients have without folding."""
        tensors = self._tensors(model)
        return clipping.clip(
            self.parameters, tensors.items(), max_norm, error_if_nonfinite=error_if_nonfinite
        )

    def grad_norm(self, model: nn.Module) -> Tensor:
        """The norm of all gradients, as they are without folding."""
        return clipping.norm(self.parameters, self._tensors(model).items())

    def clip_before_step(self, optimizer: Optimizer, max_norm: float) -> Any:
        """Clip before each step of this optimizer; returns a handle with remove().

        For trainers that clip by themselves. Turn their own clipping off (max_grad_norm=0 in
        transformers): if gradients arrive already clipped, this warns once. The norm covers the
        parameters of this optimizer.
        """
        clipping.check_max_norm(max_norm)
        names = [
            name for group in optimizer.param_groups for name in group.get("param_names", [None])
        ]
        if None in names:
            raise PlanMismatchError(
                "the optimizer's groups have no param_names. Make them with plan.param_groups."
            )
        present = clipping.hook_of(optimizer)
        if present is not None:
            raise OptionError(
                "this optimizer already clips before each step, to a norm of "
                f"{present.max_norm:g}. Call remove() on the handle that clip_before_step returned."
            )
        return optimizer.register_step_pre_hook(
            clipping.ClipBeforeStep(self.parameters, names, max_norm)
        )

    def attach_(self, model: nn.Module) -> None:
        """Attach the plan's hooks, if any, to a model; needed after loading weights."""
        self._tensors(model)
        hooks.attach(model, self.hooks)

    def detach_(self, model: nn.Module) -> None:
        """Remove the hooks. The weights do not change."""
        hooks.detach(model)

    def bake_(self, model: nn.Module) -> None:
        """Multiply the hooks' factors into the weights and remove the hooks: a plain model."""
        self._tensors(model)
        if hooks.attached(model) != set(self.hooks):
            raise PlanMismatchError(
                "the model does not have this plan's hooks, so there is nothing to bake."
            )
        offsets = {name: parameter.offset for name, parameter in self.parameters.items()}
        hooks.bake(model, self.hooks, self.final_norm, offsets)

    def _tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's parameters by their bare names, which must be those of the plan."""
        tensors: dict[str, Tensor] = {
            bare_name(name): tensor for name, tensor in bare(model).named_parameters()
        }
        lost, new = self.parameters.keys() - tensors.keys(), tensors.keys() - self.parameters.keys()
        if lost or new:
            what = f"no {min(lost)}" if lost else f"{min(new)}, which is not in the plan"
            raise PlanMismatchError(
                f"the plan is for another model: this one has {what}. Make a plan for it."
            )
        for name, tensor in tensors.items():
            shape = self.parameters[name].shape
            if tuple(tensor.shape) != shape:
                raise PlanMismatchError(
                    f"the plan is for another model: {name} is {tuple(tensor.shape)} here and "
                    f"{shape} in the plan."
                )
        return tensors

    # Showing it

    @property
    def assumptions(self) -> list[str]:
        """What the factors of repeated key/value heads rest on; empty without such heads."""
        every = self.parameters.values()
        return showing.assumptions(every, self.rule, self.decay, self.reference_r)

    @property
    def evidence(self) -> dict[str, str]:
        """How the role of each parameter is known, by template: a name, a forward pass, or you."""
        return {
            p.template: f"{p.role}: {p.evidence or 'not recorded'}"
            for p in self.parameters.values()
        }

    def explain(self, name: str) -> str:
        """The derivation of one parameter's values, with its numbers put in."""
        if name not in self.parameters:
            raise UnknownNameError("parameter", name, [*self.parameters][:12], self.parameters)
        parameter = self.parameters[name]
        tuned = applying(parameter, self.factors)
        return showing.explain(parameter, self.rule, self.decay, self.reference_r, tuned)

    def diff(self, other: Plan) -> showing.Differences:
        """The differences to another plan: settings first, then values by template."""
        settings = [
            showing.Difference("plan", name, getattr(self, name), getattr(other, name))
            for name in _SETTINGS
            if getattr(self, name) != getattr(other, name)
        ]
        return showing.plan_differences(self.parameters, other.parameters, settings)

    def to_text(self) -> str:
        """The table with a heading and the warnings, at the width of the terminal."""
        table = showing.rows(self.parameters.values(), self.rule, self.decay)
        foot = [wrapped(line, hanging="  ") if line else "" for line in self._foot()]
        return "\n".join([wrapped(self._head()), "", showing.text(table), *foot])

    def to_markdown(self) -> str:
        table = showing.rows(self.parameters.values(), self.rule, self.decay)
        return "\n".join([f"**{self._head()}**", "", showing.markdown(table), *self._foot()])

    def __str__(self) -> str:
        return self.to_text()

    def _head(self) -> str:
        target, base = (
            ", ".join(f"{name} {value}" for name, value in sizes.items())
            for sizes in (self.target, self.base)
        )
        return (
            f"{self.model} ({target}) from a base of {base} · {self.rule} · {self.optimizer} · "
            f"{self.decay} decay · factors on the base's values"
        )

    def _foot(self) -> list[str]:
        hooked = f", {len(self.hooks)} hooks" if self.hooks else ""
        tuned = [f"{name} × {showing.number(value)}" for name, value in self.factors.items()]
        factors = [f"tuned factors, included above: {', '.join(tuned)}"] if tuned else []
        evidence = [f"{self.rule}: {self.rule.evidence}"] if self.rule.evidence else []
        each = [parameter.optimizer for parameter in self.parameters.values()]
        run = [] if self.run is None else self.run.text(self.rule, each, self.decay)
        if self.run is None and self.rule.run != "none":
            run = ["note: the rule also scales with batch and length; plan.with_run applies that"]
        warned = [f"warning: {warning}" for warning in self.warnings]
        notes = [f"note: {note}" for note in self.assumptions]
        count = f"{len(self.parameters)} parameters{hooked}"
        return ["", count, *factors, *run, *notes, *evidence, *warned]

    # As a file

    def to_dict(self) -> dict[str, Any]:
        names = [f.name for f in dataclasses.fields(self) if f.name not in _STRUCTURED]
        return {
            **{name: getattr(self, name) for name in names},
            "rule": self.rule.to_dict(),
            "warnings": list(self.warnings),
            # left out if empty, as in files of earlier versions
            **({"reading": self.reading.to_dict()} if self.reading else {}),
            **({"factors": dict(self.factors)} if self.factors else {}),
            **({"run": self.run.to_dict()} if self.run else {}),
            "hooks": [dataclasses.asdict(hook) for hook in self.hooks],
            "parameters": {name: dataclasses.asdict(p) for name, p in self.parameters.items()},
        }

    def to_json(self) -> str:
        return storing.to_json(self.to_dict())

    @staticmethod
    def from_json(text: str) -> Plan:
        """A plan from its JSON; raises if it was edited or truncated."""
        data = storing.from_json(text)
        parameters = data["parameters"].items()
        return Plan(
            **{key: value for key, value in data.items() if key not in _STRUCTURED},
            rule=Rule.from_dict(data["rule"]),
            warnings=tuple(data["warnings"]),
            reading=Reading.from_dict(data.get("reading", {})),
            factors=data.get("factors", {}),
            run=RunJump.from_dict(data["run"]) if "run" in data else None,
            hooks=tuple(storing.hook_from_dict(hook) for hook in data["hooks"]),
            parameters={name: storing.parameter_from_dict(p) for name, p in parameters},
        )

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically."""
        write_whole(Path(path), self.to_json().encode())

    @staticmethod
    def load(path: str | Path) -> Plan:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise OptionError(
                f"{path}: {error.strerror or error}. Write a plan with plan.save(path)."
            ) from error
        except UnicodeDecodeError as error:
            raise PlanMismatchError(f"{path}: not a plan: it is not a text file.") from error
        try:
            return Plan.from_json(text)
        except MupscaleError as error:
            raise PlanMismatchError(f"{path}: {error}") from error


_STRUCTURED = ("rule", "warnings", "reading", "factors", "run", "hooks", "parameters")
_SETTINGS = (
    *("model", "optimizer", "rule", "decay", "target", "base"),
    *("multipliers", "reference_r", "reading", "factors", "run"),
)


def _padding(model: nn.Module) -> dict[str, int]:
    """The row of each embedding that torch keeps at zero."""
    named = bare(model).named_modules()
    return {
        bare_name(f"{name}.weight"): module.padding_idx
        for name, module in named
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
