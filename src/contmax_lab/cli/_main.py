"""The command line: which subcommand, and how its errors look."""

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from types import ModuleType

from contmax_lab.errors import LabError, nearest
from contmax_lab.packages import distribution, version

# Subcommand → one line of help, and examples. The file _NAME.py has add_arguments(parser) and run(options).
_COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "demo": (
        "train small models on data that is already installed, and draw a report",
        ("contmax demo", "contmax demo --training.epochs 1      # a quick look"),
    ),
    "train": (
        "train a model: on your own data, from a shipped recipe, or for your own task",
        (
            "contmax train texts --data.train reviews.csv --data.text review --data.label stars",
            "contmax train series --data.train sensors.csv --limit 200",
            "contmax train images/discrete-softmax --data.train pictures --model.alpha 1.5 --seed 1",
            "contmax train intervals/seattle-parabola --resume",
            "contmax train texts --help             # every setting of this task",
        ),
    ),
    "evaluate": (
        "measure a trained run again",
        (
            "contmax evaluate runs/texts/continuous-sparsemax-seed-0",
            "contmax evaluate runs/texts/continuous-sparsemax-seed-0 --test --json",
        ),
    ),
    "reproduce": (
        "train all models of a table of results, and write the table",
        ("contmax reproduce seattle --jobs 2", "contmax reproduce intervals --data weather.csv"),
    ),
    "report": (
        "draw trained runs into one HTML file",
        ("contmax report runs/texts/*", "contmax report runs/series/continuous-sparsemax-seed-0 --examples 3 7"),
    ),
    "predict": (
        "ask a trained model about a new text, series or image",
        (
            'contmax predict "A film to remember."   # the model that comes with the package',
            'contmax predict runs/texts/continuous-sparsemax-seed-0 "Never again." --figure words.png',
            "contmax predict runs/series/continuous-sparsemax-seed-0 new.csv",
            "contmax predict --model model new.png   # a folder made by contmax export",
        ),
    ),
    "explore": (
        "look at densities, scores and where models look, in your browser",
        (
            "contmax explore",
            "contmax explore --runs demo/runs --port 9000 --no-browser",
            "contmax explore --export pages         # two pages that need no server",
        ),
    ),
    "export": (
        "export a trained run as a small self-contained model folder",
        ("contmax export runs/images/continuous-sparsemax-seed-0 --into model",),
    ),
    "new-task": (
        "write a small working task, for you to change",
        ("contmax new-task tides", "contmax train tides:TASK"),
    ),
    "data": (
        "list tasks and recipes, unpack an archive, check a data file",
        (
            "contmax data list",
            "contmax data check texts --data.train reviews.csv --data.text review --data.label stars",
            "contmax data prepare aclImdb_v1.tar.gz --into data",
        ),
    ),
    "search": (
        "search for better settings of a recipe (hyper-parameters)",
        ("contmax search intervals/parabola --data.path weather.csv --trials 50",),
    ),
    "doctor": ("show what is installed, what is missing, and how to install it", ("contmax doctor",)),
}

_EPILOG = """\
first steps:
  contmax doctor                                     what this machine can do
  contmax demo                                       a report in a few minutes, no data needed
  contmax predict "A film to remember."              a model that comes with the package
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


_KEY = re.compile(r"--(seed|(data|model|training)\.\w+)")


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
    command = _module(options.command)
    try:
        options.overrides, options.command_line = rest, words
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
    for name, (summary, examples) in _COMMANDS.items():
        module = _module(name)
        child = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            epilog="\n  ".join(["examples:", *examples]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=not module.TAKES_OVERRIDES,
        )
        if module.TAKES_OVERRIDES:
            more = "; with a RECIPE, show all its settings" if name == "train" else ""
            child.add_argument("-h", "--help", action="store_true", help=f"show this help and exit{more}")
        module.add_arguments(child)
        child.set_defaults(show_help=child.print_help)
    return parser
