"""Small environments for the tests, each built by a `make_...` function from plain keyword arguments.

The first half behaves well; the second half misbehaves on purpose, each class in one way.
"""

import hashlib
import math
import random

import gymnasium
import numpy as np
import pymunk
from gymnasium import spaces
from gymnasium.spaces import GraphInstance

from recorder import RecordEpisode
from recorder.holding import HoldAction

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")


def _number_boxes():
    boxes = {}
    for name in INTEGERS:
        # Gymnasium samples bounds as float64: 2^62 keeps the 64-bit dtypes within what it can draw.
        limits = np.iinfo(name)
        low, high = max(limits.min, -(2**62)), min(limits.max, 2**62)
        boxes[f"box {name}"] = spaces.Box(low, high, (3,), np.dtype(name).type)
    for name in FLOATS:
        boxes[f"box {name}"] = spaces.Box(-1, 1, (3,), np.dtype(name).type)
    boxes["box bool"] = spaces.Box(0, 1, (3,), np.bool_)
    return boxes


def make_spaces():
    """One fresh space of every kind by name."""
    vector = spaces.Box(-1, 1, (2,), np.float32)
    return {
        **_number_boxes(),
        "box without dimensions": spaces.Box(-1, 1, (), np.float32),
        "box without elements": spaces.Box(-1, 1, (0,), np.float32),
        "box of two dimensions": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
        "box of an image": spaces.Box(0, 255, (96, 96, 3), np.uint8),
        "box beyond a line": spaces.Box(-1, 1, (257,), np.float32),
        "discrete": spaces.Discrete(5),
        "discrete with start": spaces.Discrete(5, start=-2),
        "discrete int32": spaces.Discrete(5, dtype=np.int32),
        "multi binary": spaces.MultiBinary(4),
        "multi binary of two dimensions": spaces.MultiBinary((2, 3)),
        "multi discrete": spaces.MultiDiscrete([3, 4]),
        "multi discrete of two dimensions": spaces.MultiDiscrete(np.array([[3, 4], [5, 6]]), dtype=np.int32),
        "text": spaces.Text(12),
        "text beyond ASCII": spaces.Text(6, charset="aä\u2028\x00\U0001f600"),
        "dict": spaces.Dict({"z": spaces.Discrete(3), "a": spaces.Dict({"y": vector, "b": spaces.Text(3)})}),
        "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Tuple([vector, spaces.MultiBinary(2)])]),
        "sequence": spaces.Sequence(vector),
        "sequence stacked": spaces.Sequence(vector, stack=True),
        "sequence of discrete": spaces.Sequence(spaces.Discrete(3)),
        "graph": spaces.Graph(vector, vector),
        "graph of discrete": spaces.Graph(spaces.Discrete(3), spaces.Discrete(4)),
        "graph without edges": spaces.Graph(vector, None),
        "one of": spaces.OneOf([spaces.Discrete(3), vector]),
    }


SPACE_NAMES = tuple(make_spaces())
# Boxes whose observations and actions are drawn as raw bits: NaN with payloads, infinities, 64-bit integers.
BIT_NAMES = tuple(f"bits {name}" for name in (*INTEGERS, *FLOATS))


def fold(value):
    """Bytes that tell two values apart, written without the recorder's own spelling."""
    if isinstance(value, np.ndarray | np.generic):
        value = np.asarray(value)
        return b"|".join((value.dtype.str.encode(), repr(value.shape).encode(), value.tobytes()))
    if isinstance(value, dict):
        return b"{" + b",".join(repr(key).encode() + fold(value[key]) for key in sorted(value)) + b"}"
    if isinstance(value, list | tuple):
        return type(value).__name__.encode() + b"(" + b",".join(map(fold, value)) + b")"
    return f"{type(value).__name__}:{value!r}".encode("utf-8", "surrogatepass")


class SpaceEnv(gymnasium.Env):
    """Observations of one space that depend on the seed and on every action so far, for `decisions` decisions.

    Args:
        space_name: A name of `make_spaces()`, or `bits DTYPE`.
        decisions: After how many it terminates.
    """

    def __init__(self, space_name="box float32", decisions=6):
        self._is_of_bits = space_name.startswith("bits ")
        if self._is_of_bits:
            dtype = np.dtype(space_name.removeprefix("bits "))
            low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            space_name = space_name.removeprefix("bits ")
            self.observation_space = spaces.Box(low, high, (5,), dtype.type)
            self.action_space = spaces.Box(low, high, (5,), dtype.type)
        else:
            self.observation_space = make_spaces()[space_name]
            self.action_space = make_spaces()[space_name]
        self._limit = decisions
        self._state = b""
        self._count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        self._state = self.np_random.bytes(16)
        return self._observe(), {}

    def step(self, action):
        self._count += 1
        self._state = hashlib.sha256(self._state + fold(action)).digest()
        reward = int.from_bytes(self._state[:4], "little") / 2**31 - 1.0
        return self._observe(), reward, self._count >= self._limit, False, {}

    def draw_action(self, rng):
        """An action of the space, from a generator of numpy."""
        return self._draw(self.action_space, rng)

    def _observe(self):
        return self._draw(self.observation_space, np.random.default_rng(list(self._state)))

    def _draw(self, space, rng):
        if self._is_of_bits:
            return np.frombuffer(rng.bytes(5 * space.dtype.itemsize), space.dtype).copy()
        space.seed(int(rng.integers(2**31)))
        return space.sample()


def make_space_env(space_name="box float32", decisions=6):
    return SpaceEnv(space_name, decisions)


class CountingEnv(gymnasium.Env):
    """`steps` decisions with a constant reward; everything about the end is an argument.

    Args:
        steps: Length of an episode.
        ends: `terminated`, `truncated` or `both`.
        flags: `bool`, `numpy` or `int`: type of the flags.
        reward: `int`, `float`, `float32`, `float64`, `array`, `none` or `pair`: type of the reward.
    """

    observation_space = spaces.Discrete(1000)
    action_space = spaces.Discrete(2)

    def __init__(self, steps=3, ends="terminated", flags="bool", reward="float"):
        self._steps = steps
        self._ends = ends
        self._flag = {"bool": bool, "numpy": np.bool_, "int": int}[flags]
        rewards = {"int": 1, "float": 1.0, "float32": np.float32(0.1), "float64": np.float64(0.1), "none": None}
        self._reward = {**rewards, "array": np.array(1.0), "pair": np.array([1.0, 2.0])}[reward]
        self._count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return 0, {"never asked for": object()}

    def step(self, action):
        self._count += 1
        is_over = self._count >= self._steps
        terminated = self._flag(is_over and self._ends in {"terminated", "both"})
        truncated = self._flag(is_over and self._ends in {"truncated", "both"})
        return self._count, self._reward, terminated, truncated, {"never asked for": object()}


def make_counting(**kwargs):
    return CountingEnv(**kwargs)


class RotorEnv(gymnasium.Env):
    """A rotor kicked once a decision: the standard map, in which one ulp of the constant grows until it shows.

    Its state is one float64 array (angle and momentum, in radians), its observation the same in float32. Info:
    `speed` (np.float64), `label` (str), `path` (array beyond a line) and, in odd decisions only, `odd` (bool).
    Reset options: `angle` (float).

    Args:
        gravity: Strength of a kick; 9.81 forgets its beginning in about twelve decisions.
        steps: After how many decisions it terminates.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float64)

    def __init__(self, gravity=9.81, steps=20):
        self._gravity = gravity
        self._steps = steps
        self.state = np.zeros(2)
        self.count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        angle = (options or {}).get("angle", 1.0)
        self.state = self.np_random.uniform(-0.05, 0.05, 2) + (angle, 0.5)
        self.count = 0
        return self._observe(), self._tell()

    def step(self, action):
        angle, momentum = self.state.tolist()
        momentum = (momentum + self._gravity * math.sin(angle) + 0.01 * float(action[0])) % math.tau
        self.state = np.array([(angle + momentum) % math.tau, momentum])
        self.count += 1
        return self._observe(), round(angle, 6), self.count >= self._steps, False, self._tell()

    def _observe(self):
        return self.state.astype(np.float32)

    def _tell(self):
        told = {"speed": self.state[1], "label": f"at {self.count}", "path": np.full(300, self.state[0])}
        return {**told, "odd": True} if self.count % 2 else told


def make_rotor(gravity=9.81, steps=20):
    return RotorEnv(gravity, steps)


def make_held_rotor(hold_frames=2):
    return HoldAction(RotorEnv(), hold_frames)


def cart_state(env):
    """A RAM source for Gymnasium's CartPole."""
    return np.asarray(env.state).tobytes()


def long_state(env):
    """A RAM source whose state is longer than a line holds."""
    return env.state.tobytes() + bytes(4984)


def text_state(env):
    """A RAM source that returns the wrong type."""
    return str(env.state)


class FramesEnv(gymnasium.Env):
    """Publishes three raw frames a decision, its state bytes and pictures that show the raw frame's number.

    The observation is a dict with an image beyond a line. Reset options: `position` (float). Info: `mood` (str),
    `pressure` (float64 scalar), `map` (int64 array beyond a line).
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - Gymnasium's own way
    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (12, 10, 3), np.uint8),
            "body": spaces.Tuple([spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(100)]),
        }
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    raw_frame_hz = 30.0

    def __init__(self, steps=4, render_mode=None):
        self.render_mode = render_mode
        self._steps = steps
        self._listener = None
        self._position = 0.0
        self._raw_frame = 0

    def set_raw_frame_listener(self, listener):
        self._listener = listener

    def state_bytes(self):
        return np.array([self._position, self._raw_frame]).tobytes()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._position = (options or {}).get("position", 0.0) + float(self.np_random.random())
        self._raw_frame = 0
        return self._observe(), self._tell()

    def step(self, action):
        reward = 0.0
        terminated = False
        for _ in range(3):
            self._raw_frame += 1
            self._position += float(action[0]) * 0.1 + float(action[1]) * 0.01
            terminated = self._raw_frame >= 3 * self._steps
            reward += self._position
            if self._listener is not None:
                self._listener(self._position, terminated, False)
        return self._observe(), reward, terminated, False, self._tell()

    def render(self):
        """Sixteen bars, the lowest bit of the raw frame's number first; a lit bar is a one."""
        picture = np.zeros((32, 64, 3), np.uint8)
        for bit in range(16):
            picture[:, 4 * bit : 4 * bit + 4] = 255 * (self._raw_frame >> bit & 1)
        return picture

    def _observe(self):
        rng = np.random.default_rng(list(self.state_bytes()))
        image = rng.integers(0, 256, (12, 10, 3), np.uint8)
        return {"image": image, "body": (np.array([self._position, 1.0], np.float32), np.int64(self._raw_frame))}

    def _tell(self):
        level = np.arange(300) + self._raw_frame
        return {"mood": f"calm {self._raw_frame}", "pressure": np.float64(self._position), "map": level}


def make_frames(steps=4, render_mode=None):
    return FramesEnv(steps, render_mode)


def read_frame_number(picture):
    """The raw frame's number that a picture of `FramesEnv` shows."""
    return sum(1 << bit for bit in range(16) if picture[16, 4 * bit + 1, 0] > 127)


class BouncingEnv(gymnasium.Env):
    """A ball in a pymunk space."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(-1, 1, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.space = pymunk.Space()
        self.space.gravity = 0, -9.81
        self._ball = pymunk.Body(1.0, 1.0)
        self._ball.position = tuple(self.np_random.random(2))
        self.space.add(self._ball, pymunk.Circle(self._ball, 0.1))
        return np.array(self._ball.position), {}

    def __init__(self):
        self.space = pymunk.Space()
        self._ball = pymunk.Body(1.0, 1.0)

    def step(self, action):
        self._ball.apply_impulse_at_local_point(tuple(map(float, action)))
        self.space.step(0.02)
        return np.array(self._ball.position), 0.0, False, False, {}


def make_bouncing():
    return BouncingEnv()


class FillingWrapper(gymnasium.Wrapper):
    """A wrapper that does not keep its arguments."""

    def __init__(self, env, level=1):
        super().__init__(env)
        self._level = level


class ReusedBufferEnv(gymnasium.Env):
    """Returns the same memory each time, changed in place; also writes into the action that it is given."""

    observation_space = spaces.Dict(
        {"flat": spaces.Box(-np.inf, np.inf, (2,)), "deep": spaces.Dict({"view": spaces.Box(-np.inf, np.inf, (1,))})}
    )
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, is_nested=False):
        self._buffer = np.zeros(2, np.float32)
        self._nested = {"flat": self._buffer, "deep": {"view": self._buffer[1:]}}
        self._returned = self._nested if is_nested else self._buffer
        if not is_nested:
            self.observation_space = self.observation_space["flat"]
        self._info = {"view": self._buffer[:1]}
        self._count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        self._buffer[:] = self.np_random.random(2)
        return self._returned, self._info

    def step(self, action):
        self._count += 1
        self._buffer += action[0]
        action[0] = 99.0
        reward = self._buffer[:1].reshape(())
        return self._returned, reward, self._count >= 5, False, self._info


def make_reused_buffer(is_nested=False):
    return ReusedBufferEnv(is_nested)


class _NumberEnv(gymnasium.Env):
    """Base of the following: one float a decision, five decisions."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self._count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return np.array([self._first()]), {}

    def step(self, action):
        self._count += 1
        return np.array([self._next()]), 0.0, self._count >= 5, False, {}

    def _first(self):
        return self.np_random.random()

    def _next(self):
        return self.np_random.random()


class IgnoredSeedEnv(_NumberEnv):
    """Takes a seed and draws from somewhere else."""

    def _first(self):
        return np.random.default_rng().random()


class LeakingEnv(_NumberEnv):
    """Keeps something over a reset that shows in the first step only."""

    def __init__(self):
        super().__init__()
        self._warmth = 0.0

    def _next(self):
        self._warmth += 1.0
        return super()._next() + self._warmth


class GlobalRandomEnv(_NumberEnv):
    """Steps with the global random state of Python."""

    def _next(self):
        return random.random()


class FragileEnv(_NumberEnv):
    """Raises in a step, or in the reset with one seed.

    Args:
        step: The decision, from 1, in which to raise.
        seed: The seed of the reset in which to raise.
        fault: `raise`, or what to return that has no spelling: `observation`, `info`, `reward`.
    """

    def __init__(self, step=None, seed=None, fault="raise"):
        super().__init__()
        self._bad_step = step
        self._bad_seed = seed
        self._fault = fault

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        if seed == self._bad_seed:
            if self._fault == "observation":
                return {1, 2}, info
            message = "the simulator broke"
            raise RuntimeError(message)
        return observation, info

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self._count == self._bad_step:
            if self._fault == "raise":
                message = "the simulator broke"
                raise RuntimeError(message)
            bad = {"observation": observation, "reward": reward, "note": 1} | {self._fault: object()}
            return bad["observation"], bad["reward"], terminated, truncated, {"note": bad.get("info", 1)}
        return observation, reward, terminated, truncated, {**info, "note": 1}


def make_ignored_seed():
    return IgnoredSeedEnv()


def make_leaking():
    return LeakingEnv()


def make_global_random():
    return GlobalRandomEnv()


def make_fragile(step=None, seed=None, fault="raise"):
    return FragileEnv(step, seed, fault)


def make_another(**_):
    """A factory that builds something else than what was recorded."""
    return CountingEnv()


def make_text(**_):
    """A factory that builds no environment."""
    return "an environment"


def record(env, out, *, decisions=30, seed=0, options=None, policy_seed=7, **kwargs):
    """Record random decisions, through as many episodes as they take; return the episodes' folders."""
    with RecordEpisode(env, out, **kwargs) as recorder:
        drawn = drawn_actions(env, policy_seed)
        recorder.reset(seed=seed, options=options)
        for number in range(decisions):
            _, _, terminated, truncated, _ = recorder.step(next(drawn))
            if (terminated or truncated) and number < decisions - 1:
                recorder.reset(options=options)
    return sorted(recorder.out.iterdir())


def record_factory(entry_point, out, factory_kwargs=None, **kwargs):
    """`record` for one of the factories of this module, by name."""
    env = globals()[entry_point](**(factory_kwargs or {}))
    factory = f"environments:{entry_point}"
    return record(env, out, factory=factory, factory_kwargs=factory_kwargs, **kwargs)


def drawn_actions(env, seed):
    """Endless seeded actions for an environment."""
    rng = np.random.default_rng(seed)
    if isinstance(env.unwrapped, SpaceEnv):
        while True:
            yield env.unwrapped.draw_action(rng)
    env.action_space.seed(seed)
    while True:
        yield env.action_space.sample()


def graph(nodes, edges=None, links=None):
    return GraphInstance(nodes=nodes, edges=edges, edge_links=links)


class OrderEnv(_NumberEnv):
    """Goes by the order of the keys of its action and its options."""

    action_space = spaces.Dict({"a": spaces.Box(-9, 9, ()), "b": spaces.Box(-9, 9, ())})

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation + list(options or {}).index("a"), info

    def step(self, action):
        first, second = action.values()
        return np.array([10.0 * first + second]), 0.0, False, False, {}
