"""Words of a text in any language."""

import re

# Scripts that write no spaces: every sign is a word.
_SIGNS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_SIGNS}]|[^\W{_SIGNS}]+(?:['’-][^\W{_SIGNS}]+)*|[^\w\s]")


def split_words(text: str) -> list[str]:
    """Words in lower case, punctuation by itself; of Chinese and Japanese every sign.

    Example:
        >>> split_words("Isn't it well-made? Ja, schön! 好看")
        ["isn't", 'it', 'well-made', '?', 'ja', ',', 'schön', '!', '好', '看']
    """
    return _WORD.findall(text.lower())
