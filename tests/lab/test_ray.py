"""Ray: a table on two machines, one of them lost half-way, is that of one machine, bit for bit; and how it stops."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from weather import write_weather

from contmax_lab.errors import LabError
from contmax_lab.files import read_checkpoint
from contmax_lab.registry import find_task
from contmax_lab.runs import Run
from contmax_lab.training import train
from contmax_lab.workers import RayCluster, _ray

# A task in the current folder, which takes its time until a file is there.
SLOW = """
import time
from pathlib import Path

from contmax_lab.contract import Metric, Repetition, Row, Table
from contmax_lab.tasks.intervals._task import TASK as INTERVALS


class Slow(type(INTERVALS)):
    name = "slow"
    recipe_file = None

    def batch(self, split, indices):
        until = time.monotonic() + 1
        while time.monotonic() < until and not Path("quick").exists():
            time.sleep(0.02)
        return super().batch(split, indices)

    def tables(self):
        rows = [Row(f"{width} units", "", (f"--model.hidden_dim={width}",)) for width in (4, 8)]
        return [Table("slow", "", tuple(rows), (Repetition("seed-0", ()),), (Metric("test.mse", "MSE", digits=9),))]


TASK = Slow()
"""
KEYS = ["--data=weather.csv", "--data.valid=9", "--data.test=7", "--data.last=2015-12-31", "--training.batch_size=32"]
KEYS += ["--training.epochs=5", "--training.checkpoint_seconds=0.5", "--training.patience=0"]
TABLE = ["reproduce", "slow", "--task", "slow_task:TASK", *KEYS]
CELLS = ("4-units/seed-0", "8-units/seed-0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The storage that all machines share."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "slow_task.py").write_text(SLOW)
    write_weather(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(folder):
    """Two machines on this one, with a processor each."""
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'contmax[ray]'")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_log_monitor": False, "no_monitor": True}
    # A machine that is gone is lost at the third look, one that is busy is not; by default it takes half a minute.
    quick = {"health_check_period_ms": 300, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 3}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # The machines have what is installed, and no more.
        patch.setenv("PYTHONPATH", str(Path(sys.modules["contmax_lab"].__file__).parents[1]))
        patch.chdir(folder.parent)
        started = Cluster(
            initialize_head=True, head_node_args={**small, "include_dashboard": False, "_system_config": quick}
        )
        started.add_node(**small)
    yield started
    ray.shutdown()
    started.shutdown()


@pytest.fixture
def ray(cluster, monkeypatch):
    """Ray, which a command does not join anew if the one before has not left.

    For each that joins Ray starts processes of its own, every one of which would import torch.
    """
    import ray

    join = ray.init
    monkeypatch.setattr(ray, "init", lambda *given, **options: ray.is_initialized() or join(*given, **options))
    return ray


def when_all_have_saved(runs, act):
    """Do something, beside this thread, as soon as every training has a checkpoint."""

    def watch():
        while not all(any(run.checkpoints.glob("step-*")) for run in runs):
            time.sleep(0.05)
        act()

    threading.Thread(target=watch, daemon=True).start()


@pytest.mark.ray
def test_a_search_on_a_cluster_is_stopped_as_on_one_machine(contmax, cluster, folder, ray, monkeypatch):
    left = []
    monkeypatch.setattr(ray, "shutdown", lambda: left.append("the cluster"))
    monkeypatch.chdir(folder)
    runs = [Run(folder / "search" / f"trial-000{number}") for number in range(2)]
    keys = ["--search={model.hidden_dim: [2, 4]}", "--data.path=weather.csv", *KEYS[1:]]
    command = ["search", "slow_task:TASK", *keys, "--trials", "2", "--runs", "search", "--ray", cluster.address]
    code, _, errors = contmax(*command, "--gpus-per-cell", "0.5")
    assert (code, len(errors)) == (1, 1)
    assert f"--gpus-per-cell 0.5: no machine of the cluster {cluster.address} has that many" in errors[0]
    when_all_have_saved(runs, lambda: os.kill(os.getpid(), signal.SIGINT))
    code, _, errors = contmax(*command)
    assert (code, errors) == (130, ["contmax: stopped in search, everything is saved; the same command continues"])
    assert left == ["the cluster"] * 2
    for run in runs:
        assert run.results() is None
        # Nobody trains there any more.
        with run.claimed():
            assert run.last_checkpoint().state["position"]["step"] > 0


@pytest.mark.ray
def test_robbed_of_a_machine_the_table_is_the_same(contmax, cluster, folder, ray, monkeypatch):
    # Trainings that are this short may all be over before the machines are looked at again.
    monkeypatch.setattr(_ray, "_LOOK", 0.0)
    monkeypatch.chdir(folder)
    distant = [*TABLE, "--runs", "distant", "--output", "distant.json", "--ray", cluster.address]
    runs = [Run(folder / "distant" / cell) for cell in CELLS]
    unfinished = []

    def rob():
        # Each machine has one of the two, and both are far from their end.
        unfinished.extend(run for run in runs if run.results() is None)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        (folder / "quick").touch()

    when_all_have_saved(runs, rob)
    code, printed, errors = contmax(*distant)
    assert (code, len(unfinished)) == (0, 2), errors
    assert not ray.is_initialized()
    assert sorted(line.partition("]")[0] for line in errors if line.endswith(": done")) == ["[1/2", "[2/2"]
    assert sum(line.startswith("lost the machine") for line in errors) == len(errors) - 2 == 1

    # Of the local table the trainings run here: to start processes takes longer than to train.
    for cell, run in zip(CELLS, runs, strict=True):
        train(run.recipe(find_task("slow_task:TASK")), Run(folder / "alone" / cell), test=True)
    code, alone, errors = contmax(*TABLE, "--runs", "alone", "--output", "alone.json")
    assert (code, errors) == (0, [])
    assert printed.replace("distant", "alone") == alone
    for run in runs:
        other = Run(folder / "alone" / run.folder.relative_to(folder / "distant"))
        weights, expected = read_checkpoint(run.weights).tensors, read_checkpoint(other.weights).tensors
        assert weights.keys() == expected.keys()
        assert all(weights[name].equal(expected[name]) for name in weights)
        assert [{**r, "seconds": 0} for r in run.history()] == [{**r, "seconds": 0} for r in other.history()]
    rows = [json.loads((folder / f"{name}.json").read_text())["rows"] for name in ("distant", "alone")]
    assert rows[0] == rows[1]


# -- without a cluster -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "code", "says"),
    [
        ("somewhere", 2, "--ray somewhere is not an address; pass HOST:PORT as `ray start --head` prints it, or auto"),
        ("localhost:1", 1, "--ray localhost:1: no cluster answers there"),
        ("ray://localhost:1", 1, "start a cluster with ray start --head --port=6379"),
        ("localhost:99999", 1, "no cluster answers there"),
    ],
)
def test_an_address_where_nobody_answers_is_one_line(contmax, folder, monkeypatch, address, code, says):
    pytest.importorskip("ray", reason="needs ray: pip install 'contmax[ray]'")
    monkeypatch.chdir(folder)
    found, printed, errors = contmax(*TABLE, "--ray", address)
    assert (found, printed, len(errors)) == (code, "", 1)
    assert says in errors[0]


def test_a_machine_without_a_cluster_is_one_line(contmax, folder, monkeypatch):
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'contmax[ray]'")

    def init(address, **options):
        raise ConnectionError("Could not find any running Ray instance.\nPlease specify the one")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.chdir(folder)
    code, printed, errors = contmax(*TABLE, "--ray", "auto")
    assert (code, printed) == (1, "")
    assert errors == ["contmax: --ray auto: Could not find any running Ray instance. Please specify the one"]


@pytest.fixture
def machines(monkeypatch):
    """Ray on machines that have the given GPUs; a negative number is one that was lost."""

    def joined(*gpus):
        nodes = [
            {
                "NodeID": str(n),
                "NodeManagerAddress": f"10.0.0.{n}",
                "Alive": count >= 0,
                "Resources": {"GPU": abs(count)},
            }
            for n, count in enumerate(gpus)
        ]
        total = {"CPU": 64.0, "GPU": float(sum(count for count in gpus if count > 0))}
        options = []
        stub = SimpleNamespace(
            init=lambda **given: None,
            shutdown=lambda: None,
            nodes=lambda: nodes,
            cluster_resources=lambda: total,
            remote=lambda **given: options.append(given) or (lambda function: function),
        )
        monkeypatch.setitem(sys.modules, "ray", stub)
        return options

    return joined


@pytest.mark.parametrize(
    ("gpus", "asked", "taken"),
    [
        ((2, 1), 2.0, 2.0),
        ((1, 1), 1.0, 1.0),
        ((0.5,), 0.5, 0.5),
        ((0, 0), None, 0.0),
        ((0, 4), None, 1.0),
        ((), 0.0, 0.0),
    ],
)
def test_a_training_gets_the_gpus_that_one_machine_has(machines, gpus, asked, taken):
    options = machines(*gpus)
    with RayCluster("auto", gpus=asked).open() as crew:
        assert crew.has_room()
    assert [given["num_gpus"] for given in options] == [taken]


@pytest.mark.parametrize(("gpus", "asked"), [((1, 1), 2.0), ((0, 0), 0.5), ((2, -4), 4.0), ((), 1.0)])
def test_gpus_of_several_machines_are_not_those_of_one(machines, gpus, asked):
    machines(*gpus)
    with pytest.raises(LabError, match=f"--gpus-per-cell {asked:g}: no machine"), RayCluster("auto", gpus=asked).open():
        pass


def test_without_ray_it_is_said_what_to_install(contmax, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "ray", None)
    code, printed, errors = contmax(*TABLE, "--ray", "auto")
    assert (code, printed, errors) == (1, "", ["contmax: --ray needs ray, which is not installed: pip install ray"])
