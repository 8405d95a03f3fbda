"""Checks of the exercises of chapter 09: tokens and positions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from checks.engine.answer import Wrong, noticed, written
from checks.engine.call_tracer import CallTracer
from checks.engine.calls import Crashed, attempt, naming, run
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.message import Message, message
from checks.engine.patches import patches
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


# -------------------------------------------------------------------- the longest subword first


def longest_pieces(word: str, vocabulary: set[str]) -> list[str]:
    """Cut from the left, the longest subword each time; a character without one stays alone."""
    pieces: list[str] = []
    while word:
        ends = range(len(word), 1, -1)
        end = next((end for end in ends if word[:end] in vocabulary), 1)
        pieces.append(word[:end])
        word = word[end:]
    return pieces


def longest_anywhere(word: str, vocabulary: set[str]) -> list[str]:
    for length in range(len(word), 1, -1):
        for start in range(len(word) - length + 1):
            if (piece := word[start : start + length]) in vocabulary:
                rest = word[:start], word[start + length :]
                left, right = (longest_anywhere(part, vocabulary) for part in rest)
                return [*left, piece, *right]
    return list(word)


def fewest_pieces(word: str, vocabulary: set[str]) -> list[str]:
    best: list[list[str]] = [[]]
    for end in range(1, len(word) + 1):
        cuts = (s for s in range(end) if end - s == 1 or word[s:end] in vocabulary)
        best.append(min(([*best[s], word[s:end]] for s in cuts), key=len))
    return best[-1]


ENDS, GIVEN = "range(len(word), 1, -1)", "return pieces"
CUTS = patches(
    longest_pieces,
    {
        "shortest-piece-first": [
            (ENDS, "range(1, len(word) + 1)"),
            (ENDS, "range(1, len(word) + 1)", ", 1)", ", len(word))"),
        ],
        "only-letters": (ENDS, "[]"),
        "longest-from-the-right": (
            *("word[:end]", "word[-end:]", "word[end:]", "word[:-end]"),
            *("append(", "insert(0, "),
        ),
        "unknown-letters-left-out": (GIVEN, "return [p for p in pieces if p in vocabulary]"),
        "stops-at-unknown-letter": (
            "pieces.append",
            "if word[:end] not in vocabulary:\n            break\n        pieces.append",
        ),
        "rest-is-one-piece": (ENDS, "range(len(word), 0, -1)", ", 1)", ", len(word))"),
        "last-piece-forgotten": (GIVEN, "return pieces[:-1]"),
        "last-letter-never-taken": (ENDS, "range(len(word) - 1, 1, -1)"),
        "pieces-as-one-text": (GIVEN, "return ' '.join(pieces)"),
        "found-pieces-only-once": (GIVEN, "return list(dict.fromkeys(pieces))"),
        # As in BERT: a word with an unknown character is unknown as a whole.
        "word-given-up": [
            (GIVEN, "return pieces if set(pieces) <= vocabulary else [''.join(pieces)]"),
            (GIVEN, "return pieces if set(pieces) <= vocabulary else ['[UNK]']"),
        ],
        "later-pieces-marked": (GIVEN, "return pieces[:1] + ['##' + p for p in pieces[1:]]"),
        "stops-growing-too-soon": (
            "(end for end in ends if word[:end] in vocabulary), 1)",
            "(n for n in range(1, len(word)) if word[: n + 1] not in vocabulary), len(word))",
        ),
        "capitals-are-lost": ("while word:", "word = word.lower()\n    while word:"),
        "mark-put-in-front": ("while word:", "word = '▁' + word\n    while word:"),
        "piece-removed-everywhere": [
            ("word[end:]", "word.replace(word[:end], '')"),
            ("word[end:]", "word.lstrip(word[:end])"),
        ],
    },
) | {"longest-of-the-whole-word": longest_anywhere}
CUTS["longest-from-the-right"].append(fewest_pieces)


def word_and_vocabulary(case: Case) -> tuple[str, set[str]]:
    """A word, and subwords that overlap in it; none begins with x."""
    word = "".join(case.random.choices("abcDx", (4, 4, 4, 2, 1), k=case.random.randint(14, 20)))
    word, vocabulary = "ab" + word, {"a", "b", "ab"}
    while len(vocabulary) < 16:
        start, length = case.random.randrange(len(word) - 4), case.random.randint(2, 6)
        if "x" not in (piece := word[start : start + length]):
            vocabulary.add(piece)
        else:
            vocabulary.add("".join(case.random.choices("abcD", k=3)))
    return word, vocabulary


@exercise("09.2", "The longest subword first")
def longest_piece_first(longest_first) -> Message:
    same_function(
        longest_first, longest_pieces, word_and_vocabulary, mistakes=CUTS, trials=Trials(number=12)
    )
    for word in ("", "a", "x", "aa"):
        got = run(longest_first, (word, {"a", "ab"}), ["word", "vocabulary"])
        if list(got) != list(word):
            raise Wrong(message("wrong-for-short-word", word=word))
    return message("cuts-agree")


# ------------------------------------------------------------------------------ nothing is unknown


def to_numbers(text: str, characters: str) -> list[int]:
    ids: list[int] = []
    for character in text:
        if character in characters:
            ids.append(260 + characters.index(character))
        else:
            ids += [4 + byte for byte in character.encode()]
    return ids


BYTES = "[4 + byte for byte in character.encode()]"
IDS_MISTAKES = patches(
    to_numbers,
    {
        "unknown-is-3": (BYTES, "[3]"),
        "unknown-left-out": (BYTES, "[]"),
        "bytes-not-behind-special": ("4 + byte", "byte"),
        "bytes-behind-letters": ("4 + byte", "260 + len(characters) + byte"),
        "letters-among-bytes": ("260", "4"),
        "letters-from-256": ("260", "256"),
        "letters-from-261": ("260", "261"),
        "both-off-by-special": ("4 + byte", "byte", "260", "256"),
        "numbers-of-letters": (BYTES, "[4 + ord(character)]"),
        "everything-in-bytes": ("character in characters:", "not characters:"),
        "first-byte-only": (BYTES, f"{BYTES}[:1]"),
        "bytes-from-behind": (BYTES, f"{BYTES}[::-1]"),
        "bytes-in-lists": (BYTES, f"[{BYTES}]"),
        "bytes-of-utf-16": ("encode()", "encode('utf-16-be')"),
        "place-of-unknown-is-minus-one": (BYTES, "[259]"),
        "special-ids-added": [
            ("return ids", f"return [{BEGIN}, *ids]"),
            ("return ids", f"return [*ids, {END}]"),
            ("return ids", f"return [{BEGIN}, *ids, {END}]"),
        ],
        "capitals-are-lost": ("in text:", "in text.lower():"),
        "spaces-are-lost": [
            ("in text:", "in text.strip():"),
            ("in text:", "in text.replace(' ', ''):"),
        ],
    },
)


def joined(ids: list[int], characters: str) -> str:
    raw = b""
    for one in ids:
        raw += bytes([one - 4]) if one < 260 else characters[one - 260].encode()
    return raw.decode()


BYTE, TEXT = "bytes([one - 4])", "return raw.decode()"
TEXT_MISTAKES = patches(
    joined,
    {
        "bytes-are-no-letters": (BYTE, "chr(one - 4).encode()"),
        "bytes-not-shifted-back": (BYTE, "chr(one).encode()"),
        "bytes-decoded-alone": [
            (BYTE, f"{BYTE}.decode(errors='replace').encode()"),
            (BYTE, f"{BYTE}.decode(errors='ignore').encode()"),
        ],
        "bytes-left-out": (BYTE, "b''"),
        "bytes-decoded-last": ("in ids:", "in sorted(ids, key=lambda one: one < 260):"),
        "last-bytes-forgotten": (
            "    for",
            "    while ids and ids[-1] < 260:\n        ids = ids[:-1]\n    for",
        ),
        "letters-as-list": (TEXT, "return list(raw.decode())"),
        "spaces-are-lost": (TEXT, "return raw.decode().strip()"),
    },
)


def letters_and_text(case: Case) -> tuple[str, str]:
    """A text: a space, known characters, unknown ones of one to four bytes; and the known ones."""
    characters = list("abcdeé겨울은추워요 .")
    case.random.shuffle(characters)
    characters = characters[: case.random.randint(8, 12)]
    text = (
        case.random.choices(characters, k=9) + list("xZ뷁♥ß👩") + case.random.choices("zé뷁워", k=2)
    )
    case.random.shuffle(text)
    return "".join([" ", *text, "♥"]), "".join(characters)


def ids_and_letters(case: Case) -> tuple[list[int], str]:
    text, characters = letters_and_text(case)
    return to_numbers(text, characters), characters


@naming
def decodes_together(to_text: Callable) -> None:
    """Refuse an answer that cannot decode one character of three bytes."""
    try:
        attempt(to_text, to_numbers("뷁", "abc"), "abc")
    except Crashed as crash:
        said = crash.said
        if said.params.get("error") == "UnicodeDecodeError":
            raise Wrong(message("it-raises", what=said), lambda: "bytes-decoded-alone") from None


@exercise("09.3", "Nothing is unknown")
def nothing_is_unknown(to_ids, to_text) -> Message:
    written(to_ids, to_text)
    same_function(to_ids, to_numbers, letters_and_text, mistakes=IDS_MISTAKES)
    decodes_together(to_text)
    same_function(to_text, joined, ids_and_letters, mistakes=TEXT_MISTAKES)
    for text in ("", "뷁", "abc", "뷁♥"):
        ids = run(to_ids, (text, "abc"), ["text", "characters"])
        if run(to_text, (ids, "abc"), ["ids", "characters"]) != text:
            raise Wrong(message("does-not-come-back", text=text))
    return message("text-comes-back")


# ---------------------------------------------------------------------------- padding on the left


def padded_left(rows: list[list[int]]) -> Tensor:
    n = max(map(len, rows))
    return torch.tensor([[0] * (n - len(row)) + row for row in rows])


ROW = "[0] * (n - len(row)) + row"
PAD_MISTAKES = patches(
    padded_left,
    {
        "padding-behind": (ROW, "row + [0] * (n - len(row))"),
        "padding-is-minus-one": ("[0]", "[-1]"),
        "padding-is-three": ("[0]", "[3]"),
        "row-turned-round": ("+ row", "+ row[::-1]"),
        "one-zero-too-many": ("(n -", "(n + 1 -"),
        "cut-to-the-shortest": (ROW, "row[-min(map(len, rows)) :]"),
        "rows-sorted": [
            ("in rows]", "in sorted(rows, key=len)]"),
            ("in rows]", "in sorted(rows, key=len, reverse=True)]"),
        ],
    },
)


def places_of(ids: Tensor) -> Tensor:
    real = (ids != 0).long()
    return (real.cumsum(dim=1) - 1).clamp(min=0)


PLACES = "(real.cumsum(dim=1) - 1).clamp(min=0)"
PLACE_MISTAKES = patches(
    places_of,
    {
        "places-from-one": (" - 1", ""),
        "padding-at-minus-one": (".clamp(min=0)", ""),
        "padding-at-one": (".clamp(min=0)", ".masked_fill(ids == 0, 1)"),
        "padding-counted-too": [
            (PLACES, "torch.arange(ids.shape[1]).expand(ids.shape)"),
            (PLACES, "torch.arange(ids.shape[1]) * real"),
        ],
        "places-from-behind": ("real.cumsum(dim=1)", "real.flip(1).cumsum(dim=1).flip(1)"),
        "places-counted-across-rows": ("dim=1", "dim=0"),
        "ids-added-up": ("real.cumsum", "ids.cumsum"),
        "only-real-or-not": (PLACES, "real"),
        "places-minus-padding-by-hand": (
            PLACES,
            "torch.arange(ids.shape[1]) - (1 - real).sum(dim=1, keepdim=True)",
        ),
        "places-count-the-padding": ("!= 0", "== 0"),
        "small-ids-as-padding": ("ids != 0", f"ids > {UNKNOWN}"),
    },
)


def rows_of_ids(case: Case) -> tuple[list[list[int]]]:
    lengths = case.random.sample(range(1, 10), 4)
    return ([[case.random.randint(1, 90) for _ in range(length)] for length in lengths],)


def ids_padded_left(case: Case) -> tuple[Tensor]:
    ids = case.integers("b n", 1, 90)
    empty = torch.randint(0, case["n"], (case["b"], 1), generator=case.generator)
    empty[0] = 0
    return (ids * (torch.arange(case["n"]) >= empty),)


@exercise("09.4", "Padding on the left")
def padding_on_the_left(pad_left, position_ids) -> Message:
    written(pad_left, position_ids)
    same_function(pad_left, padded_left, rows_of_ids, mistakes=PAD_MISTAKES)
    return same_function(
        position_ids,
        places_of,
        ids_padded_left,
        mistakes=PLACE_MISTAKES,
        loops="forbidden",
        trials=Trials(ones=True),
    )


# ----------------------------------------------------------------------------------- find the bug


def mean_of_real(tokens: Tensor, ids: Tensor) -> Tensor:
    real = (ids != 0)[:, :, None].to(tokens.dtype)
    return (tokens * real).sum(dim=1) / real.sum(dim=1)


SUM, COUNT = "(tokens * real).sum(dim=1)", "real.sum(dim=1)"
MEAN, HIDDEN = f"{SUM} / {COUNT}", "tokens.masked_fill(real == 0, torch.nan)"
MEAN_MISTAKES = patches(
    mean_of_real,
    {
        "padding-still-counted": (MEAN, "tokens.mean(dim=1)"),
        "text-divided-by-all-places": (MEAN, "(tokens * real).mean(dim=1)"),
        "padding-summed-too": ("tokens * real", "tokens"),
        "not-divided": (MEAN, SUM),
        "divided-by-the-whole-batch": (COUNT, "real.sum()"),
        "divided-by-the-longest": (COUNT, f"{COUNT}.max()"),
        "mean-of-the-padding": ("!=", "==", COUNT, f"{COUNT}.clamp(min=1)"),
        "one-mean-for-all": (MEAN, f"({SUM}.sum(dim=0) / real.sum()).expand(len(tokens), -1)"),
        "first-places-taken": ("(ids != 0)", "(ids != 0).sort(dim=1, descending=True).values"),
        "text-largest-not-mean": (MEAN, "tokens.masked_fill(real == 0, -torch.inf).amax(dim=1)"),
        "text-median-not-mean": [
            (MEAN, f"{HIDDEN}.nanmedian(dim=1).values"),
            (MEAN, f"{HIDDEN}.nanquantile(0.5, dim=1)"),
        ],
        "only-the-first-token": (MEAN, "tokens[:, 0]"),
        "mean-of-the-ends": (MEAN, "(tokens[:, 0] + tokens[:, -1]) / 2"),
        "small-ids-as-padding": ("ids != 0", f"ids > {UNKNOWN}", COUNT, f"{COUNT}.clamp(min=1)"),
        "only-the-last-token": [
            (MEAN, "tokens[:, -1]"),
            (MEAN, "tokens[torch.arange(len(ids)), (ids != 0).sum(dim=1) - 1]"),
        ],
    },
)


def tokens_and_ids(case: Case) -> tuple[Tensor, Tensor]:
    """Tokens and their ids; the padding comes last in some rows and first in others."""
    tokens, ids = case.randn("b n e"), case.integers("b n", 1, 90)
    places = torch.arange(case["n"])
    for row in range(case["b"]):
        empty = case.random.randrange(case["n"])
        ids[row, places < empty if row % 2 else places >= case["n"] - empty] = 0
    return tokens, ids


@exercise("09.5", "Find the bug")
def find_the_bug(mean_pooling) -> Message:
    return same_function(
        mean_pooling, mean_of_real, tokens_and_ids, mistakes=MEAN_MISTAKES, trials=Trials(ones=True)
    )


# ------------------------------------------------------------------------------------ the grid


def codes_of_grid(rows: int, columns: int, e: int) -> Tensor:
    by_row = sinusoidal_positions(rows, e // 2).repeat_interleave(columns, dim=0)
    across = sinusoidal_positions(columns, e // 2).repeat(rows, 1)
    return torch.cat([by_row, across], dim=1)


CODES = "torch.cat([by_row, across], dim=1)"
TILED = (".repeat_interleave(columns, dim=0)", ".repeat(columns, 1)")
STRETCHED = (".repeat(rows, 1)", ".repeat_interleave(rows, dim=0)")
GRID_MISTAKES = patches(
    codes_of_grid,
    {
        "column-before-row": ("[by_row, across]", "[across, by_row]"),
        "column-by-column": [
            (*TILED, *STRETCHED),
            ("(rows: int, columns: int", "(columns: int, rows: int"),
        ],
        "codes-of-a-line": (CODES, "sinusoidal_positions(rows * columns, e)"),
        "codes-added": ("e // 2", "e", CODES, "by_row + across"),
        "half-of-wide-codes": [
            ("e // 2", "e", "[by_row, across]", f"[by_row[:, {one}], across[:, {two}]]")
            for one in (": e // 2", "e // 2 :")
            for two in (": e // 2", "e // 2 :")
        ],
        "halves-alternate": (CODES, "torch.stack([by_row, across], dim=-1).flatten(1)"),
        "rows-repeated-like-columns": TILED,
        "columns-repeated-like-rows": STRETCHED,
        "row-says-all": ("e // 2", "e", CODES, "by_row"),
        "grid-begins-at-one": (
            *("(rows, e // 2)", "(rows + 1, e // 2)[1:]"),
            *("(columns, e // 2)", "(columns + 1, e // 2)[1:]"),
        ),
        "grid-from-below": ("(rows, e // 2)", "(rows, e // 2).flip(0)"),
        "every-second-row-turned": (
            ".repeat(rows, 1)",
            "\n    across = torch.cat([across, across.flip(0)] * rows)[: rows * columns]",
        ),
        "column-says-all": ("e // 2", "e", CODES, "across"),
    },
)


@exercise("09.6", "Where is the patch?")
def where_is_the_patch(grid_codes) -> Message:
    return same_function(
        grid_codes,
        codes_of_grid,
        lambda case: (case["gh"], case["gw"], 2 * case["k"]),
        mistakes=GRID_MISTAKES,
        gradients=False,
    )


# ------------------------------------------------------------------------------ a matrix for a step


def turning(e: int, steps: int) -> Tensor:
    pairs = torch.arange(0, e, 2, dtype=torch.float64)
    angles = steps / 10_000 ** (pairs / e)
    cos, sin = angles.cos(), angles.sin()
    blocks = torch.stack([cos, -sin, sin, cos], dim=-1).view(-1, 2, 2)
    matrix = torch.block_diag(*blocks)
    return matrix.float()


BLOCK = "[cos, -sin, sin, cos]"
FITS = {"lstsq", "pinv", "solve"}
SHIFT_MISTAKES = patches(
    turning,
    {
        "shifts-back": (BLOCK, "[cos, sin, -sin, cos]"),
        "all-pairs-turn-alike": ("pairs / e", "0 * pairs"),
        "speeds-squared": ("pairs / e", "2 * pairs / e"),
        "speeds-rooted": ("pairs / e", "pairs / 2 / e"),
        "speeds-too-fast": ("steps /", "steps *"),
        "speeds-the-other-way-round": ("pairs / e", "pairs.flip(0) / e"),
        "mirrors-instead": [
            (BLOCK, "[cos, sin, sin, -cos]"),
            (BLOCK, "[sin, cos, cos, -sin]"),
            (BLOCK, "[-cos, sin, sin, cos]"),
        ],
        "both-sines-positive": (BLOCK, "[cos, sin, sin, cos]"),
        "sine-and-cosine-exchanged": (BLOCK, "[sin, -cos, cos, sin]"),
        "without-sines": (BLOCK, "[cos, 0 * sin, 0 * sin, cos]"),
        "for-codes-in-halves": (
            "matrix.float()",
            "matrix.view(-1, 2, e // 2, 2).permute(1, 0, 3, 2).reshape(e, e).float()",
        ),
        "steps-without-sign": ("steps /", "abs(steps) /"),
        "negative-steps-do-nothing": ("steps /", "max(steps, 0) /"),
        "only-the-first-pair": ("/ 10_000 ** (pairs / e)", "* (pairs == 0)"),
        "angles-in-degrees": ("steps /", "torch.pi / 180 * steps /"),
        "always-one-step": ("steps /", "1 /"),
        "one-step-too-many": ("steps /", "(steps + 1) /"),
        "codes-not-rotations": (
            "torch.block_diag(*blocks)",
            "torch.diag(sinusoidal_positions(abs(steps) + 1, e)[-1])",
        ),
    },
)


@exercise("09.7", "One matrix for a step")
def matrix_for_a_step(shift_matrix) -> Message:
    written(shift_matrix)
    if callable(shift_matrix):
        with CallTracer() as tracer:
            run(shift_matrix, (12, 3), ["e", "steps"])
        if tracer.called.keys() & FITS:
            noticed(Wrong("matrix-is-fitted"))
    same_function(
        shift_matrix,
        turning,
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
