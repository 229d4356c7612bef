import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soba.encode.tokens import ByteTokenizer


@settings(deadline=None)
@given(st.text(max_size=60), st.integers(3, 40))
def test_any_text_fits_and_its_end_is_where_clip_looks(text, length):
    tokenizer = ByteTokenizer(length)
    (row,) = tokenizer([text])
    assert row.shape == (length,)
    assert row.dtype == np.int64
    assert row[0] == tokenizer.start
    end = row.argmax()
    assert row[end] == tokenizer.end == tokenizer.vocabulary - 1
    assert end == min(len(tokenizer.encode(text)), length - 2) + 1
    assert not row[end + 1 :].any()
    assert row[1:end].tolist() == tokenizer.encode(text)[: length - 2]


def test_case_and_space_do_not_count_but_words_do():
    rows = ByteTokenizer()(["A Bell", " a\tbell ", "a bell.", "Ä bell"])
    assert (rows[0] == rows[1]).all()
    assert (rows[0] != rows[2]).any()
    assert bytes(rows[3][1:8].tolist()).decode() == "ä bell"


def test_one_text_is_one_row_and_none_are_none():
    tokenizer = ByteTokenizer(8)
    assert tokenizer("bell").shape == (1, 8)
    assert tokenizer([]).shape == (0, 8)
    assert (tokenizer(["bell", "cat"])[1] == tokenizer("cat")[0]).all()


def test_no_room_for_a_letter():
    with pytest.raises(ValueError, match="context_length must be 3 at least, not 2"):
        ByteTokenizer(2)
