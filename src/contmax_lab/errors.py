"""What the user can mend. The command shows it as one line, without a traceback."""

from collections.abc import Sequence


class LabError(Exception):
    """A problem with data, configuration, disk or a run: one line that says what to do about it.

    Example:
        >>> raise LabError("runs/a already holds a run. Pass --resume.")
        Traceback (most recent call last):
        contmax_lab.errors.LabError: runs/a already holds a run. Pass --resume.
    """

    exit_code = 1


class UsageError(LabError):
    """The command line or a recipe says something that is not understood."""

    exit_code = 2


class CannotWrite(LabError):  # noqa: N818, the sentence begins so
    """A disk is full, or a folder does not take files: nothing that was computed is to blame."""


class InUse(LabError):  # noqa: N818, the sentence begins so
    """Another process trains in the folder."""


class Diverged(LabError):  # noqa: N818, the sentence begins so
    """A loss, a gradient or a parameter is not finite: the hyper-parameters are to blame."""


class Interrupted(LabError):  # noqa: N818, nothing went wrong
    """Stopped from outside, with everything saved."""

    exit_code = 130


def nearest(word: str, known: Sequence[str]) -> str:
    """A question for complaints about a name that does not exist, or nothing where no name is like it.

    Args:
        word: what was written.
        known: the names there are; the part after the last "/" or "." may stand for the whole.

    Example:
        >>> nearest("model.hiden_dim", ["model.hidden_dim", "model.alpha"])
        '; did you mean model.hidden_dim?'
        >>> nearest("parabola", ["intervals/parabola", "intervals/midpoint"])
        '; did you mean intervals/parabola?'
    """
    import difflib

    same_end = [name for name in known if name.replace("/", ".").rpartition(".")[2] == word]
    found = same_end or difflib.get_close_matches(word, known, n=3, cutoff=0.75)
    return f"; did you mean {' or '.join(found)}?" if found else ""
