"""Constants that are kept on a device: the streams that read them wait for those that make them, once each."""

import contextlib
import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import contmax
from contmax._caches import DeviceCache, Shared, cached
from contmax.basis import GaussianBasis
from contmax.numerics import unit_gauss_legendre
from contmax.signal import _ridge

DEVICE = torch.device("cuda", 0)


class Stream:
    """A stream that remembers which events it has waited for, and when the host has waited for it."""

    def __init__(self, number):
        self.cuda_stream, self.waited, self.awaited = number, [], []

    def record_event(self):
        return SimpleNamespace(stream=self, synchronize=lambda: self.awaited.append(self))

    def wait_event(self, event):
        self.waited.append(event.stream)


class Gpu:
    """What is asked of torch.cuda: the current stream, and whether a graph is being captured."""

    def __init__(self):
        self.streams = [Stream(number) for number in range(3)]
        self.current, self.captures = self.streams[0], False


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: gpu.current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: gpu.captures)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: gpu.current.cuda_stream, raising=False)
    return gpu


class Streams(list):
    """A list that can be referred to weakly."""


def tensor():
    """A tensor that remembers on which streams its memory is used."""
    used = Streams()
    return SimpleNamespace(device=DEVICE, used=used, record_stream=used.append)


def test_every_other_stream_waits_once(gpu):
    made = tensor()
    shared = Shared("content", [made])
    for stream in (*gpu.streams, *gpu.streams):
        gpu.current = stream
        assert shared.read() == "content"
    first, *others = gpu.streams
    assert [stream.waited for stream in gpu.streams] == [[], [first], [first]]
    # The allocator knows of the streams, so that memory that a cache drops is not written while they read it.
    assert made.used == others


def test_a_captured_stream_does_not_wait_but_its_next_work_does(gpu):
    made = tensor()
    shared = Shared("content", [made])
    gpu.current, gpu.captures = gpu.streams[1], True
    assert shared.read() == "content"
    assert not gpu.current.waited
    assert not made.used
    gpu.captures = False
    shared.read()
    assert gpu.current.waited == [gpu.streams[0]]


def test_a_captured_graph_adds_nothing(gpu):
    calls = []
    cache = DeviceCache(lambda name, device: calls.append(name) or tensor())
    gpu.captures = True
    assert cache("rule", DEVICE) is not cache("rule", DEVICE)
    gpu.captures = False
    kept = cache("rule", DEVICE)
    assert cache("rule", DEVICE) is kept
    gpu.captures = True
    assert cache("rule", DEVICE) is kept
    assert len(calls) == 3


def test_the_host_waits_where_a_tracer_asks(gpu):
    """A compiled program reads what it was traced with on every stream, and asks no more."""
    cache = DeviceCache(lambda name, device: tensor())
    kept = cache.finished("rule", DEVICE)
    assert gpu.current.awaited
    assert cache("rule", DEVICE) is kept


def test_ridge_weights_of_another_stream_are_waited_for(gpu, monkeypatch):
    """On the CPU, whose tensors are taken for those of a GPU."""
    monkeypatch.setattr("contmax._caches.Shared.__init__", init_as_on_a_gpu(gpu))
    basis, values = GaussianBasis.linspace(6, 0.2), torch.randn(2, 9, 3)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    for options in ({}, {"mask": mask}):
        expected = contmax.fit_signal(values, basis, **options).coefficients
        gpu.current = gpu.streams[1]
        assert torch.equal(contmax.fit_signal(values, basis, **options).coefficients, expected)
        assert gpu.current.waited == [gpu.streams[0]]
        gpu.current.waited.clear()
        gpu.current = gpu.streams[0]


def init_as_on_a_gpu(gpu):
    def init(self, content, tensors):
        self._content, self._tensors, self._device = content, [tensor() for _ in tensors], 0
        self._made, self._streams = gpu.current.record_event(), {gpu.current.cuda_stream}

    return init


# -- what is kept is a plain tensor, wherever it was first needed ------------------------------------------------------


def a_cache():
    return DeviceCache(lambda size, device: torch.arange(size, device=device).exp())


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap, torch.func.jacfwd])
def test_a_transform_does_not_wrap_it(transform):
    cache, device = a_cache(), torch.device("cpu")
    argument = torch.ones(2) if transform is torch.func.vmap else torch.tensor(1.0)
    transform(lambda x: (x * cache(3, device)).sum())(argument)
    assert not is_functorch_wrapped_tensor(cache(3, device))


def test_a_transform_does_not_wrap_ridge_weights():
    basis, values = GaussianBasis.linspace(6, 0.2), torch.randn(2, 9, 3)
    torch.func.grad(lambda values: contmax.fit_signal(values, basis).coefficients.sum())(values)
    (kept,) = _ridge._WEIGHTS.entries[basis].values()
    assert not is_functorch_wrapped_tensor(kept.shared.read())


def test_it_can_be_trained_with_after_inference_mode():
    cache, device = a_cache(), torch.device("cpu")
    with torch.inference_mode():
        cache(3, device)
    assert not cache(3, device).is_inference()
    assert not cache(3, device).requires_grad


def test_a_trace_does_not_see_how_it_was_made():
    cache = a_cache()
    graph = make_fx(lambda x: x * cache(3, torch.device("cpu")))(torch.ones(3)).graph
    assert not [node for node in graph.nodes if "exp" in str(node.target)]


def test_fake_tensors_are_not_kept():
    device = torch.device("cpu")
    for _ in range(2):  # the second time the tables are there
        with FakeTensorMode() as mode:
            nodes, _ = unit_gauss_legendre(7, device)
            assert nodes.fake_mode is mode
        nodes, weights = unit_gauss_legendre(7, device)
        torch.testing.assert_close((weights * nodes).sum().item(), 0.5)


# -- bounds, and forgetting --------------------------------------------------------------------------------------------


def test_the_oldest_results_go_first():
    made = []
    cache = DeviceCache(lambda size, device: made.append(size) or torch.arange(size), maxsize=2)
    for size in (1, 2, 3, 3, 2, 1):
        assert len(cache(size, torch.device("cpu"))) == size
    assert made == [1, 2, 3, 1]


def test_clear_caches_forgets_everything():
    made = []
    cache = DeviceCache(lambda device: made.append(1) or torch.ones(1))
    remembered = cached(lambda x: made.append(x))
    basis, values = GaussianBasis.linspace(6, 0.2), torch.randn(2, 9, 3)
    for _ in range(2):
        cache(torch.device("cpu"))
        remembered(2)
        contmax.fit_signal(values, basis)
    assert made == [1, 2]
    contmax.clear_caches()
    assert basis not in _ridge._WEIGHTS.entries
    cache(torch.device("cpu"))
    remembered(2)
    assert made == [1, 2, 1, 2]


def test_what_a_graph_reads_outlives_the_cache(gpu):
    cache = DeviceCache(lambda device: tensor())
    read = weakref.ref(cache(DEVICE).used)
    gpu.captures = True
    cache(DEVICE)
    contmax.clear_caches()
    gc.collect()
    assert read() is not None
