"""Symbols become ids and ids symbols; padding fills up and is masked; what is refused."""

import re
import unicodedata
from collections import Counter

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers import error_of
from utils.data import load_sentences
from utils.data.files import RESOURCES
from utils.masking import padding_mask
from utils.text import (
    BEGIN,
    END,
    PADDING,
    SPECIAL,
    UNKNOWN,
    Vocabulary,
    pad,
    padding_mask_of_ids,
    train_bpe,
)

tried = settings(max_examples=60, deadline=None, derandomize=True, database=None)
id_lists = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=9), min_size=1, max_size=5)


def test_the_special_ids_come_first_and_have_names():
    assert (PADDING, BEGIN, END, UNKNOWN) == (0, 1, 2, 3)
    letters = Vocabulary("ab")
    assert letters.symbols == [*SPECIAL, "a", "b"] and len(letters) == 6
    assert [letters.symbols[one] for one in (PADDING, BEGIN, END, UNKNOWN)] == list(SPECIAL)


def test_letters_and_words_become_ids():
    assert Vocabulary("abc").encode("cab?") == [6, 4, 5, UNKNOWN]
    words = Vocabulary(["the", "cat", "sat"])
    assert words.encode(["the", "dog", "sat"]) == [4, UNKNOWN, 6]
    assert words.decode([BEGIN, 4, 5, UNKNOWN, END, PADDING]) == ["the", "cat", "<unknown>"]
    assert words.decode(torch.tensor([6, 4])) == ["sat", "the"]
    assert Vocabulary("abc").encode("") == [] and Vocabulary("abc").decode([]) == []


def test_a_text_that_says_end_ends_nothing():
    letters = Vocabulary("<end>")  # five letters
    assert END not in letters.encode("<end>")
    assert Vocabulary(["the", "cat"]).encode(["<end>", "<padding>"]) == [UNKNOWN, UNKNOWN]


@tried
@given(st.text(min_size=1))
def test_any_text_comes_back_from_a_vocabulary_that_has_its_letters(text):
    letters = Vocabulary(sorted(set(text)))
    ids = letters.encode(text)
    assert "".join(letters.decode(ids)) == text
    assert min(ids) >= len(SPECIAL) and max(ids) < len(letters)


@pytest.mark.parametrize("symbols", ["", [], "aba", ["a", ""], ["a", 3], ["a", "<end>"]])
def test_symbols_that_are_refused(symbols):
    text = error_of(lambda: Vocabulary(symbols))
    assert text.startswith("Vocabulary: symbols must be texts, each once")


def test_a_symbol_twice_is_named():
    assert "got 'b'." in error_of(lambda: Vocabulary("abcb"))


@pytest.mark.parametrize("wrong", [[7], [-1], [1.0], [True], [[4]], torch.tensor([[4]])])
def test_ids_that_no_vocabulary_of_three_letters_has(wrong):
    assert "id must be an integer from 0 to 6" in error_of(lambda: Vocabulary("abc").decode(wrong))


def test_ids_are_not_encoded_again():
    assert "decode(ids)" in error_of(lambda: Vocabulary("abc").encode([4, 5]))


def test_pad_fills_up_at_the_end():
    ids = pad([[5, 6, 7], [8]])
    assert ids.tolist() == [[5, 6, 7], [8, 0, 0]] and ids.dtype == torch.int64
    assert pad([[5], [6, 7]], padding_id=9, length=4).tolist() == [[5, 9, 9, 9], [6, 7, 9, 9]]
    assert torch.equal(pad([torch.tensor([5, 6]), [7]]), pad([[5, 6], [7]]))


def test_pad_fills_up_at_the_beginning():
    assert pad([[5, 6, 7], [8]], left=True).tolist() == [[5, 6, 7], [0, 0, 8]]
    assert pad([[5]], padding_id=9, length=3, left=True).tolist() == [[9, 9, 5]]


@tried
@given(id_lists, st.integers(0, 3))
def test_the_mask_of_padded_ids_is_that_of_their_lengths(lists, more):
    n = max(map(len, lists)) + more
    ids = pad(lists, length=n)
    lengths = torch.tensor([len(one) for one in lists])
    assert ids.shape == (len(lists), n)
    assert torch.equal(padding_mask_of_ids(ids), padding_mask(lengths, n))
    assert [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)] == lists


def test_the_mask_takes_another_padding_id():
    mask = padding_mask_of_ids(pad([[0, 1], [2]], padding_id=9), padding_id=9)
    assert mask[:, 0, 0].int().tolist() == [[1, 1], [1, 0]] and mask.dtype == torch.bool


@pytest.mark.parametrize(
    "call, said, mended",
    [
        (lambda: pad([]), "there must be sequences, each of at least one id", None),
        (lambda: pad([[4], []]), "Put BEGIN or END into an empty text", lambda: pad([[4], [END]])),
        (lambda: pad([[4]] * 9 + [[]]), "an empty one at 9", None),
        (lambda: pad([[4, 5]], length=1), "or pass length=2", lambda: pad([[4, 5]], length=2)),
        (lambda: pad([[4, 5]], length=0), "length must be an integer of at least 1", None),
        (lambda: pad([[4.0, 5.0]]), "lists of integers, and padding_id one of them, got 4.0", None),
        (
            lambda: pad([[4], [True]]),
            "lists of integers, and padding_id one of them, got True",
            None,
        ),
        (
            lambda: pad(["abc"]),
            "Encode the text first",
            lambda: pad([Vocabulary("abc").encode("abc")]),
        ),
        (lambda: padding_mask_of_ids(torch.tensor([4, 0])), "ids[None]", None),
    ],
)
def test_what_is_refused_gets_a_fix(call, said, mended):
    assert said in error_of(call)
    if mended:
        mended()


def test_the_sentences_of_the_course():
    pairs = load_sentences()
    english, korean = zip(*pairs, strict=True)
    assert len(pairs) >= 400
    assert f"{len(pairs)} pairs" in (RESOURCES / "README.md").read_text(encoding="utf-8")
    assert ("Winter is cold.", "겨울은 추워요.") in pairs
    assert "감기 조심하세요." in korean
    assert len(set(english)) == len(set(korean)) == len(pairs), "no sentence twice"
    for one in english:
        assert one.isascii() and one[0].isupper() and one[-1] in ".?!", one
    for one in korean:
        assert one[-1] in ".?!" and unicodedata.is_normalized("NFKC", one), one
        assert any("가" <= letter <= "힣" for letter in one), one
        assert not re.search("[A-Za-z]", one), one


def test_the_sentences_were_not_made_from_templates():
    for language in zip(*load_sentences(), strict=True):
        words = [word for one in language for word in re.findall(r"\w+", one.lower())]
        assert len(set(words)) > 750, "few words, often used, would be a template's"
        openings = Counter(" ".join(one.split()[:3]) for one in language)
        assert max(openings.values()) <= 5, openings.most_common(3)


@pytest.fixture(scope="module")
def pieces():
    return train_bpe([one for pair in load_sentences() for one in pair], 2000)


def test_the_sentences_are_cut_into_pieces(pieces):
    assert pieces.encode("Winter is cold.", out_type=str) == ["▁W", "inter", "▁is", "▁cold", "."]
    cut = pieces.encode("겨울은 추워요.", out_type=str)
    assert cut == ["▁겨울", "은", "▁", "추", "워요", "."]
    assert pieces.get_piece_size() == 2000


def test_the_special_ids_are_the_ones_of_this_file(pieces):
    special = pieces.pad_id(), pieces.bos_id(), pieces.eos_id(), pieces.unk_id()
    assert special == (PADDING, BEGIN, END, UNKNOWN)
    ids = pieces.encode("Winter is cold.", add_bos=True, add_eos=True)
    assert (ids[0], ids[-1]) == (BEGIN, END) and pieces.decode(ids) == "Winter is cold."
    assert BEGIN not in pieces.encode("<s> </s> <pad>") and END not in pieces.encode("</s>")


@settings(tried, max_examples=200)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
@example(" two  spaces ")
@example("① ½ ﬁ</s>\n\x00")
def test_any_text_comes_back_from_its_pieces(pieces, text):
    ids = pieces.encode(text)
    assert pieces.decode(ids) == text
    assert UNKNOWN not in ids and all(3 < one < 2000 for one in ids)


def test_the_one_sign_that_does_not_come_back(pieces):
    assert pieces.decode(pieces.encode("a▁b")) == "a b"


def test_every_sentence_comes_back_and_the_same_pieces_are_learned_again(pieces):
    for pair in load_sentences():
        for one in pair:
            assert pieces.decode(pieces.encode(one)) == one
    again = train_bpe([one for pair in load_sentences() for one in pair], 2000)
    assert again.serialized_model_proto() == pieces.serialized_model_proto()


def test_without_bytes_a_new_letter_is_unknown():
    small = train_bpe(["low lower lowest"], 14, byte_fallback=False)
    assert UNKNOWN in small.encode("slow") + small.encode("low!")
    assert UNKNOWN not in small.encode("wore tows")


def test_learning_says_nothing(capfd):
    train_bpe(["low lower lowest"], 270)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "call, said, mended",
    [
        (lambda: train_bpe([], 300), "Pass sentences", None),
        (lambda: train_bpe([""], 300), "Pass sentences", None),
        (lambda: train_bpe("abc", 300), "[text]", lambda: train_bpe(["abc"], 265)),
        (lambda: train_bpe(["ab", 3], 300), "a list of texts", None),
        (lambda: train_bpe(["ab"], 0), "vocab_size must be an integer of at least 1", None),
        (lambda: train_bpe(["ab"], 262), "at least 263", lambda: train_bpe(["ab"], 263)),
        (
            lambda: train_bpe(["ab"], 6, byte_fallback=False),
            "at least 7",
            lambda: train_bpe(["ab"], 7, byte_fallback=False),
        ),
        (lambda: train_bpe(["ab"], 300), "at most 266", lambda: train_bpe(["ab"], 266)),
    ],
)
def test_pieces_that_cannot_be_learned(call, said, mended):
    assert said in error_of(call)
    if mended:
        mended()
