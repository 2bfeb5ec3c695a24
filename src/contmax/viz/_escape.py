"""Text of strangers, made harmless: in pages and in pictures every character stands for itself."""

import html
import re

# Controls have no shape of their own, and lone surrogates cannot be encoded.
_CONTROLS = re.compile("[\x00-\x1f\x7f]")
_UNPRINTABLE = re.compile("[\x80-\x9f\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    r"""The text with a symbol in place of every control character.

    Example:
        >>> visible("a\nb\x00"), visible("\ud800")
        ('a␊b␀', '�')
    """
    shown = _CONTROLS.sub(lambda found: "␡" if found[0] == "\x7f" else chr(0x2400 + ord(found[0])), text)
    return _UNPRINTABLE.sub("\ufffd", shown)


def escaped(text: str) -> str:
    """The text for the body of a page or for an attribute in quotes.

    Example:
        >>> escaped('<b title="x">')
        '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(visible(text), quote=True)
