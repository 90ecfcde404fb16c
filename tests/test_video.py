"""Videos hold one picture for the reset and one for each raw frame, in order, at any size."""

import subprocess
import sys

import imageio.v2 as imageio
import numpy as np
import pytest

from recorder.errors import CannotRunError, UsageError
from replay.video import VideoWriter, write_picture


def numbered(number, height=64, width=64):
    """A picture whose grey level tells its number."""
    return np.full((height, width, 3), (number * 16) % 256, np.uint8)


def decoded(path):
    with imageio.get_reader(path) as reader:
        return [np.asarray(picture) for picture in reader]


@pytest.mark.parametrize("pictures", [1, 2, 15])
def test_every_picture_is_there_once_and_in_order(tmp_path, pictures):
    path = tmp_path / "replay.mp4"
    with VideoWriter(path, 50.0) as video:
        for number in range(pictures):
            video.append(numbered(number))
    levels = [round(float(picture.mean()) / 16) for picture in decoded(path)]
    assert levels == list(range(pictures))
    assert video.pictures == pictures


@pytest.mark.parametrize(("height", "width"), [(161, 211), (1, 1), (2, 3), (210, 160)])
def test_any_size_is_kept_and_odd_sides_get_one_more(tmp_path, height, width):
    path = tmp_path / "replay.mp4"
    with VideoWriter(path, 30.0) as video:
        for _ in range(3):
            video.append(numbered(5, height, width))
    pictures = decoded(path)
    assert len(pictures) == 3
    assert pictures[0].shape == (height + height % 2, width + width % 2, 3)


def test_the_rate_is_the_simulations(tmp_path):
    path = tmp_path / "replay.mp4"
    with VideoWriter(path, 100.0) as video:
        for number in range(50):
            video.append(numbered(number))
    with imageio.get_reader(path) as reader:
        facts = reader.get_meta_data()
    assert facts["fps"] == pytest.approx(100.0)
    assert facts["duration"] == pytest.approx(0.5, abs=0.02)


def test_a_picture_of_another_size_stops_the_video_and_leaves_no_file(tmp_path):
    with pytest.raises(CannotRunError, match="picture 1"), VideoWriter(tmp_path / "replay.mp4", 30.0) as video:
        video.append(numbered(0))
        video.append(numbered(1, 32, 32))
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_between_leaves_no_half_video(tmp_path):
    with pytest.raises(RuntimeError), VideoWriter(tmp_path / "replay.mp4", 30.0) as video:
        video.append(numbered(0))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_picture_name_without_a_format_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"\.png"):
        write_picture(tmp_path / "strip.words", numbered(1))


def test_twenty_thousand_pictures_take_flat_memory(tmp_path):
    code = """
import resource, sys
from pathlib import Path
import numpy as np
from replay.video import VideoWriter
picture = np.zeros((64, 64, 3), np.uint8)
with VideoWriter(Path(sys.argv[1]), 60.0) as video:
    for number in range(20_000):
        picture[:] = number % 256
        video.append(picture)
        if number == 1000:
            early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
late = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert late - early < 10_000, (early, late)
print(video.pictures)
"""
    path = tmp_path / "long.mp4"
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "20000", run.stderr
    assert imageio.get_reader(path).count_frames() == 20_000
