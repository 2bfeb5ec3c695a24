"""Runs: a training is a folder, and the folder is all there is of it.

``config.yaml`` (resolved recipe), ``provenance.json`` (commit, machine, versions), ``metrics.jsonl`` (one line per
evaluation; ``metrics.csv`` has these lines as a table), ``checkpoints/`` (while it trains; the last one stays where the
run may be extended), ``model.safetensors`` (best weights) and ``results.json`` (when it is done). Files appear
atomically, and nothing in them is ever unpickled.
"""

import contextlib
import csv
import dataclasses
import fcntl
import io
import json
import os
import shlex
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from contmax_lab.contract import Recipe, Task, TrainedRun
from contmax_lab.errors import CannotWrite, InUse, LabError, UsageError
from contmax_lab.files import Checkpoint, read_checkpoint, write_atomically, write_checkpoint, write_json
from contmax_lab.provenance import provenance
from contmax_lab.recipes import RecipeSource, as_yaml, read_recipe, with_variant

_PACKAGES = ("contmax", "torch", "numpy", "numba", "accelerate", "safetensors", "jsonargparse")
# The second checkpoint is for the case that the newest is damaged.
_KEPT_CHECKPOINTS = 2
# Keys of a recipe that change no result.
_INDIFFERENT = {"data.cache", *(f"training.{key}" for key in ("checkpoint_seconds", "tensorboard", "wandb", "workers"))}

# Keys of a recipe that say how long to train: a run may be continued with others.
_EXTENT = {"training.epochs", "training.patience"}

# Forked processes inherit the lock of a run; they close it, so that a killed training releases its claim.
_held: weakref.WeakSet[IO[str]] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: [lock.close() for lock in _held])


class Run:
    """A training and what is left of it.

    Args:
        folder: where it lies, or will lie.

    Example:
        >>> Run("runs/nothing-here").results() is None
        True
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.config = self.folder / "config.yaml"
        self.metrics = self.folder / "metrics.jsonl"
        self.spreadsheet = self.folder / "metrics.csv"
        self.weights = self.folder / "model.safetensors"
        self.checkpoints = self.folder / "checkpoints"
        self._results = self.folder / "results.json"
        self._provenance = self.folder / "provenance.json"

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other processes out while this one trains; a killed process lets go by itself.

        Raises:
            InUse: if another process is there.
            CannotWrite: if the folder cannot be made.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
            _held.add(lock)
        except OSError as error:
            raise CannotWrite(f"cannot make {self.folder}: {error.strerror}; pass another --folder") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InUse(f"another process is training in {self.folder}; pass another --folder") from None
            yield

    def begin(self, recipe: Recipe, *, resume: bool, extend: bool = False) -> None:
        """Write the recipe down, or make sure that it is the one the run was begun with.

        Args:
            recipe: of the training.
            resume: whether there may be a run already.
            extend: whether that run may have been shorter; `extend` then writes the recipe down.

        Raises:
            UsageError: if there is a run already and it shall not, or cannot, be resumed.
        """
        if self.config.exists() and (self._saved() or self._results.exists() or self.weights.exists()):
            if not resume:
                raise UsageError(
                    f"{self.folder} already holds a run; pass --resume to continue it, or another --folder"
                )
            if extend and self.is_extended_by(recipe):
                self._check_extension(recipe)
            elif changed := self.differences(recipe):
                raise UsageError(f"{self.folder} was started with another recipe ({changed[0]}); pass another --folder")
            return
        kind = type(recipe.task)
        write_json(self._provenance, {**provenance(_PACKAGES), "task": f"{kind.__module__}:{kind.__qualname__}"})
        write_atomically(self.config, as_yaml(recipe).encode("utf-8"))

    def differences(self, recipe: Recipe) -> list[str]:
        """Settings that differ from the recipe the run was begun with and change its results.

        Data may move, so that only the names of its paths count. The section search and the interval of checkpoints
        change no result. Settings by which a run may become longer come last.
        """
        changes = sorted(self._changes(recipe).items(), key=lambda change: change[0] in _EXTENT)
        return [f"{key}: {begun}, now {now}" for key, (begun, now) in changes]

    def _changes(self, recipe: Recipe) -> dict[str, tuple[Any, Any]]:
        """Setting → what it was when the run was begun, and what it is now, where it changes the results."""
        begun, now = (dict(_deciding(r)) for r in (self.recipe(recipe.task), recipe))
        return {
            key: (begun.get(key), now.get(key))
            for key in dict.fromkeys([*now, *begun])
            if key not in begun or key not in now or begun[key] != now[key]
        }

    def is_extended_by(self, recipe: Recipe) -> bool:
        """Whether a recipe differs from that of the run in how long it trains, and in nothing else."""
        changes = self._changes(recipe) if self.config.exists() else {}
        return bool(changes) and changes.keys() <= _EXTENT

    def _check_extension(self, recipe: Recipe) -> None:
        epochs = self.recipe(recipe.task).training.epochs
        if recipe.training.epochs < epochs:
            raise UsageError(
                f"{self.folder} was begun with {epochs} epochs and cannot become shorter; got training.epochs "
                f"{recipe.training.epochs}: pass {epochs} or more, or another --folder"
            )
        if self.results() is not None and not self._saved():
            raise UsageError(
                f"{self.folder} is finished and has no checkpoint to go on from: contmax train keeps the last one, but "
                "contmax reproduce, contmax search and older versions do not; train again in another --folder"
            )

    def extend(self, recipe: Recipe) -> None:
        """Write down a recipe that trains for longer; what the run has found so far are no results any more."""
        # In this order: a run that is killed in between has its old recipe, and can be extended again.
        self._results.unlink(missing_ok=True)
        write_atomically(self.config, as_yaml(recipe).encode("utf-8"))

    def recipe(self, task: Task, overrides: Sequence[str] = ()) -> Recipe:
        """The recipe it was begun with, and changed.

        Args:
            task: of the run.
            overrides: dotted, e.g. ``--data.path`` where the data has moved.

        Raises:
            LabError: if there is no run, or it is of another task.
        """
        stored = self._stored()
        if stored["task"] != task.name:
            raise UsageError(f"{self.folder} is a run of the task {stored['task']}, not of {task.name}")
        origin = str(self.config)
        return RecipeSource(task, with_variant(stored, "", origin), origin, self.folder.name).recipe(overrides)

    def task_name(self) -> str:
        """The name of the task it was begun with.

        Raises:
            LabError: if there is no run.
        """
        return str(self._stored()["task"])

    def provenance(self) -> dict[str, Any]:
        """The commit, the machine and the versions with which the run was begun; empty if they are not known."""
        try:
            found: dict[str, Any] = json.loads(self._provenance.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _stored(self) -> dict[str, Any]:
        if not self.config.exists():
            lack = "it has no config.yaml" if self.folder.is_dir() else "there is no such folder"
            raise LabError(f"{self.folder} is not a run: {lack}; pass the folder of a training, e.g. below runs/")
        return read_recipe(self.config)

    # -- metrics -------------------------------------------------------------------------------------------------------

    def append_metrics(self, *records: dict[str, Any]) -> None:
        """Add lines to metrics.jsonl and metrics.csv."""
        lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records]
        with self._writing_metrics():
            with self.metrics.open("a", encoding="utf-8") as file:
                file.writelines(lines)
            if not _append_rows(self.spreadsheet, [_as_row(record) for record in records]):
                self._write_spreadsheet()

    def metrics_size(self) -> int:
        """Bytes of metrics.jsonl."""
        return self.metrics.stat().st_size if self.metrics.exists() else 0

    def sync_metrics(self) -> None:
        """Force metrics.jsonl to the disk."""
        if self.metrics.exists():
            with self._writing_metrics(), self.metrics.open("rb") as file:
                os.fsync(file.fileno())

    @contextlib.contextmanager
    def _writing_metrics(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"cannot write {self.metrics}: {error.strerror}; checkpoints are untouched."
            raise CannotWrite(f"{problem} Free space and pass --resume.") from None

    def truncate_metrics(self, size: int) -> None:
        """Delete the lines that were written after a checkpoint."""
        if self.metrics.exists():
            os.truncate(self.metrics, size)
            self._write_spreadsheet()

    def _write_spreadsheet(self) -> None:
        rows = [_as_row(record) for record in self.history()]
        write_atomically(self.spreadsheet, _as_csv(rows).encode("utf-8"))

    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line that was cut short is left out."""
        if not self.metrics.exists():
            return []
        try:
            lines = self.metrics.read_text(encoding="utf-8").split("\n")
            return [json.loads(line) for line in lines[:-1]]
        except (ValueError, OSError) as error:
            raise LabError(f"{self.metrics} is damaged: {error}") from None

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save(self, step: int, checkpoint: Checkpoint) -> None:
        """Store a checkpoint, after the metrics whose size it knows, then drop the oldest."""
        self.sync_metrics()
        write_checkpoint(self.checkpoints / f"step-{step:09d}.safetensors", checkpoint)
        for path in self._saved()[:-_KEPT_CHECKPOINTS]:
            path.unlink()

    def last_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, or None before the first.

        Raises:
            LabError: if it is damaged, with the way to go on from the one before.
        """
        saved = self._saved()
        if not saved:
            return None
        try:
            return read_checkpoint(saved[-1])
        except LabError as error:
            way = f"from {saved[-2].name}" if len(saved) > 1 else "from the start"
            raise LabError(f"{error}. Delete it and pass --resume to continue {way}.") from None

    def _saved(self) -> list[Path]:
        return sorted(self.checkpoints.glob("step-*.safetensors"))

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self, weights: Checkpoint, results: dict[str, Any], *, extendable: bool = False) -> None:
        """Store the best weights and the results, and delete the checkpoints; of an extendable run all but the last."""
        write_checkpoint(self.weights, weights)
        self.write_results(results)
        for path in self._saved()[: -1 if extendable else None]:
            path.unlink()

    def write_results(self, results: dict[str, Any]) -> None:
        """Store the results."""
        write_json(self._results, results)

    def keep(self, part: str, texts: Mapping[str, str]) -> None:
        """Store texts, name → text, that the task has made for a part of the data."""
        for name, text in texts.items():
            write_atomically(self.folder / "kept" / part / name, text.encode("utf-8"))

    def kept(self, part: str) -> dict[str, str]:
        """The texts, name → text, that are stored for a part of the data."""
        folder = self.folder / "kept" / part
        try:
            return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("[!.]*"))}
        except (OSError, ValueError) as error:
            raise LabError(f"{folder} cannot be read: {error}") from None

    def is_untested(self) -> bool:
        """Whether the run is done and has test examples, but no results on them yet."""
        results = self.results()
        return results is not None and results["test"] is None and results["examples"]["test"] > 0

    def results(self) -> dict[str, Any] | None:
        """The results, or None if the run is not done."""
        if not self._results.exists():
            return None
        try:
            results: dict[str, Any] = json.loads(self._results.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise LabError(f"{self._results} is damaged: {error}. Delete it and train with --resume.") from None
        return results


def _deciding(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    yield from (("task", recipe.task.name), ("seed", recipe.seed))
    for section in ("data", "model", "training"):
        for name, value in dataclasses.asdict(getattr(recipe, section)).items():
            key = f"{section}.{name}"
            if key in _INDIFFERENT:
                continue
            if isinstance(value, Path):
                value = value.resolve().name if section == "data" else str(value)
            yield key, value


def _as_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with parts as one row.

    Example:
        >>> _as_row({"epoch": 1, "valid": {"loss": 0.5}})
        {'epoch': 1, 'valid.loss': 0.5}
    """
    row: dict[str, Any] = {}
    for key, value in record.items():
        row |= {f"{key}.{name}": entry for name, entry in value.items()} if isinstance(value, dict) else {key: value}
    return row


def _as_csv(rows: Sequence[Mapping[str, Any]], *, head: bool = True) -> str:
    """Rows as CSV; a cell is empty where a row does not have the column.

    Example:
        >>> _as_csv([{"epoch": 1}, {"epoch": 2, "valid.loss": 0.5}]).splitlines()
        ['epoch,valid.loss', '1,', '2,0.5']
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    if head and rows:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Append rows to a file if the columns match; returns whether they do."""
    if not path.exists():
        return False
    with path.open("r+", encoding="utf-8", newline="") as file:
        head = next(csv.reader([file.readline()]), [])
        if any(list(row) != head for row in rows):
            return False
        file.seek(0, io.SEEK_END)
        file.write(_as_csv(rows, head=False))
    return True


def load_trained(task: Task, folder: str | Path, overrides: Sequence[str] = (), label: str | None = None) -> TrainedRun:
    """Load a run that is done.

    Args:
        task: that it was trained on.
        folder: of the run.
        overrides: dotted, e.g. ``--data.path`` where the data has moved.
        label: what pictures and tables call it; by default the folder's name.

    Raises:
        LabError: if there is no run, or it is not done, or its weights do not fit.
    """
    run = Run(folder)
    recipe = run.recipe(task, overrides)
    results = run.results()
    if results is None:
        command = shlex.join(["contmax", "train", str(run.config), "--folder", str(run.folder), "--resume"])
        raise LabError(f"{run.folder} is not finished; continue it: {command}")
    splits = recipe.load()
    model = task.build(recipe.model, splits)
    try:
        model.load_state_dict(read_checkpoint(run.weights).tensors)
    except RuntimeError as error:
        raise LabError(f"{run.weights} does not fit the model: {' '.join(str(error).split())}") from None
    return TrainedRun(run.folder, recipe, splits, model.eval(), results, label or run.folder.name)
