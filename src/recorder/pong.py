"""Pong's RAM or screen as boxes, and the boxes of four decisions as the object observation of the published Pong lab.

The layout is that of the lab's records, `atari-object-observation-v1`: the keys in their order, integers and floats
where it has them, so that `json.dumps` of an observation is the text of a published line. The RAM addresses are those
that OCAtari (MIT) found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

Box: TypeAlias = tuple[int, int, int, int]

GAME = "ALE/Pong-v5"
SCHEMA_VERSION = "atari-object-observation-v1"
EXTRACTOR_VERSION = "pong-ocatari-derived-v1"

RAM_BYTES = 128
SCREEN_SHAPE = (210, 160, 3)
_ROW_BYTES = 480
# Rows of the screen between the two walls.
PLAYFIELD_TOP_PX = 34
PLAYFIELD_BOTTOM_PX = 194

# One sample a decision, the current one included.
WINDOW_SAMPLES = 4

# By ALE id, in the order of Pong's minimal action set: ALE's name, and what it does to the player's paddle.
ACTIONS = (
    ("NOOP", "hold"),
    ("FIRE", "hold"),
    ("RIGHT", "up"),
    ("LEFT", "down"),
    ("RIGHTFIRE", "up"),
    ("LEFTFIRE", "down"),
)

# How to read the boxes. Found by search: with these texts the published files have their published hashes.
COORDINATES: dict[str, str | int] = {
    "width_px": 160,
    "height_px": 210,
    "origin": "top_left",
    "x_positive": "right",
    "y_positive": "down",
    "bbox_format": "x_y_width_height",
    "velocity_unit": "pixels_per_raw_frame",
}

_PADDLE_HEIGHT_PX = 15
_PADDLE_WIDTH_PX = 4
_PLAYER_X_PX = 140
_OPPONENT_X_PX = 16
_BALL_SIZE_PX = (2, 4)
_OBJECTS = (("player", "paddle"), ("opponent", "paddle"), ("ball", "ball"))

_PLAYER_RGB = (92, 186, 92)
_OPPONENT_RGB = (213, 130, 74)
_BALL_RGB = (236, 236, 236)


class Boxes(NamedTuple):
    """Where the three objects are: `(x, y, width, height)` in px of the 160 x 210 screen, y down; None where unseen."""

    player: Box | None
    opponent: Box | None
    ball: Box | None


_Sample: TypeAlias = tuple[int, Boxes]


def reset_noop_count(seed: int, *, noop_max: int = 30) -> int:
    """How many raw frames of NOOP follow the reset of a seed, before the policy is first asked."""
    return int(np.random.default_rng(seed).integers(0, noop_max + 1))


def ram_boxes(ram: bytes | np.ndarray[Any, np.dtype[np.uint8]]) -> Boxes:
    """The boxes that ALE's RAM tells of.

    The ball is not clipped to the screen: it has y from 30 to 33 above the playfield, and x beyond 160. These boxes
    differ from those on the screen (see `vision_boxes`), so the two sources are never mixed.

    Args:
        ram: 128 bytes.

    Raises:
        ValueError: There are not 128 bytes.
    """
    # An array's uint8 elements would wrap round below; those of bytes are integers.
    ram = bytes(ram)
    if len(ram) != RAM_BYTES:
        message = f"Pong's RAM has {RAM_BYTES} bytes, not {len(ram)}"
        raise ValueError(message)
    player = opponent = ball = None
    # Bytes 51 and 50 move with the lower end of the part of a paddle that is on the playfield.
    low = ram[51]
    if low >= PLAYFIELD_TOP_PX:
        top = max(PLAYFIELD_TOP_PX, low - 13)
        height = low - 33 if low < 47 else min(_PADDLE_HEIGHT_PX, PLAYFIELD_BOTTOM_PX - top)  # noqa: PLR2004 - 34 + 13
        if height > 0:
            player = (_PLAYER_X_PX, top, _PADDLE_WIDTH_PX, height)
    low = ram[50]
    if low >= PLAYFIELD_TOP_PX:
        top = max(PLAYFIELD_TOP_PX, low - 15)
        height = min(_PADDLE_HEIGHT_PX, low - 33, PLAYFIELD_BOTTOM_PX - top)
        if height > 0:
            opponent = (_OPPONENT_X_PX, top, _PADDLE_WIDTH_PX, height)
    x = ram[49] - 49
    if x > 0 and ram[54]:
        ball = (x, ram[54] - 14, *_BALL_SIZE_PX)
    return Boxes(player, opponent, ball)


def vision_boxes(rgb: np.ndarray[Any, np.dtype[np.uint8]]) -> Boxes:
    """The boxes that the screen shows: the tight box of all pixels of an object's exact colour on the playfield.

    Paddles are 16 px high here and 15 px in `ram_boxes`, and a ball above the playfield is not seen.

    Args:
        rgb: The screen, (210, 160, 3) uint8.

    Raises:
        ValueError: It has another shape or dtype.
    """
    if rgb.shape != SCREEN_SHAPE or rgb.dtype != np.uint8:
        message = f"Pong's screen is {SCREEN_SHAPE} uint8, not {rgb.shape} {rgb.dtype}"
        raise ValueError(message)
    screen = rgb[PLAYFIELD_TOP_PX:PLAYFIELD_BOTTOM_PX].tobytes()
    return Boxes(_colour_box(screen, _PLAYER_RGB), _colour_box(screen, _OPPONENT_RGB), _colour_box(screen, _BALL_RGB))


class Tracker:
    """Boxes decision by decision, in; observations, out.

    Keeps the samples of the last four decisions. A point takes the ball out of the samples kept so far, so that no
    velocity and no history reaches across it; when the ball was last seen is not forgotten.
    """

    def __init__(
        self,
        *,
        source: Literal["ram", "vision"] = "ram",
        hold_frames: int = 4,
        sticky_probability: float = 0.25,
    ) -> None:
        """Set what is the same in every observation.

        Args:
            source: Where the boxes come from.
            hold_frames: Raw frames for which an action is requested.
            sticky_probability: The emulator's, per raw frame.
        """
        self._source = source
        self._hold_frames = hold_frames
        self._sticky_probability = sticky_probability
        self._clock = 0
        self._samples: list[_Sample] = []
        self._last_seen: list[int | None] = [None, None, None]

    def reset(self, boxes: Boxes) -> dict[str, Any]:
        """Forget everything and return the first observation, of the raw frame that the policy first sees."""
        self._clock = 0
        self._samples = []
        self._last_seen = [None, None, None]
        return self._observation(boxes, None, [])

    def observe(
        self, boxes: Boxes, *, rewards: Sequence[float], raw_frames: int, requested_action: int
    ) -> dict[str, Any]:
        """Take a decision's outcome and return the next observation.

        Args:
            boxes: After the decision's last raw frame.
            rewards: Of its raw frames, in order.
            raw_frames: How many were stepped.
            requested_action: The id that was requested for them.
        """
        self._clock += raw_frames
        events = [("point_scored" if reward > 0 else "point_lost") for reward in rewards if reward]
        if events:
            self._samples = [(clock, Boxes(kept.player, kept.opponent, None)) for clock, kept in self._samples]
        return self._observation(boxes, requested_action, events)

    def _observation(self, boxes: Boxes, requested_action: int | None, events: list[str]) -> dict[str, Any]:
        clock, hold_frames, samples = self._clock, self._hold_frames, self._samples
        objects = self._objects(boxes)
        samples.append((clock, boxes))
        del samples[:-WINDOW_SAMPLES]
        return {
            "schema_version": SCHEMA_VERSION,
            "extractor_version": EXTRACTOR_VERSION,
            "game": GAME,
            "observation_source": self._source,
            "coordinates": COORDINATES.copy(),
            "control": {
                "requested_hold_frames": hold_frames,
                "sticky_action_probability": self._sticky_probability,
                "last_requested_action_id": requested_action,
                # Sticky actions: which one was executed cannot be observed.
                "last_executed_action_id": None,
            },
            "objects": objects,
            "history": [
                {
                    "offset_raw_frames": then - clock,
                    "boxes": {"player": _as_list(player), "opponent": _as_list(opponent), "ball": _as_list(ball)},
                }
                for then, (player, opponent, ball) in samples
            ],
            "events_observed": events,
            "candidate_actions": [
                {"id": action, "ale_meaning": meaning, "effect": effect, "hold_raw_frames": hold_frames}
                for action, (meaning, effect) in enumerate(ACTIONS)
            ],
        }

    def _objects(self, boxes: Boxes) -> list[dict[str, Any]]:
        """The present sample's objects, with velocities from the last sample before it."""
        clock, last_seen = self._clock, self._last_seen
        before, past = self._samples[-1] if self._samples else (clock, boxes)
        elapsed = clock - before
        objects = []
        for index, (name, kind) in enumerate(_OBJECTS):
            box, past_box = boxes[index], past[index]
            if box is not None:
                last_seen[index] = clock
            seen = last_seen[index]
            velocity = interval = None
            if box is not None and past_box is not None and elapsed > 0:
                velocity = [(box[0] - past_box[0]) / elapsed, (box[1] - past_box[1]) / elapsed]
                interval = elapsed
            objects.append(
                {
                    "id": name,
                    "kind": kind,
                    "present": box is not None,
                    "bbox": _as_list(box),
                    "velocity": velocity,
                    "velocity_valid": velocity is not None,
                    "sample_interval_raw_frames": interval,
                    "age_since_last_seen_raw_frames": None if seen is None else clock - seen,
                }
            )
        return objects


def _as_list(box: Box | None) -> list[int] | None:
    """A list of its own each time, so that who edits one part of an observation edits no other."""
    return None if box is None else [*box]


def _colour_box(screen: bytes, rgb: tuple[int, int, int]) -> Box | None:
    """The tight box of a colour in the playfield's bytes."""
    red, green, blue = rgb
    # Two quick searches leave a few rows to look at: no green of an object is in the background.
    start, end = screen.find(green), screen.rfind(green)
    if start < 0:
        return None
    start, end = start // _ROW_BYTES, end // _ROW_BYTES + 1
    rows = np.frombuffer(screen, np.uint8)[start * _ROW_BYTES : end * _ROW_BYTES]
    greens = np.flatnonzero(rows == green)
    greens = greens[greens % 3 == 1]
    pixels = greens[(rows[greens - 1] == red) & (rows[greens + 1] == blue)] // 3
    if not pixels.size:
        return None
    columns = pixels % SCREEN_SHAPE[1]
    left, top, bottom = int(columns.min()), int(pixels[0]) // SCREEN_SHAPE[1], int(pixels[-1]) // SCREEN_SHAPE[1]
    return (left, PLAYFIELD_TOP_PX + start + top, int(columns.max()) - left + 1, bottom - top + 1)
