"""The colours of the page: those of the pictures, for light and dark screens."""

from contmax_lab.drawing import DARK, LIGHT, Theme


def theme_rules() -> str:
    """The colours as variables of CSS; ``--first`` and ``--second`` as three numbers, for any transparency.

    Example:
        >>> "prefers-color-scheme: dark" in theme_rules()
        True
    """
    return f"{_variables(LIGHT)}\n@media (prefers-color-scheme: dark) {{ {_variables(DARK)} }}\n"


def _variables(theme: Theme) -> str:
    roles = {role: getattr(theme, role) for role in ("paper", "plate", "ink", "soft", "line")}
    numbers = {
        "first": _numbers(theme.colour(0)),
        "second": _numbers(theme.colour(1)),
        "third": _numbers(theme.colour(4)),
    }
    values = " ".join(f"--{role}: {colour};" for role, colour in {**roles, **numbers}.items())
    return f":root {{ color-scheme: {theme.name}; {values} }}"


def _numbers(colour: str) -> str:
    return " ".join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))
