"""The runs of the sweep of learning rate and decay, over τ_epoch = 1/(ηλ·steps).

τ_epoch is the time scale of decay, in units of the run.
"""

from mupscale.paper.weight_decay import DecaySweep


class TauEpoch(DecaySweep):
    """Where the best learning rate and τ_epoch are, by size, under each rule."""

    name = "tau-epoch"
    parameters = ("tau_epoch",)
    comparisons = tuple(
        ("tau_epoch", against, f"The best τ_epoch varies less over sizes {than}")
        for against, than in (
            ("sp", "under μP with scaled decay than under SP"),
            ("mup", "under μP with scaled decay than under vanilla μP"),
        )
    )


EXPERIMENT = TauEpoch()
