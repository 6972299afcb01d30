"""Rows of a script that say the same: who stays, and what tells rows apart."""

import warnings

import pytest

from dptune.data.copies import record_digest, without_copies

ROW = ([1, 2, 3], [0.0, 1.0, 1.0], None)
OTHERS = {
    "tokens": ([1, 2, 4], [0.0, 1.0, 1.0], None),
    "length": ([1, 2, 3, 3], [0.0, 1.0, 1.0, 1.0], None),
    "targets": ([1, 2, 3], [0.0, 0.0, 1.0], None),
    "class": ([1, 2, 3], [0.0, 1.0, 1.0], 0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_rows_that_train_otherwise_are_no_copies(name):
    records = [record_digest(*ROW), record_digest(*OTHERS[name])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert without_copies(records, path="data", owners="owners") == [0, 1]


def test_first_of_each_stays_and_the_script_is_told_how_many_go():
    records = [b"yes", b"no", b"yes", b"maybe", b"no", b"yes"]
    with pytest.warns(UserWarning, match="3 of 6 rows") as told:
        assert without_copies(records, path="data", owners="owners") == [0, 1, 3]
    message = str(told[0].message)
    assert "Name in owners" in message
    assert "yes" not in message
