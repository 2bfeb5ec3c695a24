"""What is drawn, read from the artists: curves, bars, shaded supports, ellipses."""

import math

import numpy
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.patches import Ellipse
from open_figures import closed_figures as closed_figures
from torch.distributions import Categorical, Laplace, MixtureSameFamily, MultivariateNormal, Normal, StudentT, Uniform

from contmax import domains, regularized_prediction
from contmax.densities import (
    BetaGaussian,
    Empirical,
    Mixture,
    MultivariateBetaGaussian,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
)
from contmax.viz import (
    DARK,
    LIGHT,
    drawn_in,
    plot_alignment,
    plot_density,
    plot_image_attention,
    plot_series_attention,
    plot_text_attention,
)

TWO_SPANS = Mixture(
    Categorical(torch.tensor([0.25, 0.75])),
    TruncatedParabola.from_support(torch.tensor([0.0, 10.0]), torch.tensor([2.0, 12.0])),
)


def spans(ax):
    """Intervals that are shaded from bottom to top."""
    found = [patch for patch in ax.patches if patch.get_height() == 1 and patch.get_y() == 0]
    return [(float(patch.get_x()), float(patch.get_x() + patch.get_width())) for patch in found]


def area(line):
    return numpy.trapezoid(line.get_ydata(), line.get_xdata())


def ellipses(ax):
    return [patch for patch in ax.patches if isinstance(patch, Ellipse)]


def test_a_parabola_is_drawn_with_its_support_shaded():
    ax = plot_density(TruncatedParabola.from_support(0.2, 0.6))
    x, y = ax.lines[0].get_data()
    assert y.max() == pytest.approx(0.75 / 0.2, rel=1e-4)
    assert area(ax.lines[0]) == pytest.approx(1, rel=1e-4)
    assert spans(ax) == [pytest.approx((0.2, 0.6))]
    assert (y[(x < 0.2 - 1e-9) | (x > 0.6 + 1e-9)] == 0).all()
    assert ax.get_xlim() == pytest.approx((0.16, 0.64))


@pytest.mark.parametrize(
    "density",
    [
        Normal(3.0, 2.0),
        Laplace(-1.0, 0.1),
        BetaGaussian(0.0, 1.0, alpha=1.0),
        MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.tensor([-3.0, 3.0]), torch.ones(2))),
    ],
    ids=lambda density: type(density).__name__,
)
def test_an_unbounded_density_shows_nearly_all_of_its_mass_and_no_support(density):
    ax = plot_density(density)
    assert spans(ax) == []
    assert area(ax.lines[0]) == pytest.approx(1, abs=0.02)


def test_torchs_uniform_has_steps_and_a_support():
    ax = plot_density(Uniform(1.0, 3.0))
    assert spans(ax) == [(1.0, 3.0)]
    assert area(ax.lines[0]) == pytest.approx(1, rel=1e-4)


def test_heavy_tails_without_moments_are_drawn_where_quantiles_say_or_limits():
    assert plot_density(torch.distributions.Cauchy(0.0, 1.0)).lines
    assert plot_density(BetaGaussian(0.0, 1.0, alpha=0.4)).lines
    with pytest.raises(ValueError, match=r"limits=\(low, high\)"):
        plot_density(StudentT(1.0))
    assert plot_density(StudentT(1.0), limits=(-4, 4)).get_xlim() == (-4, 4)


def test_a_mixture_has_one_curve_and_two_stretches():
    ax = plot_density(TWO_SPANS)
    assert len(ax.lines) == 1
    assert spans(ax) == [pytest.approx((0, 2), abs=1e-6), pytest.approx((10, 12))]


def test_a_component_inside_of_another_does_not_end_its_stretch():
    parts = TruncatedParabola.from_support(torch.tensor([0.0, 1.0, 10.0]), torch.tensor([8.0, 2.0, 12.0]))
    ax = plot_density(Mixture(Categorical(torch.ones(3)), parts))
    assert spans(ax) == [pytest.approx((0, 8), abs=1e-5), pytest.approx((10, 12), abs=1e-5)]


def test_a_prediction_on_an_interval_is_drawn():
    score = regularized_prediction(lambda t: torch.cos(6 * t), domains.Interval(0.0, 2.0), alpha=2.0)
    ax = plot_density(score)
    assert area(ax.lines[0]) == pytest.approx(1, abs=1e-3)
    for start, end in spans(ax):
        assert 0 <= start < end <= 2


def test_each_member_of_a_batch_has_a_colour_and_an_index_chooses_one():
    density = Triangular(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.tensor(1.0))
    everything = plot_density(density)
    assert len(everything.lines) == 4
    assert len({line.get_color() for line in everything.lines}) == 4
    row, one = plot_density(density, index=1), plot_density(density, index=(1, 0), color="red")
    assert [float(line.get_xdata()[line.get_ydata().argmax()]) for line in row.lines] == pytest.approx([2, 3], abs=0.02)
    assert [line.get_color() for line in one.lines] == ["red"]
    with pytest.raises(IndexError, match="not in the batch"):
        plot_density(density, index=2)


def test_the_plane_has_contours_and_the_support_as_an_ellipse():
    density = TruncatedParaboloid.from_support(torch.tensor([1.0, -1.0]), torch.diag(torch.tensor([4.0, 0.25])))
    ax = plot_density(density)
    (support,) = ellipses(ax)
    assert support.center == pytest.approx((1, -1))
    assert (support.width, support.height) == pytest.approx((4, 1), rel=1e-5)
    assert support.angle % 180 == pytest.approx(0, abs=1e-4)
    assert len(ax.collections) == 1
    assert ellipses(plot_density(MultivariateNormal(torch.zeros(2), torch.eye(2)))) == []


@pytest.mark.parametrize("angle", [20.0, 70.0, 110.0, 160.0])
def test_the_ellipse_of_a_support_is_turned_as_the_density_is(angle):
    turn = math.radians(angle)
    long, short = torch.tensor([math.cos(turn), math.sin(turn)]), torch.tensor([-math.sin(turn), math.cos(turn)])
    shape = 4 * torch.outer(long, long) + 0.25 * torch.outer(short, short)
    density = TruncatedParaboloid.from_support(torch.tensor([1.0, -1.0]), shape)
    (support,) = ellipses(plot_density(density))
    assert (support.width, support.height) == pytest.approx((4, 1), rel=1e-4)
    assert support.angle % 180 == pytest.approx(angle, abs=0.1)
    # On an image the first coordinate goes down, and the second to the right.
    assert ellipses(plot_image_attention(density=density))[0].angle % 180 == pytest.approx((90 - angle) % 180, abs=0.1)


def test_a_prediction_in_a_box_has_its_live_area_shaded():
    score = regularized_prediction(lambda t: -8 * t.square().sum(-1), domains.Box([-1.0, -1.0], [1.0, 1.0]), alpha=2.0)
    assert len(plot_density(score).collections) == 2
    assert len(plot_image_attention(density=score).collections) == 2


def test_text_has_bars_for_weights_and_a_curve_in_shares_of_a_token():
    tokens = ["not", "bad", "at", "all"]
    ax = plot_text_attention(tokens, torch.tensor([[0.0, 0.5, 0.5, 0.0]]), TruncatedParabola.from_support(0.5, 1.0))
    assert [bar.get_height() for bar in ax.patches] == [0, 0.5, 0.5, 0]
    assert [float(label.get_alpha()) for label in ax.get_xticklabels()] == [0.4, 1, 1, 1]
    (twin,) = [other for other in ax.figure.axes if other is not ax]
    assert area(twin.lines[0]) == pytest.approx(1, rel=1e-3)
    assert spans(twin) == [pytest.approx((2, 4))]
    alone = plot_text_attention(tokens, density=TruncatedParabola.from_support(0.5, 1.0), show_tokens=False)
    assert len(alone.figure.axes) == 1
    assert alone.get_xticklabels() == []


def test_a_density_beyond_the_text_is_shaded_inside_of_it_only():
    ax = plot_text_attention(["a", "b"], density=TruncatedParabola.from_support(-1.0, 0.5))
    assert spans(ax) == [pytest.approx((0, 1))]
    assert spans(plot_text_attention(["a", "b"], density=TruncatedParabola.from_support(2.0, 3.0))) == []


def test_a_density_narrower_than_any_grid_keeps_its_height():
    ax = plot_text_attention(["a"] * 10, density=TruncatedParabola.from_support(0.31234, 0.31235))
    assert ax.lines[0].get_ydata().max() == pytest.approx(0.75 / 5e-6 / 10, rel=1e-2)


def test_ten_thousand_tokens_are_one_artist_without_names():
    ax = plot_text_attention(["w"] * 10_000, torch.rand(10_000))
    assert len(ax.patches) == 1
    assert ax.get_xticklabels() == []


def test_image_ellipses_are_in_rows_and_columns_and_the_outer_holds_everything():
    shape = torch.tensor([[0.04, 0.0], [0.0, 0.01]])
    density = TruncatedParaboloid.from_support(torch.tensor([[0.25, 0.75]]), shape.unsqueeze(0))
    ax = plot_image_attention(torch.rand(3, 8, 16), torch.rand(1, 2, 4), density, color="red")
    outer, inner = ellipses(ax)
    assert outer.center == (0.75, 0.25)
    # The longer axis is that of the rows, which go down.
    assert (outer.width, outer.height) == pytest.approx((0.4, 0.2), rel=1e-5)
    assert abs(outer.angle) % 180 == pytest.approx(90)
    assert inner.width / outer.width == pytest.approx((1 - 0.5**0.5) ** 0.5, rel=1e-6)
    assert outer.get_edgecolor() == to_rgba("red")
    assert [image.get_array().shape[:2] for image in ax.images] == [(8, 16), (2, 4)]
    assert ax.get_aspect() == 0.5
    assert ax.get_ylim() == (1, 0)


def centres(ax):
    return [pytest.approx(patch.center) for patch in ellipses(ax)]


def places(locs):
    """Columns and rows of the centres, each twice: for the outer and the inner ellipse."""
    return [(column, row) for row, column in locs.reshape(-1, 2).tolist() for _ in range(2)]


def test_all_heads_and_all_live_components_are_drawn_on_an_image():
    heads = MultivariateBetaGaussian(torch.rand(2, 3, 2), 0.01 * torch.eye(2), alpha=1.0)
    assert centres(plot_image_attention(density=heads)) == places(heads.loc)
    assert centres(plot_image_attention(density=heads, index=1)) == places(heads.loc[1])
    mixture = Mixture(
        Categorical(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]])),
        MultivariateNormal(torch.rand(2, 3, 2), torch.eye(2)),
    )
    locs = mixture.component_distribution.loc
    assert centres(plot_image_attention(density=mixture)) == places(torch.cat([locs[0, :2], locs[1, 1:]]))
    assert centres(plot_image_attention(density=mixture, index=1)) == places(locs[1, 1:])


def test_components_are_the_fainter_the_less_they_weigh_and_weights_as_opaque_as_asked_for():
    unequal = Mixture(Categorical(torch.tensor([0.8, 0.2])), MultivariateNormal(torch.rand(2, 2), torch.eye(2)))
    ax = plot_image_attention(weights=torch.tensor([[0.0, 1.0]]), density=unequal, color="red", weight_alpha=0.5)
    assert [patch.get_edgecolor()[3] for patch in ellipses(ax)] == pytest.approx([1, 1, 0.25, 0.25])
    assert ax.images[0].get_array()[..., 3].tolist() == [[0, 0.5]]


def test_alignment_shades_rows_on_their_own_scale_and_marks_zeros():
    weights = torch.tensor([[0.2, 0.0, 0.0], [0.25, 0.25, 0.5]])
    ax = plot_alignment(["ein", "Hund", "."], ["a", "dog"], weights)
    assert numpy.allclose(ax.images[0].get_array(), [[1, 0, 0], [0.5, 0.5, 1]])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["ein", "Hund", "."]
    (dots,) = ax.collections
    assert (dots.get_sizes() > 0).tolist() == [True, False, False, True, True, True]
    assert not plot_alignment(["ein"], ["a"], [[1.0]]).collections
    both = plot_alignment(["a", "b"], ["c"], [[0.5, 0.5]], TruncatedParabola.from_support(0.0, 0.5).expand([1]))
    assert both.images[0].get_array().shape == (1, 24)
    assert len(both.collections) == 2


def test_a_series_has_thin_lines_and_bars_whose_areas_are_the_weights():
    time, weights = [0.0, 0.1, 0.5, 1.0], [0.1, 0.2, 0.3, 0.4]
    density = TruncatedParabola.from_support(0.0, 0.5)
    ax = plot_series_attention(time, torch.rand(4, 2), weights, density)
    assert len(ax.lines) == 2
    (twin,) = [other for other in ax.figure.axes if other is not ax]
    bars = [patch for patch in twin.patches if patch.get_height() != 1]
    assert [bar.get_width() * bar.get_height() / 0.88 for bar in bars] == pytest.approx(weights)
    assert area(twin.lines[0]) == pytest.approx(1, rel=1e-3)
    assert twin.get_ylim()[0] == 0


def test_observations_at_one_time_share_a_bar():
    ax = plot_series_attention([0.0, 0.5, 0.5, 1.0], weights=[0.1, 0.2, 0.3, 0.4])
    assert [bar.get_width() * bar.get_height() / 0.88 for bar in ax.patches] == pytest.approx([0.1, 0.5, 0.4])


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_pictures_take_axes_and_the_colours_of_a_theme(theme, tmp_path):
    from matplotlib.figure import Figure

    density = TruncatedParabola.from_support(0.2, 0.6)
    with drawn_in(theme):
        figure = Figure()
        ax = figure.subplots()
        assert plot_density(density, ax=ax) is ax
        figure.savefig(tmp_path / "density.svg")
    assert ax.lines[0].get_color() == theme.colour(0)
    assert "<svg" in (tmp_path / "density.svg").read_text()


def test_a_higher_density_on_the_same_or_a_shared_axis_is_not_cut_off():
    from matplotlib import pyplot as plt

    _, (first, second) = plt.subplots(1, 2, sharey=True)
    plot_density(TruncatedParabola(0.0, 1.0), ax=first)
    plot_density(TruncatedParabola(0.0, 0.5), ax=first)
    plot_density(TruncatedParabola(0.0, 0.2), ax=second)
    peak = float(second.lines[0].get_ydata().max())
    assert first.get_ylim() == second.get_ylim()
    assert first.get_ylim()[0] == 0
    assert peak < first.get_ylim()[1] < 1.2 * peak


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_a_theme_is_also_for_a_whole_script(theme):
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    with mpl.rc_context():
        plt.rcParams.update(theme.settings)
        ax = plot_density(TruncatedParabola.from_support(0.2, 0.6))
    assert ax.lines[0].get_color() == theme.colour(0)
    assert mpl.colors.to_hex(ax.figure.get_facecolor()) == theme.plate


def test_samples_have_no_density_to_draw():
    with pytest.raises(NotImplementedError):
        plot_density(Empirical(torch.rand(5)), limits=(0, 1))
