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
    """Stopped from outside, with everything saved; the exit code says by which signal."""

    def __init__(self, text: str, exit_code: int = 130) -> None:
        super().__init__(text)
        self.exit_code = exit_code


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

    ends = {name: _split(name)[1] for name in known}
    found = [name for name, end in ends.items() if end == word]
    if not found:
        # Names of one section are alike by the name of the section: among them only the rest counts.
        section, rest = _split(word)
        siblings = {name: (rest, end) for name, end in ends.items() if section and _split(name)[0] == section}
        pairs = siblings or {name: (word, name) for name in ends}
        liked = {name: difflib.SequenceMatcher(None, *pair).ratio() for name, pair in pairs.items()}
        least = max(0.6 if siblings else 0.75, max(liked.values(), default=0.0) - 0.1)
        found = sorted((name for name in liked if liked[name] >= least), key=lambda name: -liked[name])[:3]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _split(name: str) -> tuple[str, str]:
    """What stands before the last "/" or ".", and after it."""
    section, _, rest = name.replace("/", ".").rpartition(".")
    return section, rest
