"""The command ``contmax``. What a subcommand needs is imported when it runs."""

from contmax_lab.cli._main import main as main
