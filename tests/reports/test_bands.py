"""What is drawn is what was given."""

import numpy as np

from mupscale.reports import Band, draw_bands

BAND = Band(
    label="measured",
    x=[1, 2, 4],
    mean=[2.0, 2.5, 3.0],
    sd=[0.1, 0.2, 0.3],
    theory=[2.0, 2.4, 3.0],
    theory_label="theory",
)


def test_means_bands_and_theory_are_on_the_axes():
    axes = draw_bands([BAND], x_label="r", y_label="norm", title="t").axes[0]
    mean, theory = axes.get_lines()
    assert list(mean.get_ydata()) == BAND.mean
    assert list(theory.get_ydata()) == BAND.theory
    outline = axes.collections[0].get_paths()[0].vertices
    assert np.isclose(outline[:, 1].max(), 3.3)
    assert np.isclose(outline[:, 1].min(), 1.9)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["measured", "theory"]
    assert axes.get_ylim()[0] == 0


def test_drawing_leaves_the_callers_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw_bands([BAND], x_label="r", y_label="norm", title="t")
    assert dict(matplotlib.rcParams) == before
