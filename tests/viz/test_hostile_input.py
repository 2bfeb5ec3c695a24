"""What cannot be drawn is refused in words; what looks odd but is legal is drawn."""

import math

import pytest
import torch
from open_figures import closed_figures as closed_figures
from scipy.integrate import quad
from torch.distributions import Categorical, MultivariateNormal, Normal

from contmax.densities import BetaGaussian, MultivariateBetaGaussian, TruncatedParabola
from contmax.viz import (
    alignment_html,
    image_attention_html,
    plot_alignment,
    plot_density,
    plot_image_attention,
    plot_series_attention,
    plot_text_attention,
    text_attention_html,
)
from contmax.viz._plane import mass_ellipses

TEXT = [plot_text_attention, text_attention_html]
IMAGE = [plot_image_attention, image_attention_html]
ALIGNMENT = [plot_alignment, alignment_html]
NAMES = {"ids": ["picture", "page"]}
SPAN = TruncatedParabola.from_support(0.2, 0.6)


@pytest.mark.parametrize("draw", TEXT, **NAMES)
def test_texts_that_cannot_be_drawn(draw):
    with pytest.raises(ValueError, match="at least one token"):
        draw([], [])
    with pytest.raises(TypeError, match=r"text.split\(\)"):
        draw("one string", [1.0])
    with pytest.raises(TypeError, match="got int"):
        draw([1, 2], [0.5, 0.5])
    with pytest.raises(ValueError, match="no attention was given"):
        draw(["a"])
    for weights in ([0.5], [0.1, 0.2, 0.7], 1.0, torch.rand(2, 3)):
        with pytest.raises(ValueError, match="one weight for each of 2 tokens"):
            draw(["a", "b"], weights)
    for bad in (math.nan, math.inf, -0.1):
        with pytest.raises(ValueError, match="finite and not negative"):
            draw(["a", "b"], [0.5, bad])
    with pytest.raises(ValueError, match="index="):
        draw(["a", "b"], torch.rand(3, 2))
    with pytest.raises(ValueError, match="index="):
        draw(["a", "b"], density=SPAN.expand([3]))
    with pytest.raises(IndexError, match="not in the batch"):
        draw(["a", "b"], torch.rand(3, 2), index=3)
    with pytest.raises(TypeError, match="density on the line"):
        draw(["a"], density=MultivariateNormal(torch.zeros(2), torch.eye(2)))
    with pytest.raises(TypeError, match="discrete"):
        draw(["a"], density=Categorical(torch.ones(2)))
    with pytest.raises(TypeError, match="Numbers"):
        draw(["a"], density=torch.rand(3))
    with pytest.raises(ValueError, match="NaN"):
        draw(["a"], density=Normal(math.nan, 1.0, validate_args=False))


@pytest.mark.parametrize("draw", TEXT, **NAMES)
def test_texts_that_can(draw):
    assert draw(["a"], [1.0], SPAN)
    assert draw([""], [0.0])
    assert draw(["a", "b"], torch.zeros(1, 1, 2), SPAN.expand([1, 1]))
    assert draw(["a", "b"], torch.rand(3, 2, requires_grad=True), SPAN.expand([3]), index=-1)
    assert draw(["a", "b"], torch.rand(2).half(), BetaGaussian(torch.tensor(0.5).half(), torch.tensor(0.1).half()))
    assert draw(["a", "b"], density=BetaGaussian(0.5, 1e-20))
    assert draw(["a", "b"], density=BetaGaussian(0.5, 1e20, alpha=1.0))
    assert draw(["a", "b"], density=BetaGaussian(1e6, 0.1, alpha=0.5))
    assert draw(["$x$", "\x00\ud800\n"], density=BetaGaussian(0.5, 0.2, alpha=math.inf))


def test_hostile_tokens_are_drawn_as_they_are():
    ax = plot_text_attention([r"$\frac{", "a\x00", "\ud800", "<b>"], [0.25] * 4)
    ax.figure.canvas.draw()
    assert [label.get_text() for label in ax.get_xticklabels()] == [r"\$\frac{", "a�", "�", "<b>"]


@pytest.mark.parametrize("draw", IMAGE, **NAMES)
def test_images_that_cannot_be_drawn(draw):
    grid = torch.rand(2, 2)
    for image in (torch.rand(5), torch.rand(2, 3, 4, 4), torch.rand(0, 4), torch.rand(7, 7, 7)):
        with pytest.raises(ValueError, match="image must have shape"):
            draw(image, grid)
    for value in (math.nan, -0.5, 1.5):
        with pytest.raises(ValueError, match="from 0 to 1"):
            draw(torch.full((4, 4), value), grid)
    with pytest.raises(ValueError, match="grid of weights"):
        draw(None, torch.rand(4))
    with pytest.raises(ValueError, match="finite and not negative"):
        draw(None, torch.full((2, 2), math.nan))
    with pytest.raises(ValueError, match="no attention was given"):
        draw(None)
    with pytest.raises(TypeError, match="plane"):
        draw(None, density=SPAN)
    with pytest.raises(ValueError, match="NaN or infinite"):
        draw(None, density=MultivariateNormal(torch.full((2,), math.nan), torch.eye(2), validate_args=False))


@pytest.mark.parametrize("draw", IMAGE, **NAMES)
def test_images_that_can(draw):
    assert draw(torch.randint(256, (1, 4, 6)).to(torch.uint8), torch.zeros(1, 2, 2))
    assert draw(torch.rand(4, 4, 4), density=MultivariateBetaGaussian(torch.rand(3, 2), torch.eye(2), alpha=math.inf))


@pytest.mark.parametrize("draw", ALIGNMENT, **NAMES)
def test_alignments_that_cannot_be_drawn(draw):
    for source, target in (([], ["a"]), (["a"], [])):
        with pytest.raises(ValueError, match="at least one token"):
            draw(source, target, [[1.0]])
    with pytest.raises(ValueError, match="3 target tokens and a column for each of 2 source tokens"):
        draw(["a", "b"], ["c", "d", "e"], torch.rand(2, 3))
    with pytest.raises(ValueError, match=r"batch shape \(3,\)"):
        draw(["a", "b"], ["c", "d", "e"], density=SPAN.expand([2]))
    with pytest.raises(ValueError, match="no attention was given"):
        draw(["a"], ["b"])
    assert draw(["a"], ["b"], torch.zeros(1, 1, 1), Normal(torch.tensor([[0.5]]), torch.tensor([[1e-30]])))


def test_series_that_cannot_be_drawn_and_that_can():
    with pytest.raises(ValueError, match="at least one time"):
        plot_series_attention([], weights=[])
    with pytest.raises(ValueError, match="positions must be finite"):
        plot_series_attention([0.0, math.nan], weights=[0.5, 0.5])
    with pytest.raises(ValueError, match=r"shape \(L,\)"):
        plot_series_attention(torch.rand(2, 3), weights=[0.5, 0.5])
    with pytest.raises(ValueError, match="values must be one number"):
        plot_series_attention([0.0, 1.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="2 observations"):
        plot_series_attention([0.0, 1.0], weights=[1.0])
    with pytest.raises(ValueError, match="no attention was given"):
        plot_series_attention([0.0, 1.0])
    one = plot_series_attention([0.3], [[1.0, math.nan]], [1.0], SPAN)
    assert one.get_xlim() == pytest.approx((-0.2, 0.8))
    assert plot_series_attention([1.0, 0.0], [1.0, 2.0]).lines[0].get_xdata().tolist() == [0, 1]


def test_limits_and_axes_are_checked():
    for limits in ((1, 1), (1, 0), (0, math.nan), 3, (1, 2, 3)):
        with pytest.raises(ValueError, match="limits must be"):
            plot_density(SPAN, limits=limits)
    with pytest.raises(TypeError, match=r"plt.subplots\(\)"):
        plot_density(SPAN, ax="axes")
    with pytest.raises(TypeError, match="got Tensor"):
        plot_density(torch.rand(3))
    with pytest.raises(TypeError, match="3 dimensions; plot_density draws densities on the line and in the plane"):
        plot_density(MultivariateNormal(torch.zeros(3), torch.eye(3)))


@pytest.mark.parametrize("alpha", [0.6, 0.999999, 1.0, 1.000001, 4 / 3, 2.0, 7.0, math.inf])
def test_an_ellipse_holds_the_share_it_says(alpha):
    density = MultivariateBetaGaussian(torch.zeros(2, dtype=torch.float64), 0.3 * torch.eye(2).double(), alpha=alpha)
    ((outer, inner),) = mass_ellipses(density)
    assert (outer.share == 1) == (alpha > 1)

    def ring(r):
        return 2 * math.pi * r * float(density.density(torch.tensor([r, 0.0], dtype=torch.float64)))

    for ellipse in (inner, outer):
        # Of a member that is nearly Gaussian the support is a thousand times wider than its mass.
        assert quad(ring, 0, min(ellipse.half_axes[0], 8.0), points=[1.0], limit=200)[0] == pytest.approx(
            ellipse.share, abs=1e-6
        )
