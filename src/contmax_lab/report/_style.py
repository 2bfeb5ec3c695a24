"""The style sheet of a report; its colours are those of the pictures."""

from contmax_lab.drawing import DARK, LIGHT, Theme

_RULES = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: clamp(1.2rem, 5vw, 3.5rem) clamp(1rem, 4vw, 2rem) 5rem;
       color: var(--ink); background: var(--paper);
       font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: clamp(1.6rem, 5vw, 2.2rem); line-height: 1.2; letter-spacing: -.015em; margin: 0 0 .5rem; }
h2 { font-size: 1.4rem; line-height: 1.3; letter-spacing: -.01em; margin: 3.5rem 0 .6rem; padding-top: 1.2rem;
     border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: .6rem 0; }
p.lead { font-size: 1.08rem; color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: .4rem 1.4rem; margin-top: 1.4rem; }
a { color: var(--accent); text-decoration: none; } a:hover, a:focus-visible { text-decoration: underline; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 1.2rem 0 .8rem; font-size: .95rem; font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .5rem .42rem 1.4rem; text-align: left; vertical-align: top; font-weight: normal; }
.number { text-align: right; white-space: nowrap; } th:first-child { padding-left: 0; min-width: min(11.5rem, 40vw); }
thead th { color: var(--soft); border-bottom: 1.5px solid var(--ink); vertical-align: bottom; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 1.5px solid var(--ink); }
.notes, figcaption { color: var(--soft); font-size: .9rem; line-height: 1.5; }
figure { margin: 2.2rem 0; }
.plate { background: var(--plate); border: 1px solid var(--line); border-radius: 8px; padding: .9rem; }
/* Letters in a picture stay readable on a phone: it scrolls rather than shrinks. */
.plate img { display: block; width: 100%; min-width: 34rem; height: auto; }
figcaption { max-width: 46rem; margin-top: .7rem; } figcaption strong { color: var(--ink); }
@media (max-width: 40rem) { th, td { padding-left: .8rem; } }
@media print { body { max-width: none; } figure, table { break-inside: avoid; } }
"""


def page_style() -> str:
    """All rules, for light and dark screens.

    Example:
        >>> "prefers-color-scheme: dark" in page_style()
        True
    """
    dark = f"@media (prefers-color-scheme: dark) {{ {_colours(DARK)} }}"
    return f"{_colours(LIGHT)}\n{dark}{_RULES}"


def _colours(theme: Theme) -> str:
    roles = {role: getattr(theme, role) for role in ("paper", "plate", "ink", "soft", "line")}
    values = " ".join(f"--{role}: {colour};" for role, colour in {**roles, "accent": theme.colour(0)}.items())
    return f":root {{ color-scheme: {theme.name}; {values} }}"
