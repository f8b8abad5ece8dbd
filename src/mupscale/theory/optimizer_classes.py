"""Which optimizer of ours a class, or an object made of it, is. By names: torch is not imported for
it.

A class of torch or of mupscale is known, and so is a class that inherits from one. Of other
packages, a class whose name says what it computes is taken for that: AdamW8bit, PagedAdamW,
FusedAdam, Lion, FusedSGD.
"""

import re
from collections.abc import Mapping
from typing import Any

_ANYWHERE = re.compile(
    r"_?(?P<how>Paged|Fused|DeepSpeedCPU|CPU)?(?P<what>AdamW|Adam|Lion|SGD)(?:\d+bit|Fp8)?"
)
"""Names that mean one algorithm wherever they come from."""
_HERE = {"torch": ("Muon", "Adafactor"), "mupscale": ("Muon",)}
"""Names that mean something else in other packages, which lengthen Muon's steps or scale
Adafactor's differently.
"""
_MUONS = {
    None: "muon",
    "original": "muon",
    "match_rms_adamw": "muon-match-rms",
    "spectral": "muon-spectral",
}


def name_of_class(given: object, group: Mapping[str, Any] | None = None) -> str | None:
    """The name under which we know an optimizer's class or an optimizer; None where we cannot tell.

    What a class alone does not say (SGD's momentum, Muon's adjust_lr_fn) is read from `group`, or
    else from the first group of the object; for a class it is torch's default.
    """
    cls = given if isinstance(given, type) else type(given)
    options = _first_group(given) if group is None else group
    for parent in cls.__mro__:
        package = parent.__module__.partition(".")[0]
        if parent.__name__ in _HERE.get(package, ()):
            return (
                _MUONS.get(options.get("adjust_lr_fn"))
                if parent.__name__ == "Muon"
                else "adafactor"
            )
        found = _ANYWHERE.fullmatch(parent.__name__)
        if found and found["what"] == "Adam":
            return "adamw" if _decouples(given, options, package, found["how"]) else "adam"
        if found and found["what"] == "SGD":
            return "momentum" if options.get("momentum") else "sgd"
        if found:
            return found["what"].lower()
    return None


def _first_group(given: object) -> Mapping[str, Any]:
    groups: Any = () if isinstance(given, type) else getattr(given, "param_groups", ())
    return groups[0] if groups else {}


def _decouples(given: object, group: Mapping[str, Any], package: str, how: str | None) -> bool:
    """Whether something called Adam decays as AdamW does.

    torch's does if asked to; that of apex and of DeepSpeed unless asked not to; that of
    bitsandbytes always.
    """
    if package == "bitsandbytes" or group.get("decoupled_weight_decay"):
        return True
    if how in ("Fused", "DeepSpeedCPU"):
        return bool(getattr(given, "adam_w_mode", True))
    return False
