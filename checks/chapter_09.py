"""Checks of the exercises of chapter 09: tokens and positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from checks.engine.answer import Wrong, written
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.message import Message, message
from checks.engine.verdict import exercise, open_exercise
from utils.embedding import TokenEmbedding
from utils.positions import sinusoidal_positions
from utils.text import BEGIN, END, UNKNOWN, pad, padding_mask_of_ids


@exercise("09.1", "Which shape?")
def which_shape(one_hot_shape, tokens_shape, table_shape, mask_shape) -> Message:
    written(one_hot_shape, tokens_shape, table_shape, mask_shape)
    ids = pad([[5] * n for n in (9, 4, 7, 2)])
    embed = TokenEmbedding(50, 16, 30)
    same_shape(one_hot_shape, torch.nn.functional.one_hot(ids, 50).shape, "b n v")
    same_shape(tokens_shape, embed(ids).shape, "b n e")
    same_shape(table_shape, embed.positions.shape, "p e")
    same_shape(mask_shape, padding_mask_of_ids(ids).shape, "b h i j")
    return message("four-shapes-right")


# ------------------------------------------------------------------------- the longest piece first


def longest_pieces(word: str, vocabulary: set[str]) -> list[str]:
    """Cut from the left, each time the longest piece; a letter with none stands alone."""
    pieces: list[str] = []
    while word:
        ends = (end for end in range(len(word), 1, -1) if word[:end] in vocabulary)
        end = next(ends, 1)
        pieces.append(word[:end])
        word = word[end:]
    return pieces


def shortest_pieces(word: str, vocabulary: set[str], rest: bool = False) -> list[str]:
    pieces: list[str] = []
    while word:
        ends = (end for end in range(1, len(word) + 1) if word[:end] in vocabulary)
        end = next(ends, len(word) if rest else 1)
        pieces.append(word[:end])
        word = word[end:]
    return pieces


def from_the_right(word: str, vocabulary: set[str]) -> list[str]:
    back = longest_pieces(word[::-1], {piece[::-1] for piece in vocabulary})
    return [piece[::-1] for piece in reversed(back)]


def longest_anywhere(word: str, vocabulary: set[str]) -> list[str]:
    for length in range(len(word), 1, -1):
        for start in range(len(word) - length + 1):
            if (piece := word[start : start + length]) in vocabulary:
                left, right = word[:start], word[start + length :]
                return [
                    *longest_anywhere(left, vocabulary),
                    piece,
                    *longest_anywhere(right, vocabulary),
                ]
    return list(word)


def until_unknown(word: str, vocabulary: set[str], rest: bool) -> list[str]:
    pieces: list[str] = []
    for piece in longest_pieces(word, vocabulary):
        if piece not in vocabulary:
            return [*pieces, word[len("".join(pieces)) :]] if rest else pieces
        pieces.append(piece)
    return pieces


def given_up(word: str, vocabulary: set[str]) -> list[str]:
    """What BERT does: a word with an unknown letter is unknown as a whole."""
    pieces = longest_pieces(word, vocabulary)
    return pieces if set(pieces) <= vocabulary else [word]


def fewest_pieces(word: str, vocabulary: set[str]) -> list[str]:
    best: list[list[str]] = [[]]
    for end in range(1, len(word) + 1):
        cuts = (s for s in range(end) if end - s == 1 or word[s:end] in vocabulary)
        best.append(min(([*best[s], word[s:end]] for s in cuts), key=len))
    return best[-1]


def removed_with(remove: Callable[[str, str], str]) -> Callable[[str, set[str]], list[str]]:
    """The right pieces, each of them removed from the word in another way."""

    def cut(word: str, vocabulary: set[str]) -> list[str]:
        pieces: list[str] = []
        while word:
            pieces.append(longest_pieces(word, vocabulary)[0])
            word = remove(word, pieces[-1])
        return pieces

    return cut


LONGEST_MISTAKES = {
    "shortest-piece-first": [
        shortest_pieces,
        lambda word, vocabulary: shortest_pieces(word, vocabulary, rest=True),
    ],
    "only-letters": lambda word, vocabulary: list(word),
    "longest-from-the-right": [from_the_right, fewest_pieces],
    "longest-of-the-whole-word": longest_anywhere,
    "unknown-letters-left-out": lambda word, vocabulary: [
        piece for piece in longest_pieces(word, vocabulary) if piece in vocabulary
    ],
    "stops-at-unknown-letter": lambda word, vocabulary: until_unknown(word, vocabulary, False),
    "rest-is-one-piece": lambda word, vocabulary: until_unknown(word, vocabulary, True),
    "last-piece-forgotten": lambda word, vocabulary: longest_pieces(word, vocabulary)[:-1],
    "last-letter-never-taken": lambda word, vocabulary: [
        *longest_pieces(word[:-1], vocabulary),
        word[-1:],
    ],
    "pieces-as-one-text": lambda word, vocabulary: " ".join(longest_pieces(word, vocabulary)),
    "found-pieces-only-once": lambda word, vocabulary: list(
        dict.fromkeys(longest_pieces(word, vocabulary))
    ),
    "word-given-up": given_up,
    "later-pieces-marked": lambda word, vocabulary: [
        "##" * (n > 0) + piece for n, piece in enumerate(longest_pieces(word, vocabulary))
    ],
    "mark-put-in-front": lambda word, vocabulary: longest_pieces("▁" + word, vocabulary),
    "piece-removed-everywhere": [
        removed_with(lambda word, piece: word.replace(piece, "")),
        removed_with(lambda word, piece: word.lstrip(piece)),
    ],
}


def word_and_vocabulary(case: Case) -> tuple[str, set[str]]:
    """A word of some letters, and pieces that overlap in it; with x begins none."""
    word = "".join(case.random.choices("abcdx", (4, 4, 4, 2, 1), k=case.random.randint(14, 20)))
    word, vocabulary = "ab" + word, {"a", "b", "ab"}
    while len(vocabulary) < 16:
        start, length = case.random.randrange(len(word) - 4), case.random.randint(2, 6)
        if "x" not in (piece := word[start : start + length]):
            vocabulary.add(piece)
        else:
            vocabulary.add("".join(case.random.choices("abcd", k=3)))
    return word, vocabulary


@exercise("09.2", "The longest piece first")
def longest_piece_first(longest_first) -> Message:
    same_function(
        longest_first,
        longest_pieces,
        word_and_vocabulary,
        mistakes=LONGEST_MISTAKES,
        trials=Trials(number=12),
    )
    for word in ("", "a", "x", "aa"):
        got = run(longest_first, (word, {"a", "ab"}), ["word", "vocabulary"])
        if list(got) != list(word):
            raise Wrong(message("wrong-for-short-word", word=word))
    return message("cuts-agree")


# ------------------------------------------------------------------------------ nothing is unknown

Spelling = Callable[[str], list]


def spelled(unknown: Spelling, known: Callable[[int], int] = lambda place: 260 + place) -> Callable:
    """A `to_ids`: what becomes of a letter that is not there, and of the place of one that is."""

    def to_ids(text: str, letters: str) -> list:
        return [
            one
            for letter in text
            for one in ([known(letters.index(letter))] if letter in letters else unknown(letter))
        ]

    return to_ids


def in_bytes(letter: str) -> list[int]:
    return [4 + byte for byte in letter.encode()]


IDS_MISTAKES = {
    "unknown-is-3": spelled(lambda letter: [3]),
    "unknown-left-out": spelled(lambda letter: []),
    "bytes-not-behind-special": spelled(lambda letter: list(letter.encode())),
    "bytes-behind-letters": lambda text, letters: spelled(
        lambda letter: [260 + len(letters) + byte for byte in letter.encode()]
    )(text, letters),
    "letters-among-bytes": spelled(in_bytes, lambda place: 4 + place),
    "letters-from-256": spelled(in_bytes, lambda place: 256 + place),
    "letters-from-261": spelled(in_bytes, lambda place: 261 + place),
    "both-off-by-special": spelled(lambda letter: list(letter.encode()), lambda place: 256 + place),
    "numbers-of-letters": spelled(lambda letter: [4 + ord(letter)]),
    "everything-in-bytes": lambda text, letters: in_bytes(text),
    "first-byte-only": spelled(lambda letter: in_bytes(letter)[:1]),
    "bytes-from-behind": spelled(lambda letter: in_bytes(letter)[::-1]),
    "bytes-in-lists": spelled(lambda letter: [in_bytes(letter)]),
    "bytes-of-utf-16": spelled(lambda letter: [4 + byte for byte in letter.encode("utf-16-be")]),
    "place-of-unknown-is-minus-one": spelled(lambda letter: [259]),
    "special-ids-added": [
        lambda text, letters: [BEGIN, *spelled(in_bytes)(text, letters)],
        lambda text, letters: [*spelled(in_bytes)(text, letters), END],
        lambda text, letters: [BEGIN, *spelled(in_bytes)(text, letters), END],
    ],
    "capitals-are-lost": lambda text, letters: spelled(in_bytes)(text.lower(), letters),
    "spaces-are-lost": [
        lambda text, letters: spelled(in_bytes)(text.strip(), letters),
        lambda text, letters: spelled(in_bytes)(text.replace(" ", ""), letters),
    ],
}


def joined(ids: list[int], letters: str) -> str:
    """The right `to_text`: bytes of everything, decoded once."""
    return b"".join(
        bytes([one - 4]) if one < 260 else letters[one - 260].encode() for one in ids
    ).decode()


def one_by_one(byte: Callable[[int], str], known: int = 260) -> Callable[[list[int], str], str]:
    """A `to_text` that makes text of each id alone."""
    return lambda ids, letters: "".join(
        byte(one) if one < 260 else letters[(one - known) % len(letters)] for one in ids
    )


def bytes_last(ids: list[int], letters: str) -> str:
    known = [one for one in ids if one >= 260]
    return joined(known + [one for one in ids if one < 260], letters)


TEXT_MISTAKES = {
    "bytes-are-no-letters": one_by_one(lambda one: chr(one - 4)),
    "bytes-not-shifted-back": one_by_one(chr),
    "bytes-decoded-alone": one_by_one(lambda one: bytes([one - 4]).decode(errors="replace")),
    "bytes-left-out": one_by_one(lambda one: ""),
    "bytes-decoded-last": bytes_last,
    "last-bytes-forgotten": lambda ids, letters: joined(
        ids[: max((n for n, one in enumerate(ids, 1) if one >= 260), default=0)], letters
    ),
    "letters-as-list": lambda ids, letters: list(joined(ids, letters)),
    "spaces-are-lost": lambda ids, letters: joined(ids, letters).strip(),
}


def letters_and_text(case: Case) -> tuple[str, str]:
    """A text with a space first, known letters and unknown ones of one to four bytes; the known."""
    letters = list("abcdeé겨울은추워요 .")
    case.random.shuffle(letters)
    letters = letters[: case.random.randint(8, 12)]
    text = case.random.choices(letters, k=9) + list("xZ뷁♥ß👩") + case.random.choices("zé뷁워", k=2)
    case.random.shuffle(text)
    return "".join([" ", *text, "♥"]), "".join(letters)


def ids_and_letters(case: Case) -> tuple[list[int], str]:
    text, letters = letters_and_text(case)
    return spelled(in_bytes)(text, letters), letters


@exercise("09.3", "Nothing is unknown")
def nothing_is_unknown(to_ids, to_text) -> Message:
    written(to_ids, to_text)
    same_function(to_ids, spelled(in_bytes), letters_and_text, mistakes=IDS_MISTAKES)
    same_function(to_text, joined, ids_and_letters, mistakes=TEXT_MISTAKES)
    for text in ("", "뷁", "abc", "뷁♥"):
        ids = run(to_ids, (text, "abc"), ["text", "letters"])
        if run(to_text, (ids, "abc"), ["ids", "letters"]) != text:
            raise Wrong(message("does-not-come-back", text=text))
    return message("text-comes-back")


# --------------------------------------------------------------------------------- padding in front


def filled(row: Callable[[list[int], int], list[int]]) -> Callable[[list[list[int]]], Tensor]:
    return lambda rows: torch.tensor([row(list(r), max(map(len, rows))) for r in rows])


padded_left = filled(lambda row, n: [0] * (n - len(row)) + row)

PAD_MISTAKES = {
    "padding-behind": filled(lambda row, n: row + [0] * (n - len(row))),
    "padding-is-minus-one": filled(lambda row, n: [-1] * (n - len(row)) + row),
    "padding-is-three": filled(lambda row, n: [3] * (n - len(row)) + row),
    "row-turned-round": filled(lambda row, n: [0] * (n - len(row)) + row[::-1]),
    "one-zero-too-many": filled(lambda row, n: [0] * (n + 1 - len(row)) + row),
    "cut-to-the-shortest": lambda rows: torch.tensor([r[-min(map(len, rows)) :] for r in rows]),
    "rows-sorted": [
        lambda rows: padded_left(sorted(rows, key=len)),
        lambda rows: padded_left(sorted(rows, key=len, reverse=True)),
    ],
}


def counted(ids: Tensor) -> Tensor:
    """How many real tokens stand up to each, itself included."""
    return (ids != 0).long().cumsum(dim=1)


PLACE_MISTAKES = {
    "places-from-one": counted,
    "padding-at-minus-one": lambda ids: counted(ids) - 1,
    "padding-counted-too": lambda ids: torch.arange(ids.shape[1]).expand(ids.shape),
    "places-from-behind": lambda ids: ((ids != 0).long().flip(1).cumsum(dim=1).flip(1) - 1).clamp(
        min=0
    ),
    "places-counted-across-rows": lambda ids: ((ids != 0).long().cumsum(dim=0) - 1).clamp(min=0),
    "ids-added-up": lambda ids: (ids.cumsum(dim=1) - 1).clamp(min=0),
    "only-real-or-not": lambda ids: (ids != 0).long(),
    "places-minus-padding-by-hand": lambda ids: (
        torch.arange(ids.shape[1]) - (ids == 0).sum(dim=1, keepdim=True)
    ),
    "places-count-the-padding": lambda ids: ((ids == 0).long().cumsum(dim=1) - 1).clamp(min=0),
    "small-ids-as-padding": lambda ids: ((ids > UNKNOWN).long().cumsum(dim=1) - 1).clamp(min=0),
}


def rows_of_ids(case: Case) -> tuple[list[list[int]]]:
    lengths = case.random.sample(range(1, 10), 4)
    return ([[case.random.randint(1, 90) for _ in range(length)] for length in lengths],)


def ids_padded_left(case: Case) -> tuple[Tensor]:
    ids = case.integers("b n", 1, 90)
    empty = torch.randint(0, case["n"], (case["b"], 1), generator=case.generator)
    empty[0] = 0
    return (ids * (torch.arange(case["n"]) >= empty),)


@exercise("09.4", "Padding in front")
def padding_in_front(pad_left, places) -> Message:
    written(pad_left, places)
    same_function(
        pad_left,
        padded_left,
        rows_of_ids,
        mistakes=PAD_MISTAKES,
    )
    return same_function(
        places,
        lambda ids: (counted(ids) - 1).clamp(min=0),
        ids_padded_left,
        mistakes=PLACE_MISTAKES,
        loops="forbidden",
        trials=Trials(ones=True),
    )


# ----------------------------------------------------------------------------------- find the bug


def averaged(mean: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A mean that is made of tokens (b, n, e) and of ones and zeros (b, n, 1), 1 = real."""
    return lambda tokens, ids: mean(tokens, (ids != 0)[:, :, None].to(tokens.dtype))


def of_the_real(value: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Something else than a mean, made of the real tokens (n, e) of each sentence."""
    return lambda tokens, ids: torch.stack(
        [value(text[row != 0]) for text, row in zip(tokens, ids, strict=True)]
    )


MEAN_MISTAKES = {
    "padding-still-counted": averaged(lambda tokens, real: tokens.mean(dim=1)),
    "text-divided-by-all-places": averaged(lambda tokens, real: (tokens * real).mean(dim=1)),
    "padding-summed-too": averaged(lambda tokens, real: tokens.sum(dim=1) / real.sum(dim=1)),
    "not-divided": averaged(lambda tokens, real: (tokens * real).sum(dim=1)),
    "divided-by-the-whole-batch": averaged(
        lambda tokens, real: (tokens * real).sum(dim=1) / real.sum()
    ),
    "divided-by-the-longest": averaged(
        lambda tokens, real: (tokens * real).sum(dim=1) / real.sum(dim=1).max()
    ),
    "mean-of-the-padding": averaged(
        lambda tokens, real: (tokens * (1 - real)).sum(dim=1) / (1 - real).sum(dim=1).clamp(min=1)
    ),
    "one-mean-for-all": averaged(
        lambda tokens, real: ((tokens * real).sum(dim=(0, 1)) / real.sum()).expand(len(tokens), -1)
    ),
    "first-places-taken": averaged(
        lambda tokens, real: torch.stack(
            [t[: int(r.sum())].mean(dim=0) for t, r in zip(tokens, real, strict=True)]
        )
    ),
    "text-largest-not-mean": averaged(
        lambda tokens, real: tokens.masked_fill(real == 0, -torch.inf).amax(dim=1)
    ),
    "text-median-not-mean": [
        of_the_real(lambda real: real.median(dim=0).values),
        of_the_real(lambda real: real.quantile(0.5, dim=0)),
    ],
    "only-the-first-token": averaged(lambda tokens, real: tokens[:, 0]),
    "mean-of-the-ends": averaged(lambda tokens, real: (tokens[:, 0] + tokens[:, -1]) / 2),
    "small-ids-as-padding": lambda tokens, ids: averaged(
        lambda tokens, real: (tokens * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
    )(tokens, ids * (ids > UNKNOWN)),
    "only-the-last-token": [
        averaged(lambda tokens, real: tokens[:, -1]),
        averaged(
            lambda tokens, real: torch.stack(
                [t[int(r.sum()) - 1] for t, r in zip(tokens, real, strict=True)]
            )
        ),
    ],
}


def tokens_and_ids(case: Case) -> tuple[Tensor, Tensor]:
    """Tokens and their ids; the padding stands behind in some rows and in front in others."""
    tokens, ids = case.randn("b n e"), case.integers("b n", 1, 90)
    places = torch.arange(case["n"])
    for row in range(case["b"]):
        empty = case.random.randrange(case["n"])
        ids[row, places < empty if row % 2 else places >= case["n"] - empty] = 0
    return tokens, ids


@exercise("09.5", "Find the bug")
def find_the_bug(mean_of_words) -> Message:
    return same_function(
        mean_of_words,
        averaged(lambda tokens, real: (tokens * real).sum(dim=1) / real.sum(dim=1)),
        tokens_and_ids,
        mistakes=MEAN_MISTAKES,
        trials=Trials(ones=True),
    )


# ------------------------------------------------------------------------------------ the grid


def grid(order: str = "rows", halves: Callable = sinusoidal_positions) -> Callable[..., Tensor]:
    """Codes of a grid: row by row or column by column, the halves made as told."""

    def codes(rows: int, columns: int, e: int) -> Tensor:
        down, across = halves(rows, e // 2), halves(columns, e // 2)
        table = torch.cat(
            [down[:, None].expand(-1, columns, -1), across[None].expand(rows, -1, -1)], dim=-1
        )
        return (table if order == "rows" else table.transpose(0, 1)).flatten(0, 1)

    return codes


def exchanged(rows: int, columns: int, e: int) -> Tensor:
    return grid()(rows, columns, e).roll(e // 2, dims=1)


def added(rows: int, columns: int, e: int) -> Tensor:
    both = sinusoidal_positions(rows, e)[:, None] + sinusoidal_positions(columns, e)
    return both.flatten(0, 1)


def cut_from_wide(rows: int, columns: int, e: int) -> Tensor:
    down = sinusoidal_positions(rows, e)[:, None, : e // 2].expand(-1, columns, -1)
    across = sinusoidal_positions(columns, e)[None, :, e // 2 :].expand(rows, -1, -1)
    return torch.cat([down, across], dim=-1).flatten(0, 1)


def alternating(rows: int, columns: int, e: int) -> Tensor:
    codes = grid()(rows, columns, e)
    return torch.stack([codes[:, : e // 2], codes[:, e // 2 :]], dim=-1).flatten(1)


def tiled(rows: int, columns: int, e: int) -> Tensor:
    """Both halves in the order of the columns: the row's code is repeated as the column's is."""
    down = sinusoidal_positions(rows, e // 2).repeat(columns, 1)
    return torch.cat([down, sinusoidal_positions(columns, e // 2).repeat(rows, 1)], dim=1)


def stretched(rows: int, columns: int, e: int) -> Tensor:
    down = sinusoidal_positions(rows, e // 2).repeat_interleave(columns, dim=0)
    across = sinusoidal_positions(columns, e // 2).repeat_interleave(rows, dim=0)
    return torch.cat([down, across], dim=1)


def back_and_forth(rows: int, columns: int, e: int) -> Tensor:
    codes = grid()(rows, columns, e).view(rows, columns, e)
    codes[1::2, :, e // 2 :] = codes[1::2, :, e // 2 :].flip(1)
    return codes.flatten(0, 1)


GRID_MISTAKES = {
    "column-before-row": exchanged,
    "column-by-column": [
        grid("columns"),
        lambda rows, columns, e: grid()(columns, rows, e),
    ],
    "columns-and-rows-exchanged": lambda rows, columns, e: exchanged(columns, rows, e),
    "codes-of-a-line": lambda rows, columns, e: sinusoidal_positions(rows * columns, e),
    "codes-added": added,
    "half-of-wide-codes": cut_from_wide,
    "halves-alternate": alternating,
    "rows-repeated-like-columns": tiled,
    "columns-repeated-like-rows": stretched,
    "row-says-all": lambda rows, columns, e: sinusoidal_positions(rows, e).repeat_interleave(
        columns, dim=0
    ),
    "grid-begins-at-one": grid(halves=lambda n, e: sinusoidal_positions(n + 1, e)[1:]),
    "grid-from-below": lambda rows, columns, e: (
        grid()(rows, columns, e).view(rows, columns, e).flip(0).flatten(0, 1)
    ),
    "every-second-row-turned": back_and_forth,
    "column-says-all": lambda rows, columns, e: sinusoidal_positions(columns, e).repeat(rows, 1),
}


@exercise("09.6", "Where is the patch?")
def where_is_the_patch(grid_codes) -> Message:
    return same_function(
        grid_codes,
        grid(),
        lambda case: (case["gh"], case["gw"], 2 * case["k"]),
        mistakes=GRID_MISTAKES,
        gradients=False,
    )


# ------------------------------------------------------------------------------ a matrix for a step


def turning(
    speeds: Callable[[Tensor, int], Tensor], block: Callable[[Tensor, Tensor], list[list[Tensor]]]
) -> Callable[[int, int], Tensor]:
    """A matrix of 2 x 2 blocks: how fast each pair turns, and how cos and sin stand in its block.

    Args:
        speeds: of the pairs 0 to e / 2 - 1 and e.
        block: of cos and sin of all pairs, the rows of the blocks.
    """

    def matrix(e: int, steps: int) -> Tensor:
        angles = steps * speeds(torch.arange(e // 2, dtype=torch.float64), e)
        blocks = torch.stack([torch.stack(row, -1) for row in block(angles.cos(), angles.sin())], 1)
        return torch.block_diag(*blocks).float()

    return matrix


def of_the_paper(pairs: Tensor, e: int) -> Tensor:
    return 10_000.0 ** (-2 * pairs / e)


def forward(cos: Tensor, sin: Tensor) -> list[list[Tensor]]:
    return [[cos, -sin], [sin, cos]]


def in_halves(e: int, steps: int) -> Tensor:
    """For codes with all sines before all cosines."""
    order = torch.cat([torch.arange(0, e, 2), torch.arange(1, e, 2)])
    return turning(of_the_paper, forward)(e, steps)[order][:, order]


SHIFT_MISTAKES = {
    "shifts-back": turning(of_the_paper, lambda cos, sin: [[cos, sin], [-sin, cos]]),
    "all-pairs-turn-alike": turning(lambda pairs, e: torch.ones_like(pairs), forward),
    "speeds-squared": turning(lambda pairs, e: of_the_paper(2 * pairs, e), forward),
    "speeds-rooted": turning(lambda pairs, e: of_the_paper(pairs / 2, e), forward),
    "speeds-too-fast": turning(lambda pairs, e: 1 / of_the_paper(pairs, e), forward),
    "speeds-the-other-way-round": turning(lambda pairs, e: of_the_paper(pairs, e).flip(0), forward),
    "mirrors-instead": [
        turning(of_the_paper, lambda cos, sin: [[cos, sin], [sin, -cos]]),
        turning(of_the_paper, lambda cos, sin: [[sin, cos], [cos, -sin]]),
        turning(of_the_paper, lambda cos, sin: [[-cos, sin], [sin, cos]]),
    ],
    "both-sines-positive": turning(of_the_paper, lambda cos, sin: [[cos, sin], [sin, cos]]),
    "sine-and-cosine-exchanged": turning(of_the_paper, lambda cos, sin: [[sin, -cos], [cos, sin]]),
    "without-sines": turning(of_the_paper, lambda cos, sin: [[cos, 0 * sin], [0 * sin, cos]]),
    "for-codes-in-halves": in_halves,
    "steps-without-sign": lambda e, steps: turning(of_the_paper, forward)(e, abs(steps)),
    "only-the-first-pair": turning(lambda pairs, e: (pairs == 0).double(), forward),
    "angles-in-degrees": turning(lambda pairs, e: of_the_paper(pairs, e).deg2rad(), forward),
    "always-one-step": lambda e, steps: turning(of_the_paper, forward)(e, 1),
    "one-step-too-many": lambda e, steps: turning(of_the_paper, forward)(e, steps + 1),
    "codes-not-rotations": lambda e, steps: torch.diag(sinusoidal_positions(abs(steps) + 1, e)[-1]),
}


def is_fitted(shift_matrix: Callable) -> bool:
    """Say whether a matrix moves the first codes as it should, and yet does not turn."""
    codes = sinusoidal_positions(13, 12)
    matrix = run(shift_matrix, (12, 3), ["e", "steps"])
    if not isinstance(matrix, Tensor) or matrix.shape != (12, 12):
        return False
    matrix = matrix.detach().float()
    moved, wanted = (codes @ matrix)[:10], codes[3:]
    turned = matrix @ matrix.mT
    return torch.allclose(moved, wanted, atol=0.01) and not torch.allclose(
        turned, torch.eye(12), atol=0.01
    )


@exercise("09.7", "One matrix for a step")
def matrix_for_a_step(shift_matrix) -> Message:
    written(shift_matrix)
    if callable(shift_matrix) and is_fitted(shift_matrix):
        raise Wrong("matrix-is-fitted")
    same_function(
        shift_matrix,
        turning(of_the_paper, forward),
        lambda case: (2 * case["k"], case.random.choice([-9, -4, -2, 2, 3, 5, 9])),
        mistakes=SHIFT_MISTAKES,
        gradients=False,
        trials=Trials(number=6),
    )
    for steps in (0, 40):
        codes = sinusoidal_positions(100, 12)
        matrix = run(shift_matrix, (12, steps), ["e", "steps"])
        if not torch.allclose((codes @ matrix)[: 100 - steps], codes[steps:], atol=1e-3):
            raise Wrong(message("shift-wrong-for-steps", steps=steps))
    return message("shift-agrees")


open_exercise("09.8", "Your own words")
