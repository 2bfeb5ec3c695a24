"""Interpreters that a launcher starts, without the seconds that each of them needs to import torch."""

import contextlib
import io
import json
import os
import runpy
import socket
import sys

import torch

from forked import process_server

# What the launcher starts: it hands over what it was told, and ends as the process that did the work for it.
_STAND_IN = """#!/bin/sh
exec '{python}' -I -S -c '
import json, os, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as line, line.makefile("rw") as talk:
    print(json.dumps([sys.argv[1:], dict(os.environ)]), file=talk, flush=True)
    code, printed, told = json.loads(talk.readline())
sys.stdout.write(printed)
sys.stderr.write(told)
sys.exit(code)
' "$@"
"""


@contextlib.contextmanager
def quick_interpreter(file, count):
    """Make an executable file that stands for Python, `count` times: a copy of the process server does the work."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        file.write_text(_STAND_IN.format(python=sys.executable, port=door.getsockname()[1]))
        file.chmod(0o700)
        processes = [process_server().Process(target=_run_module, args=(door,)) for _ in range(count)]
        for process in processes:
            process.start()
        try:
            yield file
        finally:
            for process in processes:
                process.kill()


def _run_module(door):
    """Do as `python -u -m MODULE …` would, in the environment of whoever asks for it first."""
    torch.set_num_threads(1)
    caller, _ = door.accept()
    with caller, caller.makefile("rw") as talk:
        words, environment = json.loads(talk.readline())
        os.environ.clear()
        os.environ.update(environment)
        unbuffered, run, module, *arguments = words
        assert (unbuffered, run) == ("-u", "-m")
        sys.argv, code = [module, *arguments], 0
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as told:
            try:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            except SystemExit as leaving:
                code = leaving.code
        print(json.dumps([code, printed.getvalue(), told.getvalue()]), file=talk, flush=True)
