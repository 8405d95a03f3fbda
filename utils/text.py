"""From text to ids: special ids, a vocabulary, padding, and a subword tokenizer (chapter 09)."""

import io
import re
from collections.abc import Iterable, Sequence
from itertools import chain

import torch
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from torch import Tensor

from utils.validation import check_number, check_positive, check_shape

PADDING, BEGIN, END, UNKNOWN = range(4)
SPECIAL = ("<padding>", "<begin>", "<end>", "<unknown>")


class Vocabulary:
    """Give each symbol, a character or a word, its id: 0 to 3 are special, the symbols follow.

    >>> letters = Vocabulary("abc")
    >>> letters.encode("cab"), letters.decode([6, 4, 5]), len(letters)
    ([6, 4, 5], ['c', 'a', 'b'], 7)

    Args:
        symbols: each symbol once; a string is its characters.

    Raises: ValueError for a symbol twice, one that is no text, an empty one, or none at all.
    """

    def __init__(self, symbols: Iterable[str]):
        own = list(symbols)
        wrong = [s for s in own if not isinstance(s, str) or not s or s in SPECIAL]
        if wrong or not own or len(set(own)) < len(own):
            got = wrong[0] if wrong else next((s for s in own if own.count(s) > 1), own)
            raise ValueError(
                "Vocabulary: symbols must be texts, each once, none of them empty or special, "
                f"got {got!r}. Take sorted(set(...)) of the symbols of your text."
            )
        self.symbols = [*SPECIAL, *own]
        # The special ids are not found by their names: a text that says "<end>" ends nothing.
        self._ids = {symbol: i for i, symbol in enumerate(own, len(SPECIAL))}

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, sequence: Iterable[str]) -> list[int]:
        """Return the id of each symbol, of a string each character; `UNKNOWN` if there is none.

        Raises: ValueError for an entry that is not a string, as when ids are encoded again.
        """
        symbols = list(sequence)
        if odd := [symbol for symbol in symbols if not isinstance(symbol, str)]:
            raise ValueError(
                f"Vocabulary: encode must be given texts, got {odd[0]!r}. "
                "Ids become symbols with decode(ids)."
            )
        return [self._ids.get(symbol, UNKNOWN) for symbol in symbols]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the symbol of each id (n,); padding, begin and end are left out.

        Raises: ValueError for an id that the vocabulary does not have.
        """
        listed = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        fix = "Decode one sequence at a time, with the vocabulary that made it."
        for one in listed:
            check_number("Vocabulary", "id", one, 0, len(self) - 1, fix)
        return [self.symbols[one] for one in listed if one not in (PADDING, BEGIN, END)]


def pad(
    sequences: Sequence[Sequence[int]],
    padding_id: int = PADDING,
    length: int | None = None,
    left: bool = False,
) -> Tensor:
    """Fill sequences of ids up to one length, so that they become one tensor.

    >>> pad([[5, 6, 7], [8]])
    tensor([[5, 6, 7],
            [8, 0, 0]])

    Args:
        sequences: lists of ids, of any lengths.
        padding_id: what fills them up.
        length: the length of the result; without it, that of the longest sequence.
        left: fill at the beginning, so that all end together, as `generate` needs them; by default
            at the end.

    Shape:
        result  (b, n), int64

    Raises: ValueError for an empty sequence, one longer than `length`, or ids not integers.
    """
    rows = [s.tolist() if isinstance(s, Tensor) else list(s) for s in sequences]
    if not rows or not all(rows):
        raise ValueError(
            "pad: there must be sequences, each of at least one id, "
            f"got {rows if len(rows) < 5 else f'an empty one at {rows.index([])}'}. "
            "Put BEGIN or END into an empty text, or leave it out."
        )
    ids = [padding_id, *chain.from_iterable(rows)]
    odd = {kind for kind in set(map(type, ids)) if kind is bool or not issubclass(kind, int)}
    if odd:
        raise ValueError(
            "pad: sequences must be lists of integers, and padding_id one of them, "
            f"got {next(one for one in ids if type(one) in odd)!r}. "
            "Encode the text first; one sequence alone is [ids]."
        )
    longest = max(map(len, rows))
    if length is not None:
        check_positive("pad", length=length)
        if longest > length:
            raise ValueError(
                f"pad: length must be at least that of the longest sequence, got length={length} "
                f"for {longest} ids. Cut the sequences first, or pass length={longest}."
            )
    n = length or longest
    fill = [[padding_id] * (n - len(row)) for row in rows]
    joined = [a + b if left else b + a for a, b in zip(fill, rows, strict=True)]
    return torch.tensor(joined)


def padding_mask_of_ids(ids: Tensor, padding_id: int = PADDING) -> Tensor:
    """Let every token attend to those that are not padding: chapter 05's mask, from ids.

    Args:
        padding_id: what fills the sequences up.

    Shape:
        ids     (b, n), integers
        result  (b, 1, 1, n), bool, True = may be attended to; the same for all heads and queries

    Raises: ValueError for ids of another rank.
    """
    check_shape("padding_mask_of_ids", "ids", ids, "b n", "One sequence alone is ids[None].")
    return (ids != padding_id)[:, None, None, :]


def train_bpe(
    sentences: Iterable[str], vocab_size: int, byte_fallback: bool = True
) -> SentencePieceProcessor:
    """Train a subword tokenizer on sentences: byte-pair encoding (BPE) by SentencePiece.

    The ids are those of this file: 0 to 3 are special. With `byte_fallback`, 256 ids stand for
    single bytes, so that every text survives encoding and decoding, except for the character "▁",
    which marks a space in pieces and is decoded as one.

    >>> tokenizer = train_bpe(["low lower lowest"], 275)
    >>> tokenizer.encode("lowest low", out_type=str)
    ['▁lowest', '▁low']

    Args:
        sentences: what to learn from.
        vocab_size: number of ids, the special ones, bytes and characters included.
        byte_fallback: encode a character that the sentences lack as bytes; else it is `UNKNOWN`.

    Returns:
        SentencePiece's processor: `encode(text)` (also with `out_type=str`, `add_bos=True`,
        `add_eos=True`), `decode(ids)`, `id_to_piece(i)`, `get_piece_size()`.

    Raises: ValueError for no sentences, or a vocab_size that they cannot fill.
    Source: Sennrich et al. 2016; Kudo and Richardson 2018 (SentencePiece); chapter 09.
    """
    check_positive("train_bpe", vocab_size=vocab_size)
    lines = list(sentences)
    if isinstance(sentences, str) or not all(isinstance(line, str) for line in lines):
        raise ValueError(
            f"train_bpe: sentences must be a list of texts, got {type(sentences).__name__}. "
            "One text alone is [text]."
        )
    letters = {"▁", *"".join(lines)} - {" "}
    least = len(SPECIAL) + 256 * byte_fallback + len(letters)
    if not any(lines) or vocab_size < least:
        raise ValueError(
            "train_bpe: vocab_size must count the special ids, the bytes and every character, "
            f"got vocab_size={vocab_size} for {len(letters) - 1} characters. "
            f"Pass sentences, and at least {least}."
        )
    written = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=written,
            vocab_size=vocab_size,
            model_type="bpe",
            byte_fallback=byte_fallback,
            character_coverage=1.0,  # every letter of the sentences gets an id
            normalization_rule_name="identity",  # by default "①" would come back as "1"
            remove_extra_whitespaces=False,
            pad_id=PADDING,
            bos_id=BEGIN,
            eos_id=END,
            unk_id=UNKNOWN,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        most = re.search(r"value <= (\d+)", str(error))
        if most is None:
            raise
        raise ValueError(
            "train_bpe: vocab_size must not ask for more pieces than the sentences have, "
            f"got vocab_size={vocab_size}. Pass at most {most.group(1)}, or more sentences."
        ) from error
    return SentencePieceProcessor(model_proto=written.getvalue())
