"""The pymunk scene of Push-T: walls, a round pusher and a T-shaped block, as stable-worldmodel 0.1.1 sets it up."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pymunk

from recorder.pymunk_state import BYTES_PER_BODY, BodyStates

if TYPE_CHECKING:
    from collections.abc import Sequence

Point: TypeAlias = tuple[float, float]

# Simulation constants of swm/PushT-v1: seconds, hertz, and gains of the PD law.
PHYSICS_STEP_S = 0.01
CONTROL_HZ = 10
PHYSICS_STEPS = int(1 / (PHYSICS_STEP_S * CONTROL_HZ))
GAIN_POSITION = 100
GAIN_VELOCITY = 20

WINDOW_PX = 512
WALL_NEAR_PX, WALL_FAR_PX, WALL_RADIUS_PX = 5, 506, 2
PUSHER_RADIUS_PX = 15
BLOCK_SCALE_PX = 30
BLOCK_LENGTH = 4
BLOCK_MASS = 1.0

_HALF_BAR = BLOCK_LENGTH * BLOCK_SCALE_PX / 2
BAR: tuple[Point, ...] = (
    (-_HALF_BAR, BLOCK_SCALE_PX),
    (_HALF_BAR, BLOCK_SCALE_PX),
    (_HALF_BAR, 0),
    (-_HALF_BAR, 0),
)
STEM: tuple[Point, ...] = (
    (-BLOCK_SCALE_PX / 2, BLOCK_SCALE_PX),
    (-BLOCK_SCALE_PX / 2, BLOCK_LENGTH * BLOCK_SCALE_PX),
    (BLOCK_SCALE_PX / 2, BLOCK_LENGTH * BLOCK_SCALE_PX),
    (BLOCK_SCALE_PX / 2, BLOCK_SCALE_PX),
)


# Pusher and block; the walls' body comes last in each kept state and is left out.
STATE_BYTES = 2 * BYTES_PER_BODY
_KEPT_STATE = struct.Struct(f"{STATE_BYTES}s{BYTES_PER_BODY}x")


class PushTScene:
    """One space with its bodies.

    Attributes:
        pusher: Kinematic circle, moved by its velocity only.
        block: The T. Its moment is twice the bar's, 3000, where bar and stem give 7875: the published
            environment computes both parts from the bar, and every trajectory depends on it.
        keep_state: Keeps the state of now until `take_states`; takes no arguments.
        contact_points: Contact points that the solver handled since the count was last set to zero.
    """

    def __init__(self) -> None:
        """Set the scene up; adding order decides the order of solving, and with it the last bits."""
        self.space = pymunk.Space()
        self.space.gravity = (0, 0)
        # Wipes the velocity of the block before every step: it moves only while it is pushed.
        self.space.damping = 0.0
        self.contact_points = 0
        corners = [(WALL_NEAR_PX, WALL_FAR_PX), (WALL_NEAR_PX, WALL_NEAR_PX), (WALL_FAR_PX, WALL_NEAR_PX)]
        corners = [*corners, (WALL_FAR_PX, WALL_FAR_PX)]
        ends = [(0, 1), (1, 2), (2, 3), (0, 3)]
        for start, end in ends:
            self.space.add(pymunk.Segment(self.space.static_body, corners[start], corners[end], WALL_RADIUS_PX))
        self.pusher = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
        self.space.add(self.pusher, pymunk.Circle(self.pusher, PUSHER_RADIUS_PX))
        moment = pymunk.moment_for_poly(BLOCK_MASS, BAR)
        self.block = pymunk.Body(BLOCK_MASS, moment + moment)
        bar, stem = pymunk.Poly(self.block, BAR), pymunk.Poly(self.block, STEM)
        self.block.center_of_gravity = (bar.center_of_gravity + stem.center_of_gravity) / 2
        self.space.add(self.block, bar, stem)
        self.space.on_collision(0, 0, post_solve=self._count_contacts)
        self._states = BodyStates(self.space)
        self.keep_state = self._states.keep

    def pose(self, state: np.ndarray[Any, Any]) -> None:
        """Put pusher and block where a 7-component state says, angle before position, and step once.

        The step leaves the block's bias velocity behind: what an overlap pushed out in one pose moves the
        block in the next, with no contact there at all.
        """
        self.pusher.velocity = (float(state[5]), float(state[6]))
        self.pusher.position = (float(state[0]), float(state[1]))
        self.block.angle = float(state[4])
        self.block.position = (float(state[2]), float(state[3]))
        self.space.step(PHYSICS_STEP_S)

    def push(self, target: Sequence[Any]) -> None:
        """One physics step of the PD law towards a target, px, in the dtype of the target.

        The operands and their order are those of the published law: float32 targets round every operation to
        float32 before the engine stores a double.
        """
        x, y = self.pusher.position
        speed_x, speed_y = self.pusher.velocity
        force_x = (target[0] - x) * GAIN_POSITION + (0 - speed_x) * GAIN_VELOCITY
        force_y = (target[1] - y) * GAIN_POSITION + (0 - speed_y) * GAIN_VELOCITY
        self.pusher.velocity = (float(speed_x + force_x * PHYSICS_STEP_S), float(speed_y + force_y * PHYSICS_STEP_S))
        self.space.step(PHYSICS_STEP_S)

    def state(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The 7-component state: pusher (2), block (2), block angle in [0, 2 pi), pusher velocity (2)."""
        pusher, block = self.pusher.position, self.block.position
        speed = self.pusher.velocity
        angle = self.block.angle % (2 * np.pi)
        return np.array([pusher.x, pusher.y, block.x, block.y, angle, speed.x, speed.y], np.float64)

    def state_bytes(self) -> bytes:
        """Nine float64 each for pusher and block, as `BodyStates` orders them; the walls' body is left out."""
        return self._states.read()[:STATE_BYTES]

    def take_states(self) -> list[bytes]:
        """The states that `keep_state` kept, each as `state_bytes` gives it, and forget them."""
        return [state for (state,) in _KEPT_STATE.iter_unpack(self._states.take())]

    def block_outline(self) -> list[list[Point]]:
        """World coordinates of bar and stem, px."""
        return [[self.block.local_to_world(corner) for corner in part] for part in (BAR, STEM)]

    def _count_contacts(self, arbiter: pymunk.Arbiter, _space: pymunk.Space, _data: object) -> None:
        self.contact_points += len(arbiter.contact_point_set.points)
