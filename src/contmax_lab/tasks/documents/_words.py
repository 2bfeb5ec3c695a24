"""Reviews as words."""

import re

_BREAK = re.compile(r"<br\s*/?>")
# In this order: a clitic, a word before "n't", a word (with its hyphens), any other sign by itself.
_TOKEN = re.compile(
    r"n't\b|'(?:s|re|ve|ll|d|m)\b|[a-z0-9]+(?:-[a-z0-9]+)*?(?=n't\b)|[a-z0-9]+(?:-[a-z0-9]+)*|[^\sa-z0-9]"
)


def tokenize(text: str) -> list[str]:
    """Lower-case words, with clitics split off and punctuation by itself; line breaks of HTML are spaces.

    Example:
        >>> tokenize("It isn't Bergman's best sci-fi,<br />but we'd see it again!")
        ['it', 'is', "n't", 'bergman', "'s", 'best', 'sci-fi', ',', 'but', 'we', "'d", 'see', 'it', 'again', '!']
    """
    return _TOKEN.findall(_BREAK.sub(" ", text.lower()))
