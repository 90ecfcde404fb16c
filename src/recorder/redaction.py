r"""Secrets removed from decoded values before anything is stored, in every spelling that they travel in.

A secret is found raw; with each character, or some, escaped as JSON does it (`\"`, `\\`, `\/`, `\u00e9`, also nested),
as URLs do it (`%22`, `%2522`, `+` for a space) or as HTML does it; in base64 of both alphabets, also within a longer
text that was encoded as a whole (`Basic ...`); and in hex. Numbers are looked at as they are written.
"""

from __future__ import annotations

import base64
import contextlib
import html.entities
import itertools
import re
from collections.abc import Mapping
from typing import Any

from recorder.errors import UsageError

MARK = "[REDACTED]"

# A shorter text would be found by chance.
LEAST_CHARACTERS = 8

# Names that HTML has for a character, besides its number.
_HTML_NAMES: dict[str, list[str]] = {}
for _name, _letter in html.entities.html5.items():
    if _name.endswith(";"):
        _HTML_NAMES.setdefault(_letter, []).append(re.escape(_name[:-1]))

# Backslashes before an escaped character: as many as escaping three times makes. Without a bound a long run of them
# would be searched again from each of its places.
_ESCAPES = 8
_BACKSLASHES = rf"\\\\{{0,{_ESCAPES - 1}}}"

_ASCII = 0x7F
_BYTE = 0x100


class Redactor:
    """Replaces secrets by a mark that does not depend on them, and counts the places.

    Args:
        secrets: Text of each secret by the name that errors use, such as the environment variable that held it.

    Attributes:
        places: How many were replaced so far.

    Raises:
        UsageError: A secret is too short to be told from other text; the message holds its name only.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Work out every spelling once."""
        for name, secret in secrets.items():
            if len(secret) < LEAST_CHARACTERS:
                message = (
                    f"the secret {name} has {len(secret)} characters: one of fewer than {LEAST_CHARACTERS} cannot be "
                    "told from other text, so nothing is recorded with it"
                )
                raise UsageError(message)
        self.places = 0
        # The longest first: one secret may be a part of another.
        found = sorted(set(secrets.values()), key=len, reverse=True)
        # One pattern a spelling: each begins with a choice of characters, for which texts are searched quickly.
        self._patterns = [re.compile(spelling) for secret in found for spelling in _spellings(secret)]
        self._any_case = [re.compile(_characters(secret), re.IGNORECASE) for secret in found]

    def redact(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """A copy of a JSON value without the secrets: texts, keys, numbers, at any depth."""
        return self._walk(value) if self._patterns else value

    def redact_text(self, text: str) -> str:
        """A text without the secrets."""
        for pattern in self._patterns:
            text, places = pattern.subn(MARK, text)
            self.places += places
        return text

    def redact_url(self, url: str) -> str:
        """A URL without the secrets, whose host may have been put into lower case."""
        url = self.redact_text(url)
        for pattern in self._any_case:
            url, places = pattern.subn(MARK, url)
            self.places += places
        return url

    def _walk(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, dict):
            return self._walk_mapping(value)
        if isinstance(value, list | tuple):
            return [self._walk(item) for item in value]
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, bytes):
            return self.redact_text(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        written = repr(value)
        redacted = self.redact_text(written)
        return value if redacted == written else redacted

    def _walk_mapping(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        redacted: dict[Any, Any] = {}
        for key, item in value.items():
            name = self._walk(key)
            while name in redacted:  # two keys that differ in a secret only must not become one
                name = f"{name} "
            redacted[name] = self._walk(item)
        return redacted


def _spellings(secret: str) -> list[str]:
    """Patterns of everything that spells a secret."""
    data = secret.encode("utf-8", "surrogatepass")
    encoded = {text for alphabet in (base64.b64encode, base64.urlsafe_b64encode) for text in _aligned(data, alphabet)}
    # The characters beside them hold a few bits of the secret too.
    around = "[A-Za-z0-9+/_-]?"
    whole = [f"{_characters(text)}{around}=*" for text in sorted(encoded, key=len, reverse=True)]
    as_hex = "".join(f"[{digit}{digit.upper()}]" for digit in data.hex())
    return [_characters(secret), *whole, as_hex]


def _aligned(data: bytes, encode: Any) -> list[str]:  # noqa: ANN401 - a function of the base64 module
    """What base64 makes of a secret wherever it begins within a text: the characters that depend on it alone."""
    found = []
    for offset in range(3):
        text = encode(bytes(offset) + data).decode("ascii").rstrip("=")
        first = -(-offset * 8 // 6)
        whole = (offset + len(data)) * 8 // 6
        found.append(text[first:whole])
    return [text for text in found if len(text) >= LEAST_CHARACTERS]


def _characters(text: str) -> str:
    parts: list[str] = []
    for is_backslash, run in itertools.groupby(text, lambda letter: letter == "\\"):
        letters = "".join(run)
        if not is_backslash:
            parts += map(_character, letters)
            continue
        # Escaping multiplies them.
        count = len(letters)
        others = f"(?:{_percent(letters[0])}|{_unicode_escape(ord(letters[0]))}|&#0*92;|&#[xX]0*5[cC];)"
        parts.append(f"(?:\\\\{{{count},{_ESCAPES * count}}}|{others}{{{count}}})")
    return "".join(parts)


def _character(letter: str) -> str:
    """A pattern of everything that spells one character but a backslash."""
    number = ord(letter)
    data = letter.encode("utf-8", "surrogatepass")
    ways = [re.escape(letter), _percent(letter), _unicode_escape(number)]
    ways += [f"&(?:amp;){{0,3}}#0*{number};", f"&(?:amp;){{0,3}}#[xX]0*(?i:{number:x});"]
    ways += [f"&(?:amp;){{0,3}}{name};" for name in _HTML_NAMES.get(letter, ())]
    ways.append("".join(rf"{_BACKSLASHES}x(?i:{byte:02x})" for byte in data))
    if _ASCII < number < _BYTE:  # one byte, where the text was taken for latin-1
        ways += [rf"{_BACKSLASHES}x(?i:{number:02x})", f"%(?:25)*(?i:{number:02x})"]
    if number > _ASCII:
        ways += [_plain_characters(mistaken) for mistaken in sorted(_mistaken(data))]
    if letter in "\"/'":
        ways.append(rf"{_BACKSLASHES}{re.escape(letter)}")
    if letter == "'":
        ways.append("'\"'\"'")  # as a shell quotes it
    if letter == " ":
        ways.append(r"\+")
    short = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}.get(letter)
    if short is not None:
        ways.append(rf"{_BACKSLASHES}{short}")
    return f"(?:{'|'.join(ways)})"


def _mistaken(data: bytes) -> set[str]:
    """What UTF-8 becomes for a reader who takes it for another encoding, as servers do with headers."""
    found = {data.decode("latin-1")}
    with contextlib.suppress(UnicodeDecodeError):
        found.add(data.decode("cp1252"))
    return found


def _plain_characters(text: str) -> str:
    return "".join(f"(?:{re.escape(letter)}|{_percent(letter)}|{_unicode_escape(ord(letter))})" for letter in text)


def _percent(letter: str) -> str:
    """As in a URL, encoded once or more often."""
    data = letter.encode("utf-8", "surrogatepass")
    return "".join(f"%(?:25)*(?i:{byte:02x})" for byte in data)


def _unicode_escape(number: int) -> str:
    r"""As `\uXXXX`, a pair of them beyond the basic plane."""
    if number <= 0xFFFF:  # noqa: PLR2004 - the basic plane
        return rf"{_BACKSLASHES}u(?i:{number:04x})"
    number -= 0x10000
    high, low = 0xD800 + (number >> 10), 0xDC00 + (number & 0x3FF)
    return rf"{_BACKSLASHES}u(?i:{high:04x}){_BACKSLASHES}u(?i:{low:04x})"
