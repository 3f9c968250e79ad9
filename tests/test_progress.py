"""Progress is told on stderr: lines with the time left where there is no terminal."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srepr import progress
from srepr.progress import MARKS, Progress, duration


@given(st.integers(0, 10**7))
def test_a_duration_says_the_time_to_within_its_smallest_unit(seconds):
    units = {"s": 1, "min": 60, "h": 3600}
    said = sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+) (s|min|h)\b", duration(seconds)))
    assert 0 <= seconds - said < (60 if seconds >= 3600 else 1)


def test_without_a_terminal_there_are_plain_lines_with_the_time_left(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    with Progress("features", total=3) as told:
        for _ in range(3):
            told.advance()
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"features: 1 of 3\nfeatures: 2 of 3, about \d+ s left\n", err)


def test_lines_come_ten_seconds_apart(capsys):
    with Progress("features", total=1000) as told:
        for _ in range(999):
            told.advance()
    assert capsys.readouterr().err == ""


def test_quiet_is_quiet(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    with Progress("features", total=2, quiet=True) as told:
        told.advance()
        told.say("epoch 1")
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def after(monkeypatch):
    """`after(seconds)` moves the clock on."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def move(seconds):
        now[0] += seconds

    return move


def test_the_time_left_follows_the_pace_of_this_process(after):
    told = Progress("train", total=400, done=100, quiet=True)  # a resume: these hundred cost nothing now
    for _ in range(101):
        after(0.1)
        told.advance()
    assert told.time_left() == "20 s"


def test_the_first_step_does_not_count(after):
    """It fills a cache for a minute; the nine others take a second each."""
    told, said = Progress("re-train", total=10, quiet=True), []
    for seconds in (60, *[1] * 9):
        assert told.time_left() == (f"{10 - told.done} s" if told.done > 1 else "")
        after(seconds)
        told.advance()
        said.append(told.time_left())
    assert said == ["", *(f"{left} s" for left in range(8, -1, -1))]


def test_slow_steps_at_the_start_are_forgotten(after):
    """After as many steps again and one, nothing of them is left: four views are made, and then read."""
    told = Progress("re-train", total=40, quiet=True)
    for step in range(10):
        after(30 if step < 4 else 1)
        told.advance()
    assert told.time_left() == "30 s"


@pytest.mark.parametrize("steps", [1, 7, 64])
def test_the_estimate_is_right_for_steps_that_are_alike(after, steps):
    """However many are told at once; the number of moments that are remembered is small."""
    told = Progress("features", total=100_000, quiet=True)
    while told.done + steps <= told.total - 1000:
        after(steps * 0.02)
        told.advance(steps)
        assert len(told.marks) <= MARKS
    assert told.time_left() == duration(0.02 * (told.total - told.done))


def test_a_pace_that_falls_is_noticed(after):
    told = Progress("train", total=100, quiet=True)
    for step in range(60):
        after(1 if step < 20 else 3)
        told.advance()
    assert told.time_left() == "2 min 0 s"


def test_steps_of_different_cost_have_no_estimate(after, capsys):
    with Progress("choose", total=4, alike=False) as told:
        for _ in range(3):
            after(20)
            told.advance()
    assert told.time_left() == ""
    assert capsys.readouterr().err == "choose: 1 of 4\nchoose: 2 of 4\nchoose: 3 of 4\n"


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Progress("features", total=2) as told:
        told.advance()
        told.say("epoch 1")
        assert told.bar is not None
        assert told.bar.tasks[0].completed == 1
        assert told.bar.tasks[0].fields["left"] == ""
    out, err = capsys.readouterr()
    assert out == ""
    assert "epoch 1" in err


def test_the_bar_is_put_away_after_an_error(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    told = Progress("features", total=2)
    with pytest.raises(ValueError, match="inside"), told:
        raise ValueError("inside")
    assert told.bar is not None
    assert not told.bar.live.is_started
