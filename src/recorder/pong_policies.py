"""Rules that play Pong from the object observation, each with the `prediction` that the published lab's rows have."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

from recorder.errors import UsageError
from recorder.pong import ACTIONS

# From an observation to the requested action and the row's `prediction`.
PongPolicy: TypeAlias = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]

HOLD, UP, DOWN = 0, 2, 3

# The name that the records have, by the name on the command line.
RECORDED_NAMES = {
    "track-2px": "track-ball-center-v1",
    "track-4px": "track-ball-center-4px-v1",
    "intercept": "reflected-intercept-4px-v1",
    "random": "random-v1",
}
_TRACKING_BANDS_PX = {"track-2px": 2, "track-4px": 4}
_INTERCEPT_BAND_PX = 4

# Where the ball's centre turns back: half its height away from the walls at y 34 and 194. And between the two.
BOUNCE_TOP_PX = 36
BOUNCE_BOTTOM_PX = 192
MIDDLE_PX = 114


def make_pong_policy(name: str, seed: int) -> PongPolicy:
    """The policy of a name.

    Args:
        name: One of `RECORDED_NAMES`: as a key, or as the records have it.
        seed: The episode's; only the random policy uses it.

    Raises:
        UsageError: There is no such policy.
    """
    short = {recorded: key for key, recorded in RECORDED_NAMES.items()}.get(name, name)
    if short in _TRACKING_BANDS_PX:
        return _tracking(RECORDED_NAMES[short], _TRACKING_BANDS_PX[short])
    if short == "intercept":
        return _intercept
    if short == "random":
        return _random(seed)
    message = f"Pong policy {name!r} is not known: use {', '.join(RECORDED_NAMES)}"
    raise UsageError(message)


def _tracking(recorded_name: str, band_px: int) -> PongPolicy:
    """Move the paddle's centre towards the ball's; stay when it is no farther than the band."""

    def decide(observation: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        player, _, ball = observation["objects"]
        return _move(player["bbox"], _centre_y(ball["bbox"]), band_px), {"policy": recorded_name}

    return decide


def _random(seed: int) -> PongPolicy:
    """Any of the ids, by Python's own generator, as the published runs drew them."""
    generator = random.Random(seed)  # noqa: S311 - plays a game, keeps no secret
    ids = range(len(ACTIONS))

    def decide(_: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        prediction = {"policy": RECORDED_NAMES["random"], "selection_probability": 1 / len(ids)}
        return generator.choice(ids), prediction

    return decide


def _intercept(observation: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Wait where the ball will reach the paddle's face; in the middle while it flies away."""
    player, _, ball = observation["objects"]
    target_y, mode = _aim(player["bbox"], ball["bbox"], ball["velocity"])
    action = _move(player["bbox"], target_y, _INTERCEPT_BAND_PX)
    return action, {"policy": RECORDED_NAMES["intercept"], "target_y": target_y, "mode": mode}


def _aim(player: list[int] | None, ball: list[int] | None, velocity: list[float] | None) -> tuple[float | None, str]:
    """The y, px, that the paddle's centre should have, and the rule that says so."""
    ball_y = _centre_y(ball)
    if player is None or ball is None or ball_y is None:
        return None, "missing-object"
    # Nor can a ball that moves up and down only be projected.
    if velocity is None or velocity[0] == 0:
        return ball_y, "track-without-velocity"
    if velocity[0] < 0:
        return float(MIDDLE_PX), "recenter-away"
    # A ball beyond the face is where it is.
    frames = max(0.0, (player[0] - (ball[0] + ball[2] / 2)) / velocity[0])
    return _reflect(ball_y + velocity[1] * frames), "predicted-intercept"


def _reflect(y: float) -> float:
    """Fold a straight path's y back between the two bounces."""
    height = BOUNCE_BOTTOM_PX - BOUNCE_TOP_PX
    offset = (y - BOUNCE_TOP_PX) % (2 * height)
    return BOUNCE_TOP_PX + min(offset, 2 * height - offset)


def _move(player: list[int] | None, target_y: float | None, band_px: float) -> int:
    player_y = _centre_y(player)
    if player_y is None or target_y is None:
        return HOLD
    distance = target_y - player_y
    if distance < -band_px:
        return UP
    return DOWN if distance > band_px else HOLD


def _centre_y(box: list[int] | None) -> float | None:
    return None if box is None else box[1] + box[3] / 2
