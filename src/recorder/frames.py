"""The raw frames of one decision, as rows and as lines."""

from __future__ import annotations

from itertools import count, repeat
from typing import TYPE_CHECKING

import orjson

from recorder.records import encode_line
from recorder.simulator import INLINE_RAM_BYTES, spell_ram

if TYPE_CHECKING:
    from recorder.hashing import PictureHasher, Ticket
    from recorder.records import JsonValue, Row
    from recorder.simulator import RawFrame

# The end of a raw frame's line in which nothing ended.
_QUIET_END = ',"terminated":false,"truncated":false}\n'


class DecisionFrames:
    """What a simulator did within one decision.

    A simulator with many raw frames a decision mostly has quiet ones, in which nothing ended. Their lines are put
    together from parts, which takes a fifth of the time of spelling each from its row.

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
        pictures: What the hasher gave for each one's picture; empty where pictures are not recorded.
        hasher: Gives their SHA-256 when the lines are made, and not before: it may still be at it.
    """

    __slots__ = (
        "_action",
        "_decision",
        "_digests",
        "_first",
        "_hasher",
        "_kept",
        "_pictures",
        "_quiet",
        "_spelled",
        "has_ram",
        "rewards",
    )

    def __init__(  # noqa: PLR0917 - made once a decision, where keywords cost
        self,
        decision: int,
        first: int,
        action: JsonValue,
        kept: list[RawFrame],
        rewards: list[JsonValue],
        has_ram: bool,
        pictures: list[Ticket],
        hasher: PictureHasher | None = None,
    ) -> None:
        """Keep the parts; rows and lines are made when they are asked for."""
        self._decision = decision
        self._first = first
        self._action = action
        self._kept = kept
        self.rewards = rewards
        self.has_ram = has_ram
        self._pictures = pictures
        self._hasher = hasher
        self._digests: list[str] | None = None
        self._spelled: Row | None = None
        self._quiet: list[bool] | None = None

    def __len__(self) -> int:
        """How many raw frames the decision lasted."""
        return len(self._kept)

    @property
    def has_pictures(self) -> bool:
        """Whether pictures are recorded."""
        return bool(self._pictures)

    @property
    def is_pending(self) -> bool:
        """Whether a hasher may still be at the pictures, so that asking for lines could take a while."""
        return self._digests is None and bool(self._pictures) and self._pictures[-1].__class__ is int

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
            "rgb_sha256": self._find_digests()[index] if self._pictures else None,
            "reward": self.rewards[index],
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }
        return row

    @property
    def has_quiet(self) -> bool:
        """Whether some lines consist of numbers, the decision's action and hex only."""
        return self._is_templated and True in self._find_quiet()

    def rows_to_validate(self, *, is_quiet_valid: bool) -> list[Row]:
        """The rows that a schema has to see: all but the quiet ones after a first one.

        Those differ from it in numbers, in hex digits and in the action, which is validated with the transition,
        so they are as valid as it is.

        Args:
            is_quiet_valid: Whether an earlier decision gave a quiet row already.
        """
        if not self._is_templated:
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
        return "".join(self._spell_lines()).encode() if self._is_templated else encode_line(self.row(0))

    @property
    def _is_uniform(self) -> bool:
        """Whether quiet lines differ in their number and their RAM only."""
        return self._is_templated and self.has_ram and not self._pictures and self._has_no_reward

    def _uniform_parts(self) -> tuple[str, str, str]:
        """What stands before the number, between it and the RAM's hex, and behind that."""
        middle = f',"requested_action":{orjson.dumps(self._action).decode()},"ram":"'
        return (
            f'{{"decision":{self._decision},"raw_frame":',
            middle,
            f'","rgb_sha256":null,"reward":null{_QUIET_END}',
        )

    @property
    def _is_templated(self) -> bool:
        """A single raw frame is spelled from its row: with that, its value and its line are both made once."""
        return len(self._kept) > 1

    def _find_digests(self) -> list[str]:
        """The SHA-256 of each picture."""
        if self._digests is None:
            hasher = self._hasher
            # Released when all are here, and not one by one: an interruption may come between.
            self._digests = [str(ticket) if hasher is None else hasher.digest(ticket) for ticket in self._pictures]
            if hasher is not None:
                hasher.release(self._pictures)
        return self._digests

    def _find_quiet(self) -> list[bool]:
        """Which lines consist of numbers, the decision's action and hex only."""
        if self._quiet is None:
            quiet = [
                not (terminated or truncated) and len(ram) <= INLINE_RAM_BYTES
                for _, terminated, truncated, ram in self._kept
            ]
            if not self._has_no_reward:
                plain = [reward is None or reward.__class__ is float for reward in self.rewards]
                quiet = [both == (True, True) for both in zip(quiet, plain, strict=True)]
            self._quiet = quiet
        return self._quiet

    @property
    def _has_no_reward(self) -> bool:
        return self.rewards.count(None) == len(self.rewards)

    def _spell_lines(self) -> list[str]:
        start, middle, end = self._uniform_parts()
        if self._is_uniform:
            return [
                f"{start}{number}{middle}{frame[3].hex()}{end}" if is_quiet else self._spell_line(number)
                for number, is_quiet, frame in zip(count(self._first), self._find_quiet(), self._kept, strict=False)
            ]
        middle = middle.removesuffix('"')
        return [
            f"{start}{number}{middle}{self._spell_ram(frame[3])}{end}" if is_quiet else self._spell_line(number)
            for number, is_quiet, frame, end in zip(
                count(self._first), self._find_quiet(), self._kept, self._spell_ends(), strict=False
            )
        ]

    def _spell_ram(self, ram: bytes) -> str:
        return f'"{ram.hex()}"' if self.has_ram else "null"

    def _spell_line(self, number: int) -> str:
        return encode_line(self.row(number - self._first)).decode()

    def _spell_ends(self) -> list[str]:
        """What comes behind the RAM of each, if its line is quiet."""
        pictures = [f'"{digest}"' for digest in self._find_digests()] if self._pictures else repeat("null")
        return [
            f',"rgb_sha256":{picture},"reward":{_spell_reward(reward)}{_QUIET_END}'
            for picture, reward in zip(pictures, self.rewards, strict=False)
        ]


def _spell_reward(reward: float | None) -> str:
    return "null" if reward is None else orjson.dumps(reward).decode()
