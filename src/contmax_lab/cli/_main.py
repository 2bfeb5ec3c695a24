"""The command line: which subcommand, and how its errors look."""

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from types import ModuleType

from contmax_lab.errors import LabError
from contmax_lab.packages import distribution, version

# Subcommand → one line of help. The file _NAME.py has add_arguments(parser) and run(options).
_COMMANDS = {
    "demo": "train small models on data that comes with the package's dependencies, and draw a report",
    "train": "train a recipe",
    "evaluate": "measure a trained run again",
    "reproduce": "train a whole table of the paper and write its results",
    "report": "draw trained runs into one HTML file",
    "predict": "ask a trained run, or the reader of texts that comes with the package",
    "export": "export a trained run as a small self-contained model folder",
    "new-task": "write a small working task of your own, to be changed",
    "data": "list, prepare and check data",
    "search": "look for better hyper-parameters of a recipe",
    "doctor": "say what is installed, what is missing, and how to get it",
}

_EPILOG = """\
first steps:
  contmax doctor                                     what this machine can do
  contmax demo                                       a report in a few minutes, no data needed
  contmax predict "A film to remember."              a model that comes with the package
  contmax train intervals/seattle-parabola           one training, into runs/
  contmax train intervals/parabola --help            every key of a recipe, with its meaning
  contmax train intervals/parabola --data.path weather.csv --model.hidden_dim 64 --seed 1
  contmax train texts --data.train reviews.csv --data.text review --data.label stars    your own texts
  contmax train series --data.train sensors.csv      your own series: id, time, channels …, label
  contmax train images --data.train FOLDER           your own images, a folder for each class
  contmax train vqa/small --data.train questions.csv your own questions: image, question, answer
  contmax train my_module:TASK                       a task of your own; contmax new-task NAME writes one
  contmax train … --resume                           go on after an interruption
  torchrun --nproc-per-node 2 -m contmax_lab train … several processes
"""


_KEY = re.compile(r"--(seed|(data|model|training)\.\w+)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a subcommand; exits with 0, 1 (cannot), 2 (not understood) or 130 (interrupted)."""
    words = _joined(sys.argv[1:] if arguments is None else arguments)
    options, rest = _parser().parse_known_args(words)
    command = _module(options.command)
    try:
        options.overrides = rest
        if rest and not command.TAKES_OVERRIDES:
            _parser().error(f"unrecognized arguments: {' '.join(rest)}")
        command.run(options)
    except LabError as error:
        sys.exit(_complain(str(error), error.exit_code))
    except ModuleNotFoundError as error:
        needed = distribution(error.name or str(error))
        sys.exit(_complain(f"{needed} is not installed: pip install 'contmax[lab]'; contmax doctor shows the rest", 1))
    except KeyboardInterrupt:
        sys.exit(_complain("interrupted", 130))
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        sys.exit(_complain(f"{error.filename or 'output'}: {error.strerror or error}", 1))


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"contmax_lab.cli._{command.replace('-', '_')}")


def _joined(words: Sequence[str]) -> list[str]:
    """Keys of recipes with their values as one word, lest the value be taken for the RECIPE that follows it."""
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
        description="The laboratory of contmax: from data to tables and pictures.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"contmax {version('contmax')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in _COMMANDS.items():
        module = _module(name)
        child = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=not module.TAKES_OVERRIDES,
        )
        if module.TAKES_OVERRIDES:
            more = "; after a RECIPE, all its keys" if name == "train" else ""
            child.add_argument("-h", "--help", action="store_true", help=f"show this{more}")
        module.add_arguments(child)
        child.set_defaults(show_help=child.print_help)
    return parser
