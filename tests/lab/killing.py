"""Trainings that kill themselves, as ``kill -9`` would, at a chosen moment of a chosen step."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket

import torch
from processes import know_each_other

from contmax_lab.files import read_checkpoint
from contmax_lab.runs import Run
from contmax_lab.training import _learner, train

# Of a step: before it, between its gradient and its update, after it, and when its checkpoint is written but not yet
# in place.
MOMENTS = ("begin", "update", "end", "write")


def killed_at(server, recipe, folder, step, moment, world=1):
    """Train on until process `step % world` dies at that moment; its exit code, once all others are dead as well."""
    victim = 0 if moment == "write" else step % world
    processes = _started(server, world, [(recipe, folder, step, moment if r == victim else None) for r in range(world)])
    processes[victim].join(60)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return processes[victim].exitcode


def trained(server, recipe, folder, world=1):
    """Train to the end; the run, and what it was like before its checkpoints were cleared away."""
    processes = _started(server, world, [(recipe, folder, None, None)] * world)
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes)
    return Run(folder), read_checkpoint(_end(folder))


def deaths(folder):
    """The steps, from 0, at which the trainings of a folder died, as they said themselves."""
    return [int(line) for line in _diary(folder).read_text().split()]


def _started(server, world, arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [server.Process(target=_train, args=(rank, world, port, *arguments[rank])) for rank in range(world)]
    for process in processes:
        process.start()
    return processes


def _train(rank, world, port, recipe, folder, step, moment):
    os.setpgid(0, 0)  # the processes that make batches go with the one that trains
    # As in a process of its own; a server of processes inside one would import torch anew each time.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    if world > 1:
        know_each_other(rank, world, port)
    _keep_the_end()
    if moment is not None:
        _die(folder, step, moment)
    train(recipe, Run(folder), resume=True)
    if world > 1:
        torch.distributed.barrier()
        os._exit(0)


def _keep_the_end():
    finish = Run.finish

    def kept(self, *results, **options):
        shutil.copy(self._saved()[-1], _end(self.folder))
        finish(self, *results, **options)

    Run.finish = kept


def _die(folder, step, moment):
    take_step, replace = _learner.Learner.step, os.replace

    def die(number):
        with _diary(folder).open("a") as diary:
            diary.write(f"{number}\n")
        os.killpg(0, signal.SIGKILL)

    def dying(self, loaded, number, total):
        if number == step and moment == "begin":
            die(number)
        if number == step and moment == "update":
            self.optimizer.register_step_pre_hook(lambda *_: die(number))
        take_step(self, loaded, number, total)
        if number == step and moment == "end":
            die(number)

    def dying_replace(source, target):
        if moment == "write" and target.name == f"step-{step + 1:09d}.safetensors":
            die(step)
        replace(source, target)

    _learner.Learner.step, os.replace = dying, dying_replace


def _diary(folder):
    return folder.with_name(f"{folder.name}.deaths")


def _end(folder):
    return folder.with_name(f"{folder.name}.end")
