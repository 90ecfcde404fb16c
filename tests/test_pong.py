"""Pong's boxes, observations and rules, held against twelve hashes that somebody else published."""

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest

from golden_data import GOLDEN
from recorder.errors import UsageError
from recorder.pong import (
    ACTIONS,
    COORDINATES,
    RAM_BYTES,
    SCREEN_SHAPE,
    Boxes,
    Tracker,
    ram_boxes,
    reset_noop_count,
    vision_boxes,
)
from recorder.pong_policies import RECORDED_NAMES, make_pong_policy

PUBLISHED = json.loads((GOLDEN / "atari" / "published.json").read_bytes())["episodes"]
PLAYER, OPPONENT, BALL = (140, 100, 4, 15), (16, 100, 4, 15), (80, 100, 2, 4)
COLOURS = {"player": (92, 186, 92), "opponent": (213, 130, 74), "ball": (236, 236, 236)}
NOTHING = Boxes(None, None, None)


def ram(*, player=0, opponent=0, ball_x=0, ball_y=0):
    values = bytearray(RAM_BYTES)
    values[51], values[50], values[49], values[54] = player, opponent, ball_x, ball_y
    return bytes(values)


def screen(**pixels):
    """A screen of Pong's background with pixels of an object's colour, as (row, column)."""
    rgb = np.full(SCREEN_SHAPE, (144, 72, 17), np.uint8)
    for name, places in pixels.items():
        for row, column in places:
            rgb[row, column] = COLOURS[name]
    return rgb


def boxes(ball=BALL, player=PLAYER, opponent=OPPONENT):
    return Boxes(player, opponent, ball)


def follow(*balls, raw_frames=4, rewards=()):
    """The last observation of a tracker that saw these balls, one a decision; the rewards are the last decision's."""
    tracker = Tracker()
    observation = tracker.reset(boxes(balls[0]))
    for ball in balls[1:-1]:
        observation = tracker.observe(boxes(ball), rewards=[0.0] * 4, raw_frames=raw_frames, requested_action=0)
    if len(balls) > 1:
        last = rewards or [0.0] * 4
        observation = tracker.observe(boxes(balls[-1]), rewards=last, raw_frames=raw_frames, requested_action=0)
    return observation


def see(ball=BALL, player=PLAYER, velocity=None):
    """An observation with just what the policies look at."""
    observation = Tracker().reset(boxes(ball, player))
    observation["objects"][2]["velocity"] = velocity
    return observation


# --- RAM -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("byte", "box"),
    [
        (0, None),
        (33, None),
        (34, (140, 34, 4, 1)),
        (46, (140, 34, 4, 13)),
        # From here on the height is the paddle's own.
        (47, (140, 34, 4, 15)),
        (48, (140, 35, 4, 15)),
        (192, (140, 179, 4, 15)),
        (193, (140, 180, 4, 14)),
        (206, (140, 193, 4, 1)),
        (207, None),
        (255, None),
    ],
)
def test_the_player_of_a_ram_byte(byte, box):
    assert ram_boxes(ram(player=byte)) == Boxes(box, None, None)


@pytest.mark.parametrize(
    ("byte", "box"),
    [
        (0, None),
        (33, None),
        (34, (16, 34, 4, 1)),
        (47, (16, 34, 4, 14)),
        (48, (16, 34, 4, 15)),
        (49, (16, 34, 4, 15)),
        (50, (16, 35, 4, 15)),
        (194, (16, 179, 4, 15)),
        (195, (16, 180, 4, 14)),
        (208, (16, 193, 4, 1)),
        (209, None),
        (255, None),
    ],
)
def test_the_opponent_of_a_ram_byte(byte, box):
    assert ram_boxes(ram(opponent=byte)) == Boxes(None, box, None)


@pytest.mark.parametrize(
    ("x", "y", "box"),
    [
        (49, 100, None),
        (50, 100, (1, 86, 2, 4)),
        (50, 0, None),
        (50, 1, (1, -13, 2, 4)),
        # Above the playfield, and beyond the screen: nothing is clipped.
        (100, 44, (51, 30, 2, 4)),
        (255, 255, (206, 241, 2, 4)),
    ],
)
def test_the_ball_of_two_ram_bytes(x, y, box):
    assert ram_boxes(ram(ball_x=x, ball_y=y)) == Boxes(None, None, box)


def test_ram_may_be_an_array_and_does_not_wrap_round():
    values = ram(player=100, opponent=200, ball_x=60, ball_y=5)
    assert ram_boxes(np.frombuffer(values, np.uint8)) == ram_boxes(values)
    assert ram_boxes(values).ball == (11, -9, 2, 4)


@pytest.mark.parametrize("length", [0, 127, 129])
def test_ram_of_another_length_is_refused(length):
    with pytest.raises(ValueError, match=f"not {length}"):
        ram_boxes(bytes(length))


# --- vision --------------------------------------------------------------------------------------------------------


def test_a_screen_without_objects_has_no_boxes():
    assert vision_boxes(screen()) == NOTHING


@pytest.mark.parametrize("name", COLOURS)
def test_a_single_pixel_is_seen_from_row_34_to_row_193_only(name):
    for row in (34, 193):
        for column in (0, 159):
            assert getattr(vision_boxes(screen(**{name: [(row, column)]})), name) == (column, row, 1, 1)
    for row in (0, 33, 194, 209):
        assert vision_boxes(screen(**{name: [(row, 80)]})) == NOTHING


def test_a_box_is_tight_around_all_pixels_of_its_colour():
    seen = vision_boxes(screen(ball=[(50, 90), (60, 20), (55, 100)], player=[(40, 140), (41, 143)]))
    assert seen == Boxes((140, 40, 4, 2), None, (20, 50, 81, 11))


@pytest.mark.parametrize("name", COLOURS)
@pytest.mark.parametrize("channel", [0, 1, 2])
def test_a_colour_that_is_off_by_one_is_no_object(name, channel):
    rgb = screen(**{name: [(100, 50)]})
    rgb[100, 50, channel] += 1
    assert vision_boxes(rgb) == NOTHING


def test_a_colour_across_two_pixels_is_no_object():
    rgb = screen()
    rgb[100, 50], rgb[100, 51] = (0, 92, 186), (92, 0, 0)
    assert vision_boxes(rgb) == NOTHING


def test_vision_agrees_with_a_plain_search_on_screens_of_noise():
    generator = np.random.default_rng(0)
    for _ in range(10):
        rgb = generator.choice(np.array([92, 186, 213, 130, 74, 236], np.uint8), SCREEN_SHAPE)
        for colour, box in zip(COLOURS.values(), vision_boxes(rgb), strict=True):
            rows, columns = np.nonzero((rgb[34:194] == colour).all(axis=-1))
            size = (np.ptp(columns) + 1, np.ptp(rows) + 1)
            assert box == (columns.min(), rows.min() + 34, *size)


def test_a_screen_that_is_not_contiguous_is_read_as_well():
    rgb = screen(ball=[(50, 90)], opponent=[(60, 16)])
    assert vision_boxes(np.asfortranarray(rgb)) == vision_boxes(rgb)


@pytest.mark.parametrize("rgb", [np.zeros((210, 160), np.uint8), np.zeros(SCREEN_SHAPE, np.int64)])
def test_a_screen_of_another_shape_or_dtype_is_refused(rgb):
    with pytest.raises(ValueError, match="uint8, not"):
        vision_boxes(rgb)


# --- tracker -------------------------------------------------------------------------------------------------------


def test_the_first_observation_has_the_published_keys_in_their_order():
    observation = Tracker().reset(boxes())
    assert list(observation) == [
        "schema_version",
        "extractor_version",
        "game",
        "observation_source",
        "coordinates",
        "control",
        "objects",
        "history",
        "events_observed",
        "candidate_actions",
    ]
    assert observation["control"] == {
        "requested_hold_frames": 4,
        "sticky_action_probability": 0.25,
        "last_requested_action_id": None,
        "last_executed_action_id": None,
    }
    assert [item["id"] for item in observation["objects"]] == ["player", "opponent", "ball"]
    assert list(observation["objects"][2].items()) == [
        ("id", "ball"),
        ("kind", "ball"),
        ("present", True),
        ("bbox", [80, 100, 2, 4]),
        ("velocity", None),
        ("velocity_valid", False),
        ("sample_interval_raw_frames", None),
        ("age_since_last_seen_raw_frames", 0),
    ]
    only = {"player": [*PLAYER], "opponent": [*OPPONENT], "ball": [*BALL]}
    assert observation["history"] == [{"offset_raw_frames": 0, "boxes": only}]
    assert observation["candidate_actions"][4] == {
        "id": 4,
        "ale_meaning": "RIGHTFIRE",
        "effect": "up",
        "hold_raw_frames": 4,
    }


def test_settings_of_the_run_are_in_the_observation():
    observation = Tracker(source="vision", hold_frames=2, sticky_probability=0.0).reset(NOTHING)
    assert observation["observation_source"] == "vision"
    assert observation["control"]["requested_hold_frames"] == 2
    assert observation["control"]["sticky_action_probability"] == 0.0
    assert {item["hold_raw_frames"] for item in observation["candidate_actions"]} == {2}


def test_the_last_requested_action_is_told_and_the_executed_one_is_not():
    tracker = Tracker()
    tracker.reset(boxes())
    control = tracker.observe(boxes(), rewards=[0.0], raw_frames=1, requested_action=5)["control"]
    assert (control["last_requested_action_id"], control["last_executed_action_id"]) == (5, None)


@pytest.mark.parametrize(("raw_frames", "velocity"), [(4, [1.5, -0.75]), (3, [2.0, -1.0]), (1, [6.0, -3.0])])
def test_velocity_is_pixels_per_raw_frame_since_the_last_decision(raw_frames, velocity):
    ball = follow((10, 50, 2, 4), (80, 100, 2, 4), (86, 97, 2, 4), raw_frames=raw_frames)["objects"][2]
    assert ball["velocity"] == velocity
    assert all(type(part) is float for part in ball["velocity"])
    assert (ball["velocity_valid"], ball["sample_interval_raw_frames"]) == (True, raw_frames)


def test_an_object_at_rest_has_velocity_zero_not_null():
    assert follow(BALL, BALL)["objects"][2]["velocity"] == [0.0, 0.0]


@pytest.mark.parametrize("balls", [(BALL,), (None, BALL), (BALL, None), (None, None), (BALL, None, BALL)])
def test_velocity_is_null_without_two_boxes_in_a_row(balls):
    ball = follow(*balls)["objects"][2]
    assert (ball["velocity"], ball["velocity_valid"], ball["sample_interval_raw_frames"]) == (None, False, None)


def test_velocity_is_null_when_no_raw_frame_has_passed():
    ball = follow(BALL, (90, 100, 2, 4), raw_frames=0)["objects"][2]
    assert (ball["velocity"], ball["velocity_valid"], ball["sample_interval_raw_frames"]) == (None, False, None)


@pytest.mark.parametrize(
    ("balls", "age"),
    [((BALL,), 0), ((None,), None), ((None, None), None), ((BALL, None), 4), ((BALL, *[None] * 6), 24)],
)
def test_age_counts_raw_frames_since_an_object_was_seen_and_is_null_if_it_never_was(balls, age):
    assert follow(*balls)["objects"][2]["age_since_last_seen_raw_frames"] == age


def test_history_is_the_last_four_decisions_with_the_present_one():
    balls = [(x, 100, 2, 4) for x in range(6)]
    history = follow(*balls)["history"]
    assert [sample["offset_raw_frames"] for sample in history] == [-12, -8, -4, 0]
    assert [sample["boxes"]["ball"][0] for sample in history] == [2, 3, 4, 5]
    assert [len(follow(*balls[:count])["history"]) for count in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 4]


@pytest.mark.parametrize(
    ("rewards", "events"),
    [
        ([0.0, 1.0, 0.0, 0.0], ["point_scored"]),
        ([0.0, 0.0, 0.0, -1.0], ["point_lost"]),
        ([1.0, -1.0, 0.0, 0.0], ["point_scored", "point_lost"]),
    ],
)
def test_a_point_takes_the_ball_out_of_the_samples_before_it_and_out_of_no_other(rewards, events):
    observation = follow(BALL, BALL, (90, 100, 2, 4), rewards=rewards)
    assert observation["events_observed"] == events
    assert [sample["boxes"]["ball"] for sample in observation["history"]] == [None, None, [90, 100, 2, 4]]
    assert all(sample["boxes"]["player"] == [*PLAYER] for sample in observation["history"])
    player, _, ball = observation["objects"]
    assert (ball["bbox"], ball["velocity"]) == ([90, 100, 2, 4], None)
    assert player["velocity"] == [0.0, 0.0]


def test_when_the_ball_was_last_seen_is_kept_across_a_point():
    assert follow(BALL, None, rewards=[-1.0, 0.0, 0.0, 0.0])["objects"][2]["age_since_last_seen_raw_frames"] == 4


def test_without_a_reward_nothing_is_an_event():
    assert follow(BALL, BALL, rewards=[0.0, -0.0, 0.0, 0.0])["events_observed"] == []


def test_reset_forgets_the_episode_before():
    tracker = Tracker()
    first = tracker.reset(boxes())
    tracker.observe(NOTHING, rewards=[1.0], raw_frames=1, requested_action=2)
    assert tracker.reset(boxes()) == first


def test_who_edits_an_observation_edits_no_other():
    tracker = Tracker()
    edited = tracker.reset(boxes())
    before = json.dumps(tracker.observe(boxes(), rewards=[0.0] * 4, raw_frames=4, requested_action=0))
    edited["objects"][2]["bbox"][0] = edited["history"][0]["boxes"]["ball"][1] = -1
    edited["coordinates"]["origin"] = edited["candidate_actions"][0]["effect"] = "edited"
    edited["events_observed"].append("edited")
    again = Tracker()
    again.reset(boxes())
    assert json.dumps(again.observe(boxes(), rewards=[0.0] * 4, raw_frames=4, requested_action=0)) == before
    assert COORDINATES["origin"] == "top_left"


# --- reset ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 26), (20, 27), (21, 9), (26, 26), (27, 0), (36, 11), (37, 4), (46, 15), (47, 3)],
)
def test_a_seed_says_how_many_noops_follow_its_reset(seed, count):
    assert reset_noop_count(seed) == count


def test_no_noops_where_none_are_allowed():
    assert {reset_noop_count(seed, noop_max=0) for seed in range(50)} == {0}


def test_the_greatest_number_of_noops_occurs():
    assert {reset_noop_count(seed, noop_max=3) for seed in range(100)} == {0, 1, 2, 3}


# --- policies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "band"), [("track-2px", 2), ("track-4px", 4)])
def test_the_tracker_moves_when_the_ball_is_farther_than_its_band(name, band):
    policy = make_pong_policy(name, 0)
    # The player's centre is at y 107.5, the ball's at y + 2.
    for distance, action in ((-band - 0.5, 2), (-band, 0), (0, 0), (band, 0), (band + 0.5, 3)):
        decided = policy(see(ball=(80, 105.5 + distance, 2, 4)))
        assert decided == (action, {"policy": RECORDED_NAMES[name]})


@pytest.mark.parametrize("name", ["track-2px", "track-4px"])
@pytest.mark.parametrize("objects", [{"ball": None}, {"player": None}])
def test_the_tracker_holds_when_an_object_is_missing(name, objects):
    assert make_pong_policy(name, 0)(see(**objects))[0] == 0


def test_the_tracker_goes_by_a_clipped_paddles_own_centre():
    observation = see(player=(140, 34, 4, 1), ball=(80, 35, 2, 4))
    # The centres are at y 34.5 and 37.
    assert [make_pong_policy(name, 0)(observation)[0] for name in ("track-2px", "track-4px")] == [3, 0]


def test_random_draws_ids_as_python_does_from_the_seed_of_the_episode():
    policy, generator = make_pong_policy("random", 7), random.Random(7)
    decided = [policy(see()) for _ in range(200)]
    assert [action for action, _ in decided] == [generator.choice([0, 1, 2, 3, 4, 5]) for _ in range(200)]
    assert decided[0][1] == {"policy": "random-v1", "selection_probability": 1 / 6}
    assert {action for action, _ in decided} == set(range(len(ACTIONS)))


@pytest.mark.parametrize("objects", [{"ball": None}, {"player": None}])
def test_intercept_holds_and_says_so_when_an_object_is_missing(objects):
    prediction = {"policy": "reflected-intercept-4px-v1", "target_y": None, "mode": "missing-object"}
    assert make_pong_policy("intercept", 0)(see(**objects)) == (0, prediction)


@pytest.mark.parametrize("velocity", [None, [0.0, 1.0]])
def test_intercept_follows_a_ball_that_cannot_be_projected(velocity):
    action, prediction = make_pong_policy("intercept", 0)(see(ball=(80, 60, 2, 4), velocity=velocity))
    assert (action, prediction["target_y"], prediction["mode"]) == (2, 62.0, "track-without-velocity")


@pytest.mark.parametrize(("y", "action"), [(101, 3), (102, 3), (102.5, 0), (110.5, 0), (111, 2)])
def test_intercept_returns_to_the_middle_when_the_ball_flies_away(y, action):
    decided = make_pong_policy("intercept", 0)(see(player=(140, y, 4, 15), velocity=[-0.5, 3.0]))
    assert decided[0] == action
    assert (decided[1]["target_y"], decided[1]["mode"]) == (114, "recenter-away")


@pytest.mark.parametrize(
    ("vy", "target_y"),
    [
        (0.0, 102.0),
        (1.0, 131.5),
        # 59 px to go at 2 px a raw frame: 29.5 raw frames. The turns are at y 36 and y 192.
        (-90 / 29.5, 12 + 2 * (36 - 12)),
        (100 / 29.5, 202 - 2 * (202 - 192)),
        (-66 / 29.5, 36.0),
        (90 / 29.5, 192.0),
        # Two walls.
        (300 / 29.5, 402 - 2 * 156),
    ],
)
def test_intercept_projects_the_balls_centre_to_the_face_and_turns_it_at_the_walls(vy, target_y):
    _, prediction = make_pong_policy("intercept", 0)(see(ball=(80, 100, 2, 4), velocity=[2.0, vy]))
    assert prediction["mode"] == "predicted-intercept"
    assert prediction["target_y"] == pytest.approx(target_y, abs=1e-9)


def test_intercept_takes_a_ball_behind_the_paddle_where_it_is():
    _, prediction = make_pong_policy("intercept", 0)(see(ball=(150, 100, 2, 4), velocity=[2.0, 5.0]))
    assert prediction["target_y"] == 102.0


@pytest.mark.parametrize(("distance", "action"), [(-4.5, 2), (-4, 0), (4, 0), (4.5, 3)])
def test_intercept_stays_within_four_pixels(distance, action):
    observation = see(ball=(80, 105.5 + distance, 2, 4), velocity=[2.0, 0.0])
    assert make_pong_policy("intercept", 0)(observation)[0] == action


@pytest.mark.parametrize(("name", "recorded"), RECORDED_NAMES.items())
def test_a_policy_is_found_by_its_recorded_name_as_well(name, recorded):
    assert make_pong_policy(recorded, 3)(see()) == make_pong_policy(name, 3)(see())


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="track-2px, track-4px, intercept, random"):
        make_pong_policy("track-3px", 0)


# --- published episodes --------------------------------------------------------------------------------------------


class Game:
    """Plays Pong as the published lab did: one raw frame a step, four a decision, NOOPs after the reset."""

    def __init__(self):
        ale_py = pytest.importorskip("ale_py")
        import gymnasium

        gymnasium.register_envs(ale_py)
        self.env = gymnasium.make(
            "ALE/Pong-v5",
            frameskip=1,
            repeat_action_probability=0.25,
            full_action_space=False,
            mode=0,
            difficulty=0,
            max_episode_steps=-1,
            obs_type="ram",
            render_mode="rgb_array",
        )

    def play(self, policy, seed, max_decisions, point_limit=None):
        """Rows of transitions and of frames."""
        ram_now, _ = self.env.reset(seed=seed)
        raw_frame = reset_noop_count(seed)
        for _ in range(raw_frame):
            ram_now, *_ = self.env.step(0)
        tracker = Tracker()
        observation = tracker.reset(ram_boxes(ram_now))
        rows, frames = [], []
        points, is_over = 0, False
        while not is_over:
            action, prediction = policy(observation)
            rewards = []
            while len(rewards) < 4 and not is_over:
                ram_now, reward, terminated, truncated, _ = self.env.step(action)
                rewards.append(float(reward))
                points += reward != 0
                frames.append(
                    {
                        "decision": len(rows),
                        "raw_frame": raw_frame + len(frames) + 1,
                        "requested_action_id": action,
                        "ram_bytes": ram_now.tolist(),
                        "rgb_sha256": hashlib.sha256(self.env.render().tobytes()).hexdigest(),
                        "reward": rewards[-1],
                        "terminated": terminated,
                        "truncated": truncated,
                    }
                )
                is_over = terminated or truncated or points == point_limit
            is_over = is_over or len(rows) + 1 == max_decisions
            following = tracker.observe(
                ram_boxes(ram_now), rewards=rewards, raw_frames=len(rewards), requested_action=action
            )
            rows.append(
                {
                    "decision": len(rows),
                    "observation": observation,
                    "action": action,
                    "prediction": prediction,
                    "rewards": rewards,
                    "raw_frames": len(rewards),
                    "next_observation": following,
                    "terminated": terminated,
                    "truncated": is_over and not terminated,
                }
            )
            observation = following
        return rows, frames


@pytest.fixture(scope="module")
def game():
    return Game()


def size_and_hash(path):
    stored = path.read_bytes()
    return {"bytes": len(stored), "sha256": hashlib.sha256(stored).hexdigest()}


@pytest.mark.parametrize("episode", PUBLISHED, ids=[Path(episode["episode"]).name for episode in PUBLISHED])
def test_a_published_episode_is_written_again_byte_for_byte(tmp_path, game, episode):
    policy = make_pong_policy(episode["policy"].split(" ")[0], episode["seed"])
    written = game.play(policy, episode["seed"], episode["max_decisions"], episode["point_limit"])
    for name, rows in zip(("transitions", "frames"), written, strict=True):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")
        assert size_and_hash(path) == episode[name], name


@pytest.mark.parametrize(
    ("seed", "of_2px", "of_4px"),
    [(36, -7.0, -4.0), (37, -1.0, 0.0), (46, -4.0, -8.0), (47, -3.0, -2.0)],
)
def test_both_trackers_have_the_published_rewards_after_2000_frames(game, seed, of_2px, of_4px):
    rewards = []
    for name in ("track-2px", "track-4px"):
        _, frames = game.play(make_pong_policy(name, seed), seed, 500)
        assert len(frames) == 2000
        rewards.append(sum(frame["reward"] for frame in frames))
    assert rewards == [of_2px, of_4px]
