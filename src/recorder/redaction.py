r"""Secrets removed from decoded values before anything is stored, in every spelling that they travel in.

A secret is found raw; with each character, or some, escaped as JSON does it (`\"`, `\\`, `\/`, `\u00e9`, also nested),
as URLs do it (`%22`, `%2522`, `+` for a space) or as HTML does it; in base64 of both alphabets, also within a longer
text that was encoded as a whole (`Basic ...`); and in hex. Numbers are looked at as they are written.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from recorder.errors import UsageError

MARK = "[REDACTED]"

# A shorter text would be found by chance.
LEAST_CHARACTERS = 8

# Names of the escapes that HTML gives a character, besides its number.
_HTML_NAMES = {'"': "quot", "&": "amp", "<": "lt", ">": "gt", "'": "apos"}


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

    def redact(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """A copy of a JSON value without the secrets: texts, keys, numbers, at any depth."""
        return self._walk(value) if self._patterns else value

    def redact_text(self, text: str) -> str:
        """A text without the secrets."""
        for pattern in self._patterns:
            text, places = pattern.subn(MARK, text)
            self.places += places
        return text

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
    return "".join(map(_character, text))


def _character(letter: str) -> str:
    """A pattern of everything that spells one character."""
    number = ord(letter)
    ways = [re.escape(letter), _percent(letter), _unicode_escape(number), f"&#0*{number};", f"&#[xX]0*(?i:{number:x});"]
    if letter in _HTML_NAMES:
        ways.append(f"&{_HTML_NAMES[letter]};")
    if letter in "\"/'":
        ways.append(rf"\\\\*{re.escape(letter)}")
    if letter == "\\":
        ways.append(r"\\\\+")
    if letter == " ":
        ways.append(r"\+")
    short = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}.get(letter)
    if short is not None:
        ways.append(rf"\\\\*{short}")
    return f"(?:{'|'.join(ways)})"


def _percent(letter: str) -> str:
    """As in a URL, encoded once or more often."""
    data = letter.encode("utf-8", "surrogatepass")
    return "".join(f"%(?:25)*(?i:{byte:02x})" for byte in data)


def _unicode_escape(number: int) -> str:
    r"""As `\uXXXX`, a pair of them beyond the basic plane."""
    if number <= 0xFFFF:  # noqa: PLR2004 - the basic plane
        return rf"\\\\*u(?i:{number:04x})"
    number -= 0x10000
    high, low = 0xD800 + (number >> 10), 0xDC00 + (number & 0x3FF)
    return rf"\\\\*u(?i:{high:04x})\\\\*u(?i:{low:04x})"
