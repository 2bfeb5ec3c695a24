"""Options that several subcommands share."""

import argparse


def add_task_option(parser: argparse.ArgumentParser) -> None:
    """--task, for tasks that are not installed."""
    text = "a task that is not installed, e.g. my_module:TASK; may be given several times"
    parser.add_argument("--task", action="append", default=[], metavar="MODULE:NAME", help=text)


def add_variant_option(parser: argparse.ArgumentParser) -> None:
    """--variant, of a recipe."""
    parser.add_argument("--variant", default="", help="of the recipe (default: the one it names); or TASK/VARIANT")
