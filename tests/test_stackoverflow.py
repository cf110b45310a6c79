"""Stack Overflow's rows as arrays, by hand and against a plain reading of the released code."""

import json

import numpy as np
import pytest

from fedax.data.errors import DataError
from fedax.data.stackoverflow import bags_and_tags, read_tags, read_words, word_sequences

pytestmark = pytest.mark.quick
WORDS = ("the", "to", "a", "list")  # ids 1 to 4; 0 padding, 5 unknown, 6 begin, 7 end


def test_sentences_begin_end_and_are_cut():
    columns = {"tokens": ["the list", b"a b c d e f", "", "a  list", "to the a list to"]}
    assert word_sequences(WORDS, 5)(columns)["tokens"].tolist() == [
        [6, 1, 4, 7, 0, 0],
        [6, 3, 5, 5, 5, 5],  # cut, so no end
        [6, 5, 7, 0, 0, 0],  # split at one space, nothing is a word, as in the released code
        [6, 3, 5, 4, 7, 0],
        [6, 2, 1, 3, 4, 2],
    ]


def test_bags_count_body_and_title_and_leave_out_the_unknown():
    arrays = bags_and_tags(WORDS, ("c", "css"))({
        "tokens": ["list the list", b"none of these", ""],
        "title": ["the Title", b"a", ""],
        "tags": ["css|html|c", b"", "html"],
    })
    bags = [
        {int(w): float(n) for w, n in zip(words, counts, strict=True) if w >= 0}
        for words, counts in zip(arrays["words"], arrays["counts"], strict=True)
    ]
    assert bags == [{3: 2.0, 0: 2.0}, {2: 1.0}, {}]
    assert (arrays["counts"][arrays["words"] < 0] == 0).all()
    assert arrays["tags"].tolist() == [[1, 0, -1, -1, -1], [-1] * 5, [-1] * 5]
    assert [arrays[name].dtype for name in ("words", "counts", "tags")] == ["i4", "f4", "i4"]


def test_a_long_post_keeps_its_first_words():
    words = tuple(f"w{i}" for i in range(200))
    post = " ".join(words[::-1])
    arrays = bags_and_tags(words, ())({"tokens": [post], "title": [""], "tags": [""]})
    assert arrays["words"][0].tolist() == list(range(199, 71, -1))


def test_more_tags_than_there_can_be_are_refused():
    tags = tuple("abcdef")
    with pytest.raises(DataError, match=r"has 6 tags, 'a\|b\|c\|d\|e\|f'"):
        bags_and_tags((), tags)({"tokens": [""], "title": [""], "tags": ["|".join(tags)]})


def test_vocabularies_are_read_as_published(tmp_path):
    words, tags = tmp_path / "stackoverflow.word_count", tmp_path / "stackoverflow.tag_count"
    words.write_text("the 341294\nto 341223\na 340917\n")
    tags.write_text(json.dumps({"css": 3, "javascript": 9, "c": 5}))
    assert read_words(words, 2) == ("the", "to")
    assert read_tags(tags, 2) == ("javascript", "c")
    with pytest.raises(DataError, match="has 3 words, but 4 are needed"):
        read_words(words, 4)
    with pytest.raises(DataError, match="has 3 tags, but 500 are needed"):
        read_tags(tags)


@pytest.mark.parametrize(("read", "content", "words"), [
    (read_words, "the 3\nto\n", "has 'to' on line 2"),
    (read_words, "the many\n", "has 'the many' on line 1"),
    (read_words, b"\xff\xfe 1\n", "cannot be read"),
    (read_tags, "[1]", "must be a JSON object"),
    (read_tags, '{"c": "many"}', "must be a JSON object"),
    (read_tags, "{", "cannot be read"),
])
def test_a_malformed_vocabulary_is_a_sentence(tmp_path, read, content, words):
    path = tmp_path / "counts"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=words):
        read(path, 2)
    with pytest.raises(DataError, match="cannot be read from"):
        read(tmp_path / "nowhere", 2)


def test_the_ids_are_those_of_the_vocabulary():
    from fedax.data.text import Vocabulary

    posts = ["the list to a", "a big list of the words"]
    expected = Vocabulary(WORDS).sequences(posts, length=8)
    np.testing.assert_array_equal(word_sequences(WORDS, 8)({"tokens": posts})["tokens"], expected)
