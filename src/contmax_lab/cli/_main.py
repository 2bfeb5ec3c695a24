"""The command line: which subcommand, and how its errors look."""

import argparse
import inspect
import re
import sys
from collections.abc import Sequence

from contmax_lab.cli._doctor import doctor
from contmax_lab.cli._look import explore, export, report
from contmax_lab.cli._options import Argument, Command
from contmax_lab.cli._predict import predict
from contmax_lab.cli._setup import data, new_task
from contmax_lab.cli._train import demo, evaluate, reproduce, search, train
from contmax_lab.errors import LabError, UsageError, nearest
from contmax_lab.packages import distribution, version

_LISTED = (demo, train, evaluate, reproduce, report, predict, explore, export, new_task, data, search, doctor)
_COMMANDS: dict[str, Command] = {command.name: command for command in _LISTED}

_EPILOG = """\
first steps:
  contmax doctor                                     what this machine can do
  contmax demo                                       a report in a few minutes, no data needed
  contmax predict "A film to remember."              a model that comes with the package
  contmax predict RUN new.csv --into answers.csv     all inputs of a file
  contmax explore                                    densities, scores and models, live in your browser
  contmax train texts --data.train reviews.csv --data.text review --data.label stars    your own texts
  contmax train series --data.train sensors.csv      your own series: id, time, channels …, label
  contmax train images --data.train FOLDER           your own images, a folder for each class
  contmax train vqa/small --data.train questions.csv your own questions: image, question, answer
  contmax train texts --help                         every setting, with its meaning and its default
  contmax train my_module:TASK                       your own task; contmax new-task NAME writes one
  contmax train … --resume                           continue after an interruption
  torchrun --nproc-per-node 2 -m contmax_lab train … several processes
"""


_KEY = re.compile(r"--(seed|search|(data|model|training)\.\w+)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a subcommand; exits with 0, 1 (cannot), 2 (not understood) or 130 (interrupted)."""
    words = _joined(sys.argv[1:] if arguments is None else arguments)
    if not words:
        _parser().print_help()
        sys.exit(_complain("pass a COMMAND, e.g. contmax doctor", 2))
    if not words[0].startswith("-") and words[0] not in _COMMANDS:
        near = nearest(words[0], list(_COMMANDS)) or f"; choose from {', '.join(_COMMANDS)}."
        sys.exit(_complain(f"there is no command {words[0]!r}{near} contmax --help explains them", 2))
    options, rest = _parser().parse_known_args(words)
    options.overrides, options.command_line = rest, words
    if rest and not _COMMANDS[options.command].takes_overrides:
        _parser().error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        _run(_COMMANDS[options.command], options)
    except LabError as error:
        sys.exit(_complain(str(error), error.exit_code))
    except ModuleNotFoundError as error:
        if error.name == "fcntl":  # it locks run folders
            sys.exit(_complain("this command needs Linux or macOS; on Windows use WSL. The library itself works", 1))
        needed = distribution(error.name or str(error))
        sys.exit(_complain(f"{needed} is not installed: pip install 'contmax[lab]'; contmax doctor shows the rest", 1))
    except KeyboardInterrupt:
        sys.exit(_complain("interrupted", 130))
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        sys.exit(_complain(f"{error.filename or 'output'}: {error.strerror or error}", 1))


def _run(command: Command, options: argparse.Namespace) -> None:
    """Run a subcommand, or show its help: where that was wanted, and where an argument is missing."""
    wants_help = command.takes_overrides and options.help
    is_missing = bool(command.needed) and getattr(options, command.needed) in (None, [])
    # With a RECIPE, contmax train --help lists the settings of the recipe.
    if is_missing or (wants_help and command is not train):
        options.show_help()
        if not wants_help:
            raise UsageError(command.hint)
        return
    command.run(options)


def _joined(words: Sequence[str]) -> list[str]:
    """Keys of recipes with their values as one word, so that no value is taken for the RECIPE that follows it."""
    joined: list[str] = []
    for word in words:
        key = joined[-1] if joined else ""
        if _KEY.fullmatch(key) and not word.startswith("--"):
            joined[-1] = f"{key}={word}"
        else:
            joined.append(word)
    return joined


def _complain(text: str, code: int) -> int:
    line = " ".join(text.split())
    print("contmax: " + "".join(c if c.isprintable() else repr(c)[1:-1] for c in line), file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="contmax",
        description="Train, compare and inspect models with sparse and continuous attention.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"contmax {version('contmax')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        child = commands.add_parser(
            name,
            help=command.summary,
            description=inspect.getdoc(command.run),
            epilog="\n  ".join(["examples:", *command.examples]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=not command.takes_overrides,
        )
        if command.takes_overrides:
            more = "; with a RECIPE, show all its settings" if name == "train" else ""
            child.add_argument("-h", "--help", action="store_true", help=f"show this help and exit{more}")
        for entry in command.arguments:
            # A tuple of arguments is a choice between them.
            target = child if isinstance(entry, Argument) else child.add_mutually_exclusive_group()
            for argument in [entry] if isinstance(entry, Argument) else entry:
                target.add_argument(*argument.names, **argument.options)
        child.set_defaults(show_help=child.print_help)
    return parser
