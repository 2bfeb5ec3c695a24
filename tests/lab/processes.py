"""What tests let real processes do. Nothing heavy is imported here that the server of processes has not loaded."""

import contextlib
import io
import os
import resource
import signal
import socket
import time

import torch

from contmax_lab.contract import Splits, Task
from contmax_lab.errors import LabError
from contmax_lab.runs import Run
from contmax_lab.training import evaluate, train


def train_with_little_space(recipe, folder, answer):
    """Train where no file may grow beyond 2 kB, as on a disk that fills up while writing."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    try:
        train(recipe, Run(folder), resume=True)
    except LabError as error:
        answer.put(str(error))


def say_into(folder, *command):
    """Run the command; what it says is in the files `stdout` and `stderr` of the folder, to the end of the process."""
    from contmax_lab.cli import main

    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(list(command))


def say_at_a_terminal(folder, *command):
    """The same, with all processes that it starts in one group: Ctrl-C reaches each of them."""
    os.setsid()
    say_into(folder, *command)


# -- several processes for one training --------------------------------------------------------------------------------


def together(server, target, world, *arguments):
    """Run `target(*arguments)` on `world` processes that know of each other, as torchrun would; what each returns."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answers = server.Queue()
    processes = [
        server.Process(target=_as_rank, args=(r, world, port, answers, target, arguments)) for r in range(world)
    ]
    for process in processes:
        process.start()
    returned = dict(answers.get(timeout=300) for _ in processes)
    for process in processes:
        process.join()
    return [returned[rank] for rank in range(world)]


def know_each_other(rank, world, port):
    """What torchrun tells the processes it starts."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _as_rank(rank, world, port, answers, target, arguments):
    torch.set_num_threads(1)
    know_each_other(rank, world, port)
    answers.put((rank, target(*arguments)))
    answers.close()
    answers.join_thread()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    # To tear down gloo here may wait for ever: its thread needs the interpreter's lock, which the destructor holds.
    os._exit(0)


def train_and_return(recipe, folder, stop_at=None):
    """The results, or the complaint; with `stop_at`, the last process is asked to stop after that step."""
    from contmax_lab.training import _learner

    if stop_at is not None and os.environ["RANK"] != "0":
        step = _learner.Learner.step

        def signalled(self, indices, number, total):
            step(self, indices, number, total)
            if number + 1 == stop_at:
                os.kill(os.getpid(), signal.SIGINT)

        _learner.Learner.step = signalled
    try:
        return train(recipe, Run(folder), resume=True, test=True)
    except LabError as error:
        return str(error)


def say_on_a_machine_of_its_own(*command):
    """Run the command as one of several machines with a process each would; what is printed."""
    from contmax_lab.cli import main

    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main(list(command))
    return printed.getvalue()


def side_by_side(server, target, count, *arguments):
    """Run `target(answers, *arguments)` in several processes that do not know of each other; what each answers."""
    answers = server.Queue()
    processes = [server.Process(target=target, args=(answers, *arguments)) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        return [answers.get(timeout=120) for _ in processes]
    finally:
        # Not by SIGTERM, after which a search that does not end would save, and still not end.
        for process in processes:
            process.kill()


def search_beside_another(answers, *command):
    """Run the command; whoever has a trial waits until the other has one too, on a machine however busy."""
    from here import Here

    from contmax_lab.cli import main
    from contmax_lab.search import SharedStudy
    from contmax_lab.workers import LocalProcesses

    take = SharedStudy.take

    def taken(self):
        trial = take(self)
        while trial is not None and len(self.study.trials) < 2:
            time.sleep(0.05)
        return trial

    SharedStudy.take = taken
    LocalProcesses.open = lambda workers: Here().open()
    printed, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told), contextlib.suppress(SystemExit):
        main(list(command))
    answers.put((printed.getvalue(), told.getvalue()))
    answers.close()
    answers.join_thread()


class Counting(Task):
    """Measures the index of every example, so that one counted twice or not at all is seen."""

    name = "counting"
    summary = "indices"

    def load(self, data, seed):
        return Splits(range(0), range(0), range(0))

    def build(self, model, splits):
        return torch.nn.Identity()

    def batch(self, split, indices):
        return {"index": torch.tensor(indices)}

    def loss(self, output, batch):
        return output["index"].float(), torch.ones(len(output["index"]))

    def measures(self, output, batch):
        words = [f"{index} words" for index in output["index"].tolist()]
        square = torch.stack([output["index"], output["index"] ** 2], dim=-1)
        return {"index": output["index"], "square": square, "words": words}

    def lengths(self, split):
        return [7 * i % 5 for i in split]

    def summarise(self, measures):
        return {name: values if name == "words" else values.tolist() for name, values in measures.items()}


def count(sizes, batch_size):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    return [evaluate(torch.nn.Identity(), Counting(), range(size), {}, batch_size, accelerator) for size in sizes]
