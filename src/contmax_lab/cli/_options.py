"""Options that several subcommands share."""

import argparse


def add_task_option(parser: argparse.ArgumentParser) -> None:
    """--task, for tasks that are not installed."""
    text = "where to find a task that is not installed, e.g. my_module:TASK (can be repeated)"
    parser.add_argument("--task", action="append", default=[], metavar="MODULE:NAME", help=text)


def add_variant_option(parser: argparse.ArgumentParser) -> None:
    """--variant, of a recipe."""
    parser.add_argument("--variant", default="", help="which variant of the recipe; the same as TASK/VARIANT")
