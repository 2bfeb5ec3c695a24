"""What the parser of recipes says of a wrong value, in words for whoever typed it."""

import ast
import re

_OF_KEY = re.compile(r'Parser key "(?P<key>[\w.]+)": (?P<text>.*)', re.DOTALL)
_OF_TYPE = re.compile(
    r"Not of type (?P<type>\w+): (?:(?P<number>\S+) does not conform .*|.*: (?P<word>'.*'))", re.DOTALL
)
_EXPECTED = re.compile(r"Expected a (?P<type>.+)\. Got value: (?P<value>.*)", re.DOTALL)
_LITERAL = "typing.Literal"

_IN_WORDS = {
    "PositiveInt": "a whole number above 0",
    "NonNegativeInt": "0 or a whole number above it",
    "PositiveFloat": "a number above 0",
    "NonNegativeFloat": "0 or a number above it",
    "ClosedUnitInterval": "a number from 0 to 1",
    "OpenUnitInterval": "a number between 0 and 1",
    "<class 'int'>": "a whole number",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
}


def in_words(complaint: str) -> str:
    """A complaint of jsonargparse as one sentence; one of a form that is not known keeps its own words.

    Example:
        >>> in_words('Parser key "training.epochs": Not of type PositiveInt: -3 does not conform to restriction v>0')
        'training.epochs must be a whole number above 0; got -3'
        >>> in_words('''Parser key "model.kind": Expected a typing.Literal['a', 'b']. Got value: c''')
        'model.kind must be a or b; got c'
    """
    line = " ".join(complaint.split())
    of_key = _OF_KEY.fullmatch(line)
    if of_key is None:
        return line
    key, text = of_key["key"], of_key["text"]
    if found := _OF_TYPE.fullmatch(text):
        kind, value = found["type"], found["number"] or found["word"].strip("'")
    elif found := _EXPECTED.fullmatch(text):
        kind, value = found["type"], found["value"]
    else:
        return f"{key}: {text}"
    if kind.startswith(_LITERAL):
        *others, last = map(str, ast.literal_eval(kind.removeprefix(_LITERAL)))
        wanted = f"{', '.join(others)} or {last}" if others else last
    else:
        wanted = _IN_WORDS.get(kind, f"of type {kind}")
    return f"{key} must be {wanted}; got {value}"
