"""The command ``contmax``. Each subcommand is a file here; what it needs is imported when it runs."""

from contmax_lab.cli._main import main as main
