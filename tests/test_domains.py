"""Domains: what they hold, what they refuse, and how they say so."""

import pickle

import pytest
import torch

from contmax.domains import Box, Interval, Knots, Nodes

F64 = torch.float64
NAN, INF = float("nan"), float("inf")


def says(kind, *words):
    """An error whose message is one line that holds all the words."""
    pattern = "".join(f"(?=.*{word})" for word in words)
    return pytest.raises(kind, match=f"^{pattern}[^\n]*$")


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.0, 0.0, ("low < high",)),
        (1.0, -1.0, ("low < high", "1.0", "-1.0")),
        (0.0, INF, ("must be bounded", "contmax.densities")),
        (-INF, INF, ("must be bounded",)),
        (NAN, 1.0, ("must be bounded", "nan")),
    ],
)
def test_ends_of_intervals_and_boxes(low, high, words):
    with says(ValueError, "Interval", *words):
        Interval(low, high)
    with says(ValueError, "Box", *words):
        Box([0.0, low], [1.0, high])


def test_shapes_of_boxes_and_intervals():
    with says(ValueError, "one to three coordinates", r"\(4,\)", "Nodes"):
        Box([0.0] * 4, [1.0] * 4)
    with says(ValueError, "one to three coordinates"):
        Box([0.0], [1.0, 1.0])
    with says(ValueError, "one to three coordinates"):
        Box(torch.tensor([]), torch.tensor([]))
    with says(ValueError, "two numbers", "pass Box"):
        Interval(torch.zeros(2), torch.ones(2))


@pytest.mark.parametrize(
    "make", [lambda r: Interval(0.0, 1.0, resolution=r), lambda r: Box([0.0], [1.0], resolution=r)]
)
def test_resolution(make):
    with says(ValueError, "at least one cell", "got 0"):
        make(0)
    with pytest.raises(Exception, match=r"resolution|type"):
        make(2.5)
    assert len(make(3).nodes) == 48


def test_kinds():
    with says(TypeError, "float32 or float64", "int64"):
        Knots(torch.arange(3))
    with says(TypeError, "float32 or float64", "float16"):
        Nodes(torch.zeros(3, dtype=torch.float16))
    with says(TypeError, "complex64"):
        Interval(torch.tensor(0j), 1.0)
    with pytest.raises(Exception, match=r"Interval|type"):
        Interval("0", 1.0)


def test_knots():
    with says(ValueError, "increase strictly", "Sort"):
        Knots(torch.tensor([0.0, 2.0, 1.0]))
    with says(ValueError, "increase strictly", "got a step of 0"):
        Knots(torch.tensor([0.0, 1.0, 1.0]))
    with says(ValueError, "n ≥ 2", r"\(1,\)"):
        Knots(torch.tensor([0.0]))
    with says(ValueError, "n ≥ 2"):
        Knots(torch.zeros(2, 3))
    for bad in (NAN, INF):
        with says(ValueError, "must be finite"):
            Knots(torch.tensor([0.0, bad]))


def test_nodes():
    points = torch.tensor([0.0, 1.0, 1.0])
    for bad in (0.0, -0.5):
        with says(ValueError, "weights must be positive", f"min {bad:g}"):
            Nodes(points, torch.tensor([1.0, bad, 1.0]))
    with says(ValueError, "one weight per point", r"\(2,\)"):
        Nodes(points, torch.ones(2))
    with says(ValueError, "n ≥ 1", r"\(0,\)"):
        Nodes(torch.zeros(0))
    with says(ValueError, "n ≥ 1"):
        Nodes(torch.zeros(2, 2, 2))
    with says(ValueError, "must be finite"):
        Nodes(torch.tensor([0.0, NAN]))
    with says(ValueError, "must be finite"):
        Nodes(points, torch.tensor([1.0, INF, 1.0]))
    assert torch.equal(Nodes(points).weights, torch.ones(3))


def test_nodes_of_continuous_domains():
    line = Interval(torch.tensor(-1.0, dtype=F64), 3.0)
    assert line.nodes.dtype == F64
    assert len(line.nodes) == 512
    assert (line.nodes.diff() > 0).all()
    assert line.volume == 4
    plane = Box([0.0, -1.0], [1.0, 1.0])
    assert plane.nodes.shape == (128**2, 2)
    assert plane.dimension == 2
    assert plane.volume == 2
    assert ((plane.nodes > plane.low) & (plane.nodes < plane.high)).all()
    # Row-major: the last coordinate runs first.
    assert plane.nodes[0, 0] == plane.nodes[1, 0]
    assert plane.nodes[0, 1] < plane.nodes[1, 1]


def test_numbers_take_dtype_from_tensors():
    assert Interval(0, torch.tensor(1.0, dtype=F64)).low.dtype == F64
    assert Interval(0, 1).low.dtype == torch.get_default_dtype()
    assert Interval(torch.tensor(0.0), torch.tensor(1.0, dtype=F64)).low.dtype == F64


@pytest.mark.parametrize(
    "domain",
    [Interval(0.0, 1.0), Box([0.0, 0.0], [1.0, 2.0]), Knots(torch.tensor([0.0, 1.0])), Nodes(torch.zeros(2, 3) + 1)],
    ids=lambda d: type(d).__name__,
)
def test_domains_survive_pickling_and_show_themselves(domain):
    again = pickle.loads(pickle.dumps(domain))
    assert torch.equal(again.nodes, domain.nodes)
    assert repr(again) == repr(domain)
    assert repr(domain).startswith(type(domain).__name__)
