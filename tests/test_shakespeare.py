"""The embedded plays: the parser's rules, the file's content, tokens and sequences."""

from __future__ import annotations

import bz2
import hashlib
import importlib
import itertools
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedax.data import shakespeare

# TensorFlow Federated's Shakespeare task, copied from its source, as a list of single characters.
TFF_CHARACTERS = list(
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
PAD, UNKNOWN, BEGIN, END = 0, 87, 88, 89


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return importlib.import_module("build_shakespeare")


@pytest.fixture(scope="module")
def clients() -> dict[str, list[str]]:
    return shakespeare.load_lines()


@pytest.fixture(scope="module")
def data() -> tuple[shakespeare.ClientArrays, shakespeare.ClientArrays]:
    return shakespeare.load()


# The parser. Each excerpt is in the style of one of the texts.


def test_front_matter_headings_and_scenes_are_no_dialogue(build: ModuleType) -> None:
    text = """THE PLAY

by William Shakespeare

PERSONS REPRESENTED.

THE KING OF NOWHERE.

SCENE: Nowhere

ACT I.

SCENE I. Nowhere. A room
in the castle.

KING.
  First line.
Second line.

ACT FIRST. SCENE II.

Another room.

QUEEN.
Third line.

THE END
"""
    expected = {"KING": ["First line.", "Second line."], "QUEEN": ["Third line."]}
    assert build.parse_play(text) == expected
    assert list(build.parse_play(text)) == ["KING", "QUEEN"]


def test_a_heading_needs_no_full_stop(build: ModuleType) -> None:
    text = "A PLAY\n\nACT I.\n\nTHESEUS\nNow.\n\nHIPPOLYTA.\nFour days\n\nTHESEUS\nGo.\n"
    expected = {"THESEUS": ["Now.", "Go."], "HIPPOLYTA": ["Four days"]}
    assert build.parse_play(text) == expected


def test_a_heading_needs_a_blank_line_before_it(build: ModuleType) -> None:
    """A letter that is read out ends with a name in capitals; its reader goes on."""
    text = "A PLAY\n\nACT I.\n\nCOUNTESS.\nYour unfortunate son,\nBERTRAM.\n\nBERTRAM.\nMadam.\n"
    assert build.parse_play(text) == {
        "COUNTESS": ["Your unfortunate son,", "BERTRAM."],
        "BERTRAM": ["Madam."],
    }


def test_speech_may_follow_a_known_heading_on_its_line(build: ModuleType) -> None:
    text = "A PLAY\n\nACT I.\n\nKEEPER.\nYes.\n\nKEEPER.  Your Grace may enter. Now.\n"
    assert build.parse_play(text) == {"KEEPER": ["Yes.", "Your Grace may enter. Now."]}


def test_abbreviations_become_the_names_in_the_list_of_persons(build: ModuleType) -> None:
    hamlet = """HAMLET, PRINCE OF DENMARK

ACT I.

Scene I. Elsinore.

Ham.
What hour now?

Hor.
I think it lacks of twelve.

Mar. and Ber.
Long stay'd he?

I Play.
Ay, my lord.

1 Clown.
Give me leave.

HAM.
Come.

Come.
So.
"""
    roles = build.parse_play(hamlet)
    assert "HAM" not in roles
    assert roles["HAMLET"] == ["What hour now?"]
    assert roles["HORATIO"] == ["I think it lacks of twelve."]
    assert roles["MARCELLUS AND BERNARDO"] == ["Long stay'd he?"]
    assert roles["FIRST PLAYER"] == ["Ay, my lord."]

    henry = "KING HENRY IV, THE FIRST PART\n\nACT I.\n\nFAL.\nNow, Hal.\n\n1. CAR.\nHeigh-ho!\n"
    assert build.parse_play(henry) == {"FALSTAFF": ["Now, Hal."], "FIRST CARRIER": ["Heigh-ho!"]}


def test_an_abbreviation_holds_in_its_own_play_only(build: ModuleType) -> None:
    for title, role in [
        ("HAMLET, PRINCE OF DENMARK", "CORNELIUS"),
        ("THE TRAGEDY OF KING LEAR", "CORDELIA"),
        ("A PLAY", "COR"),
    ]:
        assert list(build.parse_play(f"{title}\n\nACT I.\n\nCor.\nNothing, my lord.\n")) == [role]


def test_stage_directions_over_several_lines_and_inside_a_line(build: ModuleType) -> None:
    text = """A PLAY

ACT I.

[Enter the KING, with
LORDS,
and OTHERS.]

KING. [Aside.]
Give me the cup [He drinks.]; and go.
[To the QUEEN.] My lady,
{Aside.] farewell. [Exit
QUEEN.] She goes.

[Flourish. [The King and his train] enter the town.]

Who calls?
[within.] Anon.
"""
    assert build.parse_play(text) == {
        "KING": [
            "Give me the cup; and go.",
            "My lady,",
            "farewell.",
            "She goes.",
            "Who calls?",
            "Anon.",
        ]
    }


def test_stage_directions_without_both_brackets(build: ModuleType) -> None:
    text = """A PLAY

ACT I.

KING.
You shall. [Exit Sergeant.
Thus are we.

[Enter COSTARD
and MOTH

Enter, from thence, Lords;
with sailors.

Welcome. I come.Exit Boy
Enter the city, clip your wives.

Enter Simonides: the Knights meet
him.]

QUEEN.
Stay.
"""
    assert build.parse_play(text) == {
        "KING": [
            "You shall.",
            "Thus are we.",
            "Welcome. I come.",
            "Enter the city, clip your wives.",
        ],
        "QUEEN": ["Stay."],
    }


def test_songs_and_stanzas_leave_the_speaker(build: ModuleType) -> None:
    text = """A PLAY

ACT I.

PETER.
I.

     SONG.
       I.
  It was a lover

       II.
  And his lass
@@@

Song.
Black spirits
"""
    assert build.parse_play(text) == {
        "PETER": ["I.", "It was a lover", "And his lass", "Black spirits"]
    }


def test_a_prologue_without_a_speaker_is_a_role(build: ModuleType) -> None:
    text = "A PLAY\n\nPROLOGUE\n\nIn Troy, there lies the scene.\n\nACT I.\n\nKING.\nAy.\n"
    assert build.parse_play(text) == {
        "PROLOGUE": ["In Troy, there lies the scene."],
        "KING": ["Ay."],
    }


@pytest.mark.parametrize(
    ("title", "headings", "role"),
    [
        ("A PLAY", ["FIRST LORD.", "1 LORD.", "1. LORD.", "FIRST LORD"], "FIRST LORD"),
        (
            "A PLAY",
            ["SENATORS and PATRICIANS.", "SENATORS & PATRICIANS."],
            "SENATORS AND PATRICIANS",
        ),
        ("A PLAY", ["CAESAR, ANTONY, and LEPIDUS."], "CAESAR, ANTONY AND LEPIDUS"),
        ("A PLAY", ["GREY, SCROOP."], "GREY AND SCROOP"),
        ("A PLAY", ["SHALLOW, PAGE, &c."], "SHALLOW, PAGE AND OTHERS"),
        ("KING JOHN", ["LADY FalcoNBRIDGE.", "LADY FALCONBRIDGE."], "LADY FALCONBRIDGE"),
        ("THE LIFE OF KING HENRY V", ["KING.", "KING HENRY."], "KING HENRY"),
        ("THE LIFE AND DEATH OF KING RICHARD III", ["GLOSTER", "KING RICHARD."], "KING RICHARD"),
        ("THE MERRY WIVES OF WINDSOR", ["MRS. PAGE."], "MISTRESS PAGE"),
        ("ROMEO AND JULIET", ["Friar.", "Friar Lawrence."], "FRIAR LAWRENCE"),
        ("ROMEO AND JULIET", ["Lady  Montague.", "Lady Montague."], "LADY MONTAGUE"),
    ],
)
def test_variants_of_a_name(build: ModuleType, title: str, headings: list[str], role: str) -> None:
    text = f"{title}\n\nACT I.\n\n" + "".join(f"{heading}\nWords.\n\n" for heading in headings)
    assert build.parse_play(text) == {role: ["Words."] * len(headings)}


def test_a_sentence_that_opens_a_paragraph_is_no_heading(build: ModuleType) -> None:
    text = "A PLAY\n\nACT I.\n\nKING.\nAy.\n\n[A noise.]\n\nNay, keep your place.\nGo.\n"
    assert build.parse_play(text) == {"KING": ["Ay.", "Nay, keep your place.", "Go."]}


def test_a_text_that_is_no_play_is_refused(build: ModuleType) -> None:
    with pytest.raises(ValueError, match="no heading of an act"):
        build.parse_play("Shall I compare thee to a summer's day?")


def test_a_foreign_source_distribution_is_refused(build: ModuleType, tmp_path: Path) -> None:
    sdist = tmp_path / "other.tar.gz"
    sdist.write_bytes(b"other")
    with pytest.raises(ValueError, match=r"f393d09d07ea4d0e.*Download version 0\.6\."):
        build.read_plays(sdist)


def test_the_compact_text_leaves_out_roles_of_one_line(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "A PLAY\n\nACT I.\n\nKING.\nAy.\nNo.\n\nPAGE.\nCome.\n\nQUEEN.\nO!\nO, O!\n"
    compact = build.compact({"a_play": text})
    assert compact == "@a_play/KING\nAy.\nNo.\n@a_play/QUEEN\nO!\nO, O!\n"
    content = bz2.compress(compact.encode())
    path = tmp_path / "compact.bz2"
    path.write_bytes(content)
    monkeypatch.setattr(shakespeare, "SHA256", hashlib.sha256(content).hexdigest())
    assert shakespeare.load_lines(path) == {
        "a_play/KING": ["Ay.", "No."],
        "a_play/QUEEN": ["O!", "O, O!"],
    }


# The embedded file.


def test_size_of_the_embedded_file(clients: dict[str, list[str]]) -> None:
    """Pinned, as regressions: any change of the parser's rules or of the file shows here."""
    assert len({name.split("/")[0] for name in clients}) == 37
    assert len(clients) == 1219
    assert sum(len(lines) for lines in clients.values()) == 102_752
    assert sum(len(line) for lines in clients.values() for line in lines) == 4_161_400
    symbols = set().union(*(line for lines in clients.values() for line in lines))
    assert len(symbols) == 74
    assert symbols <= set(TFF_CHARACTERS)
    assert shakespeare.PATH.stat().st_size < 3_000_000


def test_lines_are_stripped_speech(clients: dict[str, list[str]]) -> None:
    for lines in clients.values():
        assert len(lines) >= 2
        for line in lines:
            assert line == " ".join(line.split())
            assert any(character.isalnum() for character in line)
            assert not set(line) & set("[]{}@")


@pytest.mark.quick
def test_known_facts(clients: dict[str, list[str]]) -> None:
    hamlet = clients["hamlet/HAMLET"]
    assert len(hamlet) > 1000
    assert hamlet[0] == "A little more than kin, and less than kind!"
    assert "To be, or not to be,--that is the question:--" in hamlet
    assert clients["richard_iii/KING RICHARD"][0] == "Now is the winter of our discontent"
    assert clients["twelfth_night/DUKE"][0] == "If music be the food of love, play on,"
    assert clients["julius_caesar/CAESAR"].count("Et tu, Brute?-- Then fall, Caesar!") == 1
    macbeth = {name.split("/")[1] for name in clients if name.startswith("macbeth/")}
    assert macbeth >= {"MACBETH", "LADY MACBETH", "BANQUO", "MACDUFF", "FIRST WITCH", "PORTER"}
    longest = sorted(clients, key=lambda name: -len(clients[name]))[:3]
    assert longest == ["hamlet/HAMLET", "richard_iii/KING RICHARD", "othello/IAGO"]


def test_names_are_roles(clients: dict[str, list[str]], build: ModuleType) -> None:
    words = {word for name in clients for word in name.split("/")[1].replace(",", "").split()}
    no_role = {"ENTER", "EXIT", "EXEUNT", "ACT", "SCENE", "SONG", "FLOURISH", "ALARUM", "ASIDE"}
    assert not words & (no_role | {"END", "RE-ENTER", "SHOW", "MANET", "SENNET", "THUNDER", "DIES"})
    for name in clients:
        role = name.split("/")[1]
        assert role == role.upper()
        assert len(role.split()) <= 4
        assert not set(role) & set(".:;!?[]()0123456789")
    for play, title in [
        ("hamlet", "HAMLET, PRINCE OF DENMARK"),
        ("henry_iv_part_1", "KING HENRY IV, THE FIRST PART"),
        ("lear", "THE TRAGEDY OF KING LEAR"),
    ]:
        assert not {f"{play}/{alias}" for alias in build.ALIASES[title]} & clients.keys()


def test_the_module_and_the_licence_know_the_file() -> None:
    digest = hashlib.sha256(shakespeare.PATH.read_bytes()).hexdigest()
    licence = shakespeare.PATH.with_name("shakespeare.LICENSE.md").read_text(encoding="utf-8")
    assert digest == shakespeare.SHA256
    assert digest in licence
    assert "Copyright (c) 2005-08, Open Knowledge Foundation" in licence


def test_a_missing_truncated_or_foreign_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.bz2"
    with pytest.raises(ValueError, match=r"missing\.bz2 cannot be read.*Reinstall fedax"):
        shakespeare.load(missing)
    truncated = tmp_path / "truncated.bz2"
    truncated.write_bytes(shakespeare.PATH.read_bytes()[:-1])
    message = rf"truncated or changed.*{shakespeare.SHA256[:16]}.*build_shakespeare\.py"
    with pytest.raises(ValueError, match=message):
        shakespeare.load(truncated)
    foreign = tmp_path / "foreign.bz2"
    foreign.write_bytes(bz2.compress(b"@a/B\nc\nd\n"))
    found = hashlib.sha256(foreign.read_bytes()).hexdigest()[:16]
    with pytest.raises(ValueError, match=rf"foreign\.bz2.*{found}.*{shakespeare.SHA256[:16]}"):
        shakespeare.load(foreign)


# Tokens and sequences.


def test_the_vocabulary_has_90_tokens() -> None:
    assert len(TFF_CHARACTERS) == len(set(TFF_CHARACTERS)) == 86
    assert list(shakespeare.CHARACTERS) == TFF_CHARACTERS
    special = (shakespeare.PAD, shakespeare.OUT_OF_VOCABULARY, shakespeare.BEGIN, shakespeare.END)
    assert special == (PAD, UNKNOWN, BEGIN, END)
    tokens = {*special, *shakespeare.encode("".join(TFF_CHARACTERS)).tolist()}
    assert tokens == set(range(90))
    assert shakespeare.VOCABULARY_SIZE == 90


@pytest.mark.quick
def test_encode_and_decode() -> None:
    text = "".join(TFF_CHARACTERS)
    tokens = shakespeare.encode(text)
    assert tokens.dtype == np.uint8
    assert tokens.tolist() == list(range(1, 87))
    assert shakespeare.decode(tokens) == text
    # None of these is in the vocabulary, whether below or above 256; a lone surrogate is one token.
    assert shakespeare.encode("~\t\u00e9\u0161\U0001f3ad\ud800").tolist() == [UNKNOWN] * 6
    assert shakespeare.decode([BEGIN, 1, 2, UNKNOWN, END, PAD]) == "dh\ufffd"
    assert shakespeare.encode("").shape == (0,)
    assert shakespeare.decode([]) == ""


@pytest.mark.parametrize("token", [-1, 90])
def test_decode_refuses_what_is_no_token(token: int) -> None:
    with pytest.raises(ValueError, match=f"must be 0 to 89, .*{token}"):
        shakespeare.decode([5, token])


@pytest.mark.quick
def test_sequences_by_hand() -> None:
    # "dh" and "l" are tokens 1 2 and 3, the newline between them is token 63.
    newline = TFF_CHARACTERS.index("\n") + 1
    stream = shakespeare.stream(["dh", "l"])
    assert stream.dtype == np.uint8
    assert stream.tolist() == [BEGIN, 1, 2, newline, 3, END]
    windows = shakespeare.sequences(stream, length=2)
    assert windows.dtype == np.uint8
    assert windows.tolist() == [[BEGIN, 1, 2], [2, newline, 3], [3, END, PAD]]
    assert shakespeare.sequences(stream, length=5).tolist() == [stream.tolist()]
    assert shakespeare.sequences(stream).tolist() == [stream.tolist() + [PAD] * 75]


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 80, 81, 82, 160, 161, 162, 1000])
def test_each_token_after_begin_is_a_target_exactly_once(num_tokens: int) -> None:
    stream = (np.arange(num_tokens) % 89 + 1).astype(np.uint8)
    windows = shakespeare.sequences(stream)
    targets = windows[:, 1:].ravel()
    inputs = windows[:, :-1].ravel()
    assert windows.shape == (-(-max(0, num_tokens - 1) // 80), 81)
    assert targets[targets != PAD].tolist() == stream[1:].tolist()
    assert inputs[: max(0, num_tokens - 1)].tolist() == stream[:-1].tolist()
    assert windows.flags.writeable


def test_a_sequence_needs_an_input() -> None:
    with pytest.raises(ValueError, match="at least one input"):
        shakespeare.sequences(np.array([BEGIN, END], np.uint8), length=0)


@pytest.mark.parametrize(
    ("num_lines", "num_train"), [(2, 1), (3, 2), (4, 3), (5, 4), (9, 7), (10, 8), (1421, 1136)]
)
def test_the_first_four_fifths_of_the_lines_are_for_training(
    num_lines: int, num_train: int
) -> None:
    lines = [str(i) for i in range(num_lines)]
    assert shakespeare.split_lines(lines) == (lines[:num_train], lines[num_train:])


def test_one_line_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="at least two lines"):
        shakespeare.split_lines(["alone"])


def test_load_gives_every_clients_lines_back_in_order(
    data: tuple[shakespeare.ClientArrays, shakespeare.ClientArrays],
    clients: dict[str, list[str]],
) -> None:
    train, test = data
    assert train.names == test.names == list(clients)
    for split in data:
        tokens = split.arrays["tokens"]
        assert tokens.dtype == np.uint8
        assert tokens.shape == (split.offsets[-1], 81)
        assert split.offsets.dtype == np.int64
        assert split.offsets.shape == (1220,)
        assert split.offsets[0] == 0
        assert (np.diff(split.offsets) >= 1).all()
        assert not (tokens == UNKNOWN).any()
    for i, lines in enumerate(clients.values()):
        texts = []
        for split in data:
            tokens = split.arrays["tokens"][split.offsets[i] : split.offsets[i + 1]]
            texts.append(shakespeare.decode(tokens[:, 1:]))
            assert tokens[0, 0] == BEGIN
            assert tokens[tokens != PAD][-1] == END
        assert texts[0].split("\n") + texts[1].split("\n") == lines
        assert len(texts[0].split("\n")) == max(1, len(lines) * 4 // 5)


def test_number_of_sequences(
    data: tuple[shakespeare.ClientArrays, shakespeare.ClientArrays],
    clients: dict[str, list[str]],
) -> None:
    """A part of n lines with c characters has c + n - 1 + 2 tokens, one of them no target."""
    expected = np.zeros(2, int)
    for lines in clients.values():
        num_train = max(1, len(lines) * 4 // 5)
        for j, part in enumerate([lines[:num_train], lines[num_train:]]):
            num_targets = sum(len(line) for line in part) + len(part)
            expected[j] += -(-num_targets // 80)
    assert [len(split.arrays["tokens"]) for split in data] == expected.tolist() == [43218, 11320]


# The bigram floor.


@pytest.mark.quick
def test_bigram_accuracy_by_hand() -> None:
    # Successors in training: 1 -> 2 twice, 3 once; 2 -> 1 twice; 3 none, so it predicts the most
    # frequent target. Targets: 2 and 1 twice each, 3 once; the tie goes to the smaller, 1.
    train = np.array([[1, 2, 1, 2], [2, 1, 3, PAD]], np.uint8)
    # Targets: 2 after 1 right, 1 after 2 right, 3 after 1 wrong, 1 after 3 right, 2 after 3 wrong.
    test = np.array([[1, 2, 1, 3], [3, 1, PAD, PAD], [3, 2, PAD, PAD]], np.uint8)
    assert shakespeare.bigram_accuracy(train, test) == 3 / 5


def test_bigram_accuracy_needs_targets() -> None:
    some, none = np.array([[1, 2]], np.uint8), np.array([[1, PAD]], np.uint8)
    with pytest.raises(ValueError, match="training tokens have no target"):
        shakespeare.bigram_accuracy(none, some)
    with pytest.raises(ValueError, match="test tokens have no target"):
        shakespeare.bigram_accuracy(some, none)


def test_bigram_accuracy_of_the_plays(
    data: tuple[shakespeare.ClientArrays, shakespeare.ClientArrays],
    clients: dict[str, list[str]],
) -> None:
    """Counted a second time, from the lines instead of the tokens, in plain Python."""
    pairs = (Counter[tuple[str, str]](), Counter[tuple[str, str]]())
    for lines in clients.values():
        num_train = max(1, len(lines) * 4 // 5)
        for count, part in zip(pairs, [lines[:num_train], lines[num_train:]], strict=True):
            text = ["begin", *"\n".join(part), "end"]
            count.update(itertools.pairwise(text))
    successors: dict[str, Counter[str]] = {}
    targets = Counter[str]()
    for (context, target), number in pairs[0].items():
        successors.setdefault(context, Counter())[target] += number
        targets[target] += number
    right = 0
    for (context, target), number in pairs[1].items():
        # "2" has a successor in the test data only.
        (best, _), *_ = successors.get(context, targets).most_common(1)
        right += number * (best == target)
    train, test = (split.arrays["tokens"] for split in data)
    accuracy = shakespeare.bigram_accuracy(train, test)
    assert accuracy == right / pairs[1].total()
    assert round(accuracy, 3) == 0.276
