"""A picture of the Push-T scene, drawn with Pillow; not the published one, which pygame and OpenCV draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from recorder.envs.pusht_scene import BAR, PUSHER_RADIUS_PX, STEM, WALL_FAR_PX, WALL_NEAR_PX, WINDOW_PX

if TYPE_CHECKING:
    from recorder.envs.pusht_scene import Point, PushTScene

PICTURE_PX = 224

BACKGROUND = (255, 255, 255)
WALL = (160, 160, 160)
GOAL = (144, 238, 144)
BLOCK = (119, 136, 153)
PUSHER = (65, 105, 225)

_SCALE = PICTURE_PX / WINDOW_PX


def draw_pusht(scene: PushTScene, *, goal: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Goal, block and pusher, y downwards, as (224, 224, 3) uint8.

    Args:
        scene: What to draw.
        goal: Seven-component goal state; its block pose is drawn beneath the block.
    """
    picture = Image.new("RGB", (PICTURE_PX, PICTURE_PX), BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for part in _goal_outline(goal):
        draw.polygon(_to_picture(part), fill=GOAL)
    for part in scene.block_outline():
        draw.polygon(_to_picture(part), fill=BLOCK)
    x, y = scene.pusher.position
    radius = PUSHER_RADIUS_PX * _SCALE
    draw.ellipse([x * _SCALE - radius, y * _SCALE - radius, x * _SCALE + radius, y * _SCALE + radius], fill=PUSHER)
    near, far = WALL_NEAR_PX * _SCALE, WALL_FAR_PX * _SCALE
    draw.rectangle([near, near, far, far], outline=WALL, width=1)
    return np.array(picture)


def _goal_outline(goal: np.ndarray[Any, Any]) -> list[list[Point]]:
    cos, sin = float(np.cos(goal[4])), float(np.sin(goal[4]))
    x, y = float(goal[2]), float(goal[3])
    return [[(x + cos * u - sin * v, y + sin * u + cos * v) for u, v in part] for part in (BAR, STEM)]


def _to_picture(points: list[Point]) -> list[Point]:
    return [(x * _SCALE, y * _SCALE) for x, y in points]
