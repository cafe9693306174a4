"""Every build replays the runs that were recorded once, to the same bytes, and still goes the way that they went."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway import replay
from tests.histories import FOLDER, SCENES, Scene, recorded

FILES = sorted(FOLDER.glob("*.jsonl"))


def name_of(scene: Scene) -> str:
    return str(getattr(scene, "__name__", ""))


def test_every_scene_has_its_history() -> None:
    assert sorted(map(name_of, SCENES)) == [each.stem for each in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recorded_run_replays_to_the_same_bytes(file: Path) -> None:
    history = replay.load(file)
    assert history.is_recorded
    again = replay.run(history)
    assert replay.dump(again.history).encode() == file.read_bytes()


@pytest.mark.parametrize("scene", SCENES, ids=name_of)
def test_a_scene_still_goes_the_way_it_went(scene: Scene) -> None:
    then = replay.load(FOLDER / f"{name_of(scene)}.jsonl")
    assert replay.diff(then, recorded(scene)) is None
