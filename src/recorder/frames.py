"""The raw frames of one decision, as rows and as lines."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import orjson

from recorder.records import encode_line
from recorder.simulator import INLINE_RAM_BYTES, spell_ram

if TYPE_CHECKING:
    from recorder.records import JsonValue, Row
    from recorder.simulator import RawFrame

# The end of a raw frame's line where nothing happened but a new state.
_QUIET_END = '","rgb_sha256":null,"reward":null,"terminated":false,"truncated":false}\n'


class DecisionFrames:
    """What a simulator did within one decision.

    A simulator with many raw frames a decision mostly has quiet ones: no reward, no flag, no picture. Their
    lines are put together from parts, which takes a fifth of the time of spelling each from its row.

    Attributes:
        has_ram: Whether the state bytes are recorded.
        rewards: The reward of each raw frame, spelled; None where that clock has none.

    Args:
        decision: Number of the decision.
        first: Number of its first raw frame.
        action: The requested action, spelled.
        kept: Reward, terminated, truncated and state bytes of each.
        rewards: The reward of each, spelled; None where that clock has none.
        has_ram: Whether the state bytes are recorded.
        pictures: SHA-256 of each one's picture; empty where pictures are not recorded.
    """

    __slots__ = ("_action", "_decision", "_first", "_kept", "_pictures", "_quiet", "_spelled", "has_ram", "rewards")

    def __init__(  # noqa: PLR0917 - made once a decision, where keywords cost
        self,
        decision: int,
        first: int,
        action: JsonValue,
        kept: list[RawFrame],
        rewards: list[JsonValue],
        has_ram: bool,
        pictures: list[str | None],
    ) -> None:
        """Keep the parts; rows and lines are made when they are asked for."""
        self._decision = decision
        self._first = first
        self._action = action
        self._kept = kept
        self.rewards = rewards
        self.has_ram = has_ram
        self._pictures = pictures
        self._spelled: Row | None = None
        self._quiet: list[bool] | None = None

    def __len__(self) -> int:
        """How many raw frames the decision lasted."""
        return len(self._kept)

    @property
    def has_pictures(self) -> bool:
        """Whether pictures are recorded."""
        return any(self._pictures)

    def row(self, index: int) -> Row:
        """One raw frame as a row of `frames.jsonl`; the last one spelled is kept, as it is asked for twice."""
        number = self._first + index
        spelled = self._spelled
        if spelled is not None and spelled["raw_frame"] == number:
            return spelled
        _, terminated, truncated, ram = self._kept[index]
        self._spelled = row = {
            "decision": self._decision,
            "raw_frame": number,
            "requested_action": self._action,
            "ram": spell_ram(ram) if self.has_ram else None,
            "rgb_sha256": self._pictures[index] if self._pictures else None,
            "reward": self.rewards[index],
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }
        return row

    @property
    def has_quiet(self) -> bool:
        """Whether some lines consist of numbers, the decision's action and RAM in hex only."""
        return len(self._kept) > 1 and True in self._find_quiet()

    def rows_to_validate(self, *, is_quiet_valid: bool) -> list[Row]:
        """The rows that a schema has to see: all but the quiet ones after a first one.

        Those differ from it in integers, in hex digits and in the action, which is validated with the
        transition, so they are as valid as it is.

        Args:
            is_quiet_valid: Whether an earlier decision gave a quiet row already.
        """
        if len(self._kept) == 1:
            return [self.row(0)]
        quiet = self._find_quiet()
        wanted = [index for index, is_quiet in enumerate(quiet) if not is_quiet]
        if not is_quiet_valid and self.has_quiet:
            wanted.insert(0, quiet.index(True))
        return [self.row(index) for index in wanted]

    def lines(self) -> list[bytes]:
        """Every raw frame as the line that `records.encode_line` makes of its row."""
        return [line.encode() for line in self._spell_lines()]

    def block(self) -> bytes:
        """All lines, one behind the other."""
        return encode_line(self.row(0)) if len(self._kept) == 1 else "".join(self._spell_lines()).encode()

    def _find_quiet(self) -> list[bool]:
        """Which lines consist of numbers, the decision's action and RAM in hex only."""
        if self._quiet is None:
            is_possible = self.has_ram and not self._pictures
            self._quiet = [
                is_possible and reward is None and not (terminated or truncated) and len(ram) <= INLINE_RAM_BYTES
                for reward, terminated, truncated, ram in self._kept
            ]
        return self._quiet

    def _spell_lines(self) -> list[str]:
        start = f'{{"decision":{self._decision},"raw_frame":'
        middle = f',"requested_action":{orjson.dumps(self._action).decode()},"ram":"'
        return [
            f"{start}{number}{middle}{frame[3].hex()}{_QUIET_END}"
            if is_quiet
            else encode_line(self.row(number - self._first)).decode()
            for number, is_quiet, frame in zip(count(self._first), self._find_quiet(), self._kept, strict=False)
        ]
