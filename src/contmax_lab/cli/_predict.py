"""The subcommand predict: one input, or all inputs of a file."""

import argparse
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from contmax_lab.cli._options import TASK, Argument, command
from contmax_lab.errors import LabError, UsageError, nearest

if TYPE_CHECKING:
    from contmax_lab.contract import FileAnswer, Prediction, Task

# The task whose model comes with the package.
_READER = "documents"
_JSON = (".jsonl", ".ndjson")
_TABLES = {".csv": ",", ".tsv": "\t"}
# A text with one of these endings is taken for the name of a file.
_ENDINGS = (*_TABLES, *_JSON, ".json", ".txt", ".gz", ".xlsx", ".xls", ".parquet", ".png", ".jpg", ".jpeg", ".html")
# Some programs begin every file in UTF-8 with it.
_MARK = "\ufeff"
# Give up after this number of broken inputs without an answer, which would determine the columns of the table.
_MOST_BROKEN = 1000
# The number of broken inputs that the message names.
_NAMED = 3


@dataclasses.dataclass(frozen=True)
class _Opened:
    """A model that can answer inputs.

    Args:
        task: the task that the model was trained on.
        ask: maps words of the command line to the answer for one input.
        network: makes the network, and a dictionary of facts about its data.
        words: the words of the command line that are an input.
    """

    task: "Task"
    ask: "Callable[[Sequence[str]], Prediction]"
    network: Callable[[], tuple[Any, dict[str, Any]]]
    words: list[str]


@command(
    "ask a trained model about a new text, series or image, or about all of a file",
    (
        'contmax predict "A film to remember."   # the model that comes with the package',
        'contmax predict runs/texts/continuous-sparsemax-seed-0 "Never again." --figure words.png',
        "contmax predict runs/texts/continuous-sparsemax-seed-0 new.csv --into predictions.csv",
        "contmax predict runs/series/continuous-sparsemax-seed-0 new.csv",
        "contmax predict --model model new.png   # a folder made by contmax export",
    ),
    [
        Argument(
            "words",
            metavar="INPUT",
            nargs="*",
            help="the folder of a run and an input for it, or a text; - reads the input from standard input",
        ),
        Argument("--model", type=Path, help="model folder made by contmax export (default: the one in the package)"),
        TASK,
        Argument("--figure", type=Path, help="PNG file to draw where the model looks"),
        Argument("--into", type=Path, metavar="FILE", help="write the answers to all inputs of a file: .csv or .jsonl"),
        Argument("--column", default="", help="column of the inputs in a table (default: that of the training table)"),
        Argument("--keep", default="", metavar="NAME,…", help="columns of the table to copy beside the answers"),
    ],
)
def predict(options: argparse.Namespace) -> None:
    """Ask a trained model about a new input, and see where it looks.

    contmax predict RUN INPUT uses a finished run. INPUT is a text for the tasks texts and documents, a sentence for
    translation, a table with one series for series, an image file for images, an image file and a question for vqa
    (where the model looked is drawn into IMAGE-overlay.png), and the number of a validation example, from 1, for all
    other tasks. contmax predict --model FOLDER INPUT uses a model folder made by contmax export.

    INPUT may be a file with many inputs: a table of texts, of series or of image files, a folder of images, a text file
    with a sentence for translation in each line. The answers are a table, CSV or JSON lines, printed or written into
    the FILE of --into: what the model says, the probability of each class, and where it looked. An input that cannot be
    read has no answer; the column problem says why, the others are answered, and the exit code is 1.

    contmax predict TEXT uses the small model that comes with the package: is an English text positive or negative, and
    which words show it?
    """
    if not options.words:
        raise UsageError('pass a TEXT, e.g. contmax predict "A film to remember.", or - to read standard input')
    if options.figure and options.figure.suffix != ".png":
        raise UsageError(f"--figure {options.figure}: the picture is a PNG file; pass a name that ends in .png")
    opened = _opened(options)
    path = _many(opened, options)
    if path is not None:
        _answer_file(opened, path, options)
        return
    prediction = opened.ask(opened.words)
    print(prediction.text)
    if options.figure or prediction.filename:
        from contmax_lab.drawing import LIGHT, rendered
        from contmax_lab.files import write_atomically

        if prediction.figure is None:
            raise LabError("this answer has nothing to draw; leave out --figure")
        path = options.figure or Path(prediction.filename)
        write_atomically(path, rendered(prediction.figure.draw, LIGHT))
        print(f"drawn into {path}")


def _opened(options: argparse.Namespace) -> _Opened:
    from contmax_lab.registry import installed_task, open_trained, task_of_model

    first, *rest = options.words
    is_run = False
    with contextlib.suppress(OSError):  # the operating system refuses long texts as names of files
        is_run = options.model is None and (Path(first) / "config.yaml").is_file()
    if is_run:
        trained = open_trained(first, options.overrides, named=options.task)
        task = trained.task
        words = _given(task, rest)
        return _Opened(task, lambda w: task.predict(trained, w), lambda: (trained.model, trained.splits.info), words)
    if options.model is None and rest and "/" in first and " " not in first:
        raise UsageError(f"{first} is not a run; pass the folder of a finished run and an INPUT, or a TEXT in quotes")
    if options.overrides:
        raise UsageError(
            f"{' '.join(options.overrides)} changes a setting of a run, but no run was given; pass the folder of a RUN"
        )
    folder = options.model
    task = task_of_model(folder, options.task) if folder else installed_task(_READER)

    def network() -> tuple[Any, dict[str, Any]]:
        if folder is not None:
            return task.read_exported(folder)
        model, splits = task.packaged() or (None, None)
        return model, {} if splits is None else splits.info

    return _Opened(task, lambda w: task.predict_exported(folder, w), network, _given(task, options.words))


def _given(task: "Task", words: list[str]) -> list[str]:
    """The input: the words, or the text read from standard input (for -) or from a file that holds one text."""
    try:
        if words == ["-"]:
            return [sys.stdin.read().removeprefix(_MARK)]
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UsageError(
            f"standard input, byte {byte:#04x} is not UTF-8; convert it, e.g. iconv -f latin1 -t utf-8"
        ) from None
    path = _existing(words)
    if path is None and task.reads_texts and len(words) == 1 and _looks_like_a_file(words[0]):
        raise LabError(_no_file(Path(words[0])))
    if path is not None and path.is_file() and task.reads_texts and not task.holds_many(path, {}):
        try:
            return [path.read_text(encoding="utf-8").removeprefix(_MARK)]
        except UnicodeDecodeError:
            raise LabError(
                f"{path} is not a text in UTF-8; pass a text file, or a table (.csv, .tsv, .jsonl) with a text in each "
                "row"
            ) from None
    if path is not None and path.is_dir() and not task.holds_many(path, {}):
        raise UsageError(f"{path} is a folder; pass an INPUT for the task {task.name}, or a file of them")
    return words


def _existing(words: Sequence[str]) -> Path | None:
    """The file or folder that the words name; None if there is none."""
    with contextlib.suppress(OSError, ValueError):  # no name of a file, say a long text
        if len(words) == 1 and words[0].strip() and Path(words[0]).exists():
            return Path(words[0])
    return None


def _looks_like_a_file(text: str) -> bool:
    """Whether a text was meant as the name of a file: it ends like one, or is a path without spaces.

    Example:
        >>> [_looks_like_a_file(text) for text in ("rev.csv", "my reviews.csv", "data/new", "Good.", "good and/or bad")]
        [True, True, True, False, False]
    """
    text = text.strip()
    return len(text) < 1000 and (text.lower().endswith(_ENDINGS) or ("/" in text and not any(map(str.isspace, text))))


def _no_file(path: Path) -> str:
    with contextlib.suppress(OSError):
        near = nearest(path.name, [entry.name for entry in path.parent.iterdir()])
        return f"{path}: there is no such file{near or '; to ask about these words, pass them by -'}"
    return f"{path}: there is no such file"


def _many(opened: _Opened, options: argparse.Namespace) -> Path | None:
    """The file with many inputs that the user passed; None if the user passed one input."""
    path = _existing(opened.words)
    wants_table = options.into is not None or bool(options.column or options.keep)
    if path is None and wants_table:
        raise UsageError("--into, --column and --keep are for a file with many inputs; pass the path of one")
    if path is None or not (wants_table or opened.task.holds_many(path, opened.network()[1])):
        return None
    if options.figure:
        raise UsageError("--figure draws the answer to one input; pass one, or leave out --figure")
    return path


def _answer_file(opened: _Opened, path: Path, options: argparse.Namespace) -> None:
    keep = [name.strip() for name in options.keep.split(",") if name.strip()]
    into: Path | None = options.into
    if into is not None and into.suffix.lower() not in (*_TABLES, *_JSON):
        raise UsageError(f"--into {into}: the name must end in {', '.join((*_TABLES, *_JSON))}")
    if into is not None and into.exists() and into.samefile(path):
        raise UsageError(f"--into {into} is the file of the inputs; pass another name")
    model, info = opened.network()
    answers = opened.task.predict_file(model, info, path, options.column, keep)
    broken = _Broken()
    if into is None:
        if isinstance(sys.stdout, io.TextIOWrapper):  # names of files that are not UTF-8 come out as they are
            sys.stdout.reconfigure(errors="surrogateescape")
        count = _write(broken.noted(answers), sys.stdout, ".csv")
    else:
        from contmax_lab.files import written_aside

        with written_aside(into) as file:
            count = _write(broken.noted(answers), file, into.suffix.lower())
        print(f"{count - broken.count:,} answers in {into}")
    if broken.count:
        more = f"; and {broken.count - _NAMED:,} more" if broken.count > _NAMED else ""
        raise LabError(
            f"{path}: {broken.count:,} of {count:,} inputs have no answer: {'; '.join(broken.first)}{more}. "
            "The column problem names them, all others are answered"
        )


@dataclasses.dataclass
class _Broken:
    """Inputs without an answer: how many, and why the first few have none."""

    count: int = 0
    first: list[str] = dataclasses.field(default_factory=list)

    def noted(self, answers: "Iterator[FileAnswer]") -> "Iterator[FileAnswer]":
        """Yield the answers unchanged, and note the problems of those that have one."""
        for answer in answers:
            if answer.problem:
                self.count += 1
                self.first += [answer.problem] if len(self.first) < _NAMED else []
            yield answer


def _write(answers: "Iterator[FileAnswer]", file: IO[str], kind: str) -> int:
    """Write answers one by one, as JSON lines or as a table with the columns of the first; returns their number.

    A column of the input that has the name of one of the answer is called ``NAME, given``.
    """
    count, head = 0, list["FileAnswer"]()
    for answer in answers:
        head.append(answer)
        if not answer.problem:
            break
        if len(head) == _MOST_BROKEN:
            raise LabError(f"none of the first {_MOST_BROKEN:,} inputs can be read, e.g. {answer.problem}")
    names = dict.fromkeys(itertools.chain(*(answer.name for answer in reversed(head))))
    told = [*(head[-1].told if head else ()), "problem"]
    given = {name: f"{name}, given" if name in told else name for name in names}
    # The writer quotes a carriage return only if it ends lines.
    unix = types.SimpleNamespace(write=lambda row: file.write(row.removesuffix("\r\n") + "\n"))
    delimiter = _TABLES.get(kind, ",")
    writer = csv.DictWriter(unix, [*given.values(), *told], delimiter=delimiter, lineterminator="\r\n", restval="")
    if kind not in _JSON:
        writer.writeheader()
    for answer in itertools.chain(head, answers):
        count += 1
        of_input = {given[name]: value for name, value in answer.name.items()}
        cells = {name: _rounded(value) for name, value in {**of_input, **answer.told}.items()}
        if answer.problem:
            cells["problem"] = answer.problem
        if kind in _JSON:
            file.write(json.dumps(cells, ensure_ascii=False) + "\n")
        else:
            writer.writerow(cells)
    return count


def _rounded(value: Any) -> Any:
    """A number with six digits; float32 has no more."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
