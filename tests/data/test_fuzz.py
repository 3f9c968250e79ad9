"""Whatever a file holds, a reader returns or raises InputError. `python -m benchmarks.fuzz` does this at length."""

import random
from contextlib import suppress

import pytest
from benchmarks.fuzz import READERS, changed, fuzz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from srepr.errors import InputError

IDS = [reader.name for reader in READERS]


@pytest.mark.parametrize("reader", READERS, ids=IDS)
def test_what_the_fuzzing_starts_from_is_read(reader, tmp_path):
    fuzz(reader, 0, tmp_path)
    refused = []
    for content in reader.seeds():
        (tmp_path / reader.file).write_bytes(content)
        try:
            reader.read(tmp_path / reader.file)
        except InputError as error:
            refused.append(str(error))
    assert ["its pixels are F" in line for line in refused] == ([True] if reader.name == "image" else [])


@pytest.mark.parametrize("reader", READERS, ids=IDS)
@settings(max_examples=40, suppress_health_check=list(HealthCheck), database=None)
@given(number=st.integers(0, 2**32), noise=st.binary(max_size=64), put=st.floats(0, 1))
def test_a_changed_file_is_read_or_refused(reader, tmp_path_factory, number, noise, put):
    chance = random.Random(number)
    content = changed(chance.choice(reader.seeds()), chance)
    place = int(put * len(content))
    path = tmp_path_factory.getbasetemp() / reader.file
    path.write_bytes(content[:place] + noise + content[place:])
    with suppress(InputError):
        reader.read(path)


@pytest.mark.parametrize("reader", READERS, ids=IDS)
def test_many_changed_files_take_little_time_and_memory(reader, tmp_path):
    row = fuzz(reader, 40, tmp_path, seed=1)
    assert not row.others
    assert row.longest < 2
    assert row.memory < 200 * 1024
