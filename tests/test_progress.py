"""Progress is told on stderr: lines with the time left where there is no terminal."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srepr import progress
from srepr.progress import Progress, duration


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
    assert re.fullmatch(r"features: 1 of 3, about \d+ s left\nfeatures: 2 of 3, about \d+ s left\n", err)


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


def test_the_time_left_follows_the_pace_since_the_start_of_this_process(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    told = Progress("train", total=400, done=100, quiet=True)  # a resume: these hundred cost nothing now
    now = 1010.0
    told.advance(100)
    assert told.time_left() == "20 s"


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Progress("features", total=2) as told:
        told.advance()
        told.say("epoch 1")
        assert told.bar is not None
        assert told.bar.tasks[0].completed == 1
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
