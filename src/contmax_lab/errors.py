"""What the user can mend. The command shows it as one line, without a traceback."""


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


class Interrupted(LabError):  # noqa: N818, nothing went wrong
    """Stopped from outside, with everything saved."""

    exit_code = 130
