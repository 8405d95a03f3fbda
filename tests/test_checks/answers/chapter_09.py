"""Answers to the exercises of chapter 09, right and wrong."""

from exercise_bank import Bank, code, swap


def position_ids(body, cause=""):
    """`position_ids` as one expression, of `real`, ones and zeros for the ids."""
    return code(
        f"""
        def position_ids(ids):
            real = (ids != 0).long()
            return {body}
        """,
        cause=cause,
    )


def longest(first="word", marked="", to="len(word)", rest="word[end:]", cause=""):
    """`longest_first` with one of its steps done otherwise."""
    return code(
        f"""
        def longest_first(word, vocabulary):
            pieces, word = [], {first}
            while word:
                end = {to}
                while end > 1 and word[:end] not in vocabulary:
                    end -= 1
                pieces.append(word[:end])
                pieces[-1], word = {marked.replace("pieces", "pieces[:-1]")}pieces[-1], {rest}
            return pieces
        """,
        cause=cause,
    )


def pad_left(row, cause=""):
    """`pad_left` with another row; `n` is the length of the longest."""
    return code(
        f"""
        def pad_left(rows):
            n = max(map(len, rows))
            return torch.tensor([{row} for row in rows])
        """,
        cause=cause,
    )


def mean(body, cause=""):
    """`mean_pooling` as one expression, of tokens and `real` (b, n, 1)."""
    return code(
        f"""
        def mean_pooling(tokens, ids):
            real = (ids != 0)[:, :, None].to(tokens.dtype)
            return {body}
        """,
        cause=cause,
    )


def grid(down, across, joined="torch.cat([down, across], dim=1)", cause=""):
    """`grid_codes` with other halves, or joined in another way."""
    return code(
        f"""
        def grid_codes(rows, columns, e):
            down, across = {down}, {across}
            return {joined}
        """,
        cause=cause,
    )


DOWN = "sinusoidal_positions(rows, e // 2).repeat_interleave(columns, dim=0)"
ACROSS = "sinusoidal_positions(columns, e // 2).repeat(rows, 1)"

BANK = {
    "09.1": Bank(
        wrong=[
            swap("(4, 9, 50)", "(4, 50, 9)", cause="sizes-in-another-order"),
            swap("(4, 9, 50)", "(4, 9)", cause="number-of-axes"),
            swap("(4, 9, 50)", "(4, 9, 16)", cause="look-at-axes v"),
            swap("(4, 9, 16)", "(4, 30, 16)", cause="look-at-axes n"),
            swap("(4, 9, 16)", "(9, 16)", cause="number-of-axes"),
            swap("(30, 16)", "(9, 16)", cause="look-at-axes p"),
            swap("(30, 16)", "(4, 30, 16)", cause="number-of-axes"),
            swap("(30, 16)", "(50, 16)", cause="look-at-axes p"),
            swap("(4, 1, 1, 9)", "(4, 2, 9, 9)", cause="look-at-axes h i"),
            swap("(4, 1, 1, 9)", "(4, 1, 9, 1)", cause="sizes-in-another-order"),
            swap("(4, 1, 1, 9)", "(4, 9)", cause="number-of-axes"),
            swap("(4, 1, 1, 9)", "36", cause="no-shape"),
        ],
        right=[
            swap("(4, 9, 50)", "[4, 9, 50]"),
            swap("(4, 1, 1, 9)", "torch.Size([4, 1, 1, 9])"),
        ],
    ),
    "09.2": Bank(
        wrong=[
            longest(marked="'##' * (len(pieces) > 0) + ", cause="later-pieces-marked"),
            longest(first="'▁' + word", cause="mark-put-in-front"),
            longest(rest="word.replace(pieces[-1], '')", cause="piece-removed-everywhere"),
            longest(rest="word.lstrip(pieces[-1])", cause="piece-removed-everywhere"),
            longest(to="min(4, len(word))", cause="has-parts"),
            code(
                """
                def longest_first(word, vocabulary):
                    pieces, rest = [], word
                    while rest:
                        ends = [e for e in range(len(rest) + 1) if rest[:e] in vocabulary]
                        if not ends:
                            return [word]
                        pieces.append(rest[: max(ends)])
                        rest = rest[max(ends) :]
                    return pieces
                """,
                cause="word-given-up",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    best = [[]]
                    for end in range(1, len(word) + 1):
                        cuts = (s for s in range(end) if end - s == 1 or word[s:end] in vocabulary)
                        best.append(min(([*best[s], word[s:end]] for s in cuts), key=len))
                    return best[-1]
                """,
                cause="longest-from-the-right",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    pieces = []
                    while word:
                        end = 1
                        while end < len(word) and word[:end] not in vocabulary:
                            end += 1
                        pieces.append(word[:end])
                        word = word[end:]
                    return pieces
                """,
                cause="shortest-piece-first",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    return list(word)
                """,
                cause="only-letters",
            ),
            longest(first="word.lower()", cause="capitals-are-lost"),
            code(
                """
                def longest_first(word, vocabulary):
                    pieces, start = [], 0
                    while start < len(word):
                        end = start + 1
                        while end < len(word) and word[start : end + 1] in vocabulary:
                            end += 1
                        pieces.append(word[start:end])
                        start = end
                    return pieces
                """,
                cause="stops-growing-too-soon",
            ),
            code(
                """
                right = longest_first

                def longest_first(word, vocabulary):
                    pieces = right(word, vocabulary)
                    return pieces if set(pieces) <= vocabulary else ["[UNK]"]
                """,
                cause="word-given-up",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    pieces = []
                    while word:
                        start = 0
                        while start < len(word) - 1 and word[start:] not in vocabulary:
                            start += 1
                        pieces.insert(0, word[start:])
                        word = word[:start]
                    return pieces
                """,
                cause="longest-from-the-right",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    for length in range(len(word), 1, -1):
                        for start in range(len(word) - length + 1):
                            end = start + length
                            if word[start:end] in vocabulary:
                                left = longest_first(word[:start], vocabulary)
                                return left + [word[start:end]] + longest_first(
                                    word[end:], vocabulary
                                )
                    return list(word)
                """,
                cause="longest-of-the-whole-word",
            ),
            swap(
                "return [word[:end], *longest",
                "return [*([word[:end]] if ends else []), *longest",
                cause="unknown-letters-left-out",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    pieces, start = [], 0
                    while start < len(word):
                        ends = [e for e in range(start + 1, len(word) + 1)
                                if word[start:e] in vocabulary]
                        if not ends:
                            break
                        pieces.append(word[start : max(ends)])
                        start = max(ends)
                    return pieces
                """,
                cause="stops-at-unknown-letter",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    pieces, start = [], 0
                    while start < len(word):
                        ends = [e for e in range(start + 1, len(word) + 1)
                                if word[start:e] in vocabulary]
                        end = max(ends, default=len(word))
                        pieces.append(word[start:end])
                        start = end
                    return pieces
                """,
                cause="rest-is-one-piece",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    pieces = []
                    while word:
                        ends = [e for e in range(len(word) + 1) if word[:e] in vocabulary]
                        end = max(ends, default=1)
                        pieces.append(word[:end])
                        word = word[end:]
                    return " ".join(pieces)
                """,
                cause="pieces-as-one-text",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    pieces = []
                    while word:
                        ends = [e for e in range(len(word) + 1) if word[:e] in vocabulary]
                        end = max(ends, default=1)
                        if word[:end] not in pieces:
                            pieces.append(word[:end])
                        word = word[end:]
                    return pieces
                """,
                cause="found-pieces-only-once",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    pieces = []
                    while word:
                        ends = [e for e in range(len(word) + 1) if word[:e] in vocabulary]
                        end = max(ends, default=1)
                        pieces.append(word[:end])
                        word = word[end:]
                    return pieces[:-1]
                """,
                cause="last-piece-forgotten",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    pieces, start = [], 0
                    while start < len(word):
                        end = len(word) - 1
                        while end > start + 1 and word[start:end] not in vocabulary:
                            end -= 1
                        end = max(end, start + 1)
                        pieces.append(word[start:end])
                        start = end
                    return pieces
                """,
                cause="last-letter-never-taken",
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    if len(word) < 2:
                        return ["<unknown>"]
                    pieces, start = [], 0
                    while start < len(word):
                        end = len(word)
                        while end > start + 1 and word[start:end] not in vocabulary:
                            end -= 1
                        pieces.append(word[start:end])
                        start = end
                    return pieces
                """,
                cause="wrong-for-short-word",
            ),
        ],
        right=[
            code(
                """
                def longest_first(word, vocabulary):
                    if not word:
                        return []
                    for end in range(len(word), 0, -1):
                        if end == 1 or word[:end] in vocabulary:
                            return [word[:end], *longest_first(word[end:], vocabulary)]
                """
            ),
            code(
                """
                def longest_first(word, vocabulary):
                    pieces = []
                    while word:
                        fitting = [p for p in vocabulary if word.startswith(p)]
                        pieces.append(max(fitting, key=len, default=word[0]))
                        word = word.removeprefix(pieces[-1])
                    return pieces
                """
            ),
        ],
        equivalent={
            "ends = [end for end in range(1, len(word) + 1) if word[:end] in vocabulary] => "
            "ends = [end for end in range(2, len(word) + 1) if word[:end] in vocabulary]": "a "
            "letter stands alone anyway",
            "ends = [end for end in range(1, len(word) + 1) if word[:end] in vocabulary] => "
            "ends = [end for end in range(0, len(word) + 1) if word[:end] in vocabulary]": "no "
            "piece is empty",
            "ends = [end for end in range(1, len(word) + 1) if word[:end] in vocabulary] => "
            "ends = [end for end in range(1, len(word) + 2) if word[:end] in vocabulary]": "a "
            "slice ends where the word ends",
        },
    ),
    "09.3": Bank(
        wrong=[
            swap(
                "ids += [4 + byte for byte in character.encode()]",
                "ids.append(260 + characters.find(character))",
                cause="place-of-unknown-is-minus-one",
            ),
            swap("    ids = []", "    ids = [1]", cause="special-ids-added"),
            swap(
                "for character in text:",
                "for character in text.lower():",
                cause="capitals-are-lost",
            ),
            swap(
                "for character in text:", "for character in text.strip():", cause="spaces-are-lost"
            ),
            swap(
                "return spelled.decode()",
                "return spelled.decode().strip()",
                cause="spaces-are-lost",
            ),
            swap(
                "ids += [4 + byte for byte in character.encode()]",
                "ids.append(3)",
                cause="unknown-is-3",
            ),
            swap("[4 + byte for byte", "[byte for byte", cause="bytes-not-behind-special"),
            swap("ids.append(260 +", "ids.append(4 +", cause="letters-among-bytes"),
            swap("ids.append(260 +", "ids.append(256 +", cause="letters-from-256"),
            swap("ids.append(260 +", "ids.append(261 +", cause="letters-from-261"),
            swap(
                "ids += [4 + byte for byte in character.encode()]",
                "ids.append(4 + ord(character))",
                cause="numbers-of-letters",
            ),
            swap(
                "ids += [4 + byte for byte in character.encode()]",
                "ids.append([4 + byte for byte in character.encode()])",
                cause="bytes-in-lists",
            ),
            swap("character.encode()]", "character.encode()[:1]]", cause="first-byte-only"),
            swap("character.encode()]", "reversed(character.encode())]", cause="bytes-from-behind"),
            swap("character.encode()]", "character.encode('utf-16-be')]", cause="bytes-of-utf-16"),
            swap("if character in characters:", "if not characters:", cause="everything-in-bytes"),
            swap(
                "ids += [4 + byte for byte in character.encode()]", "pass", cause="unknown-left-out"
            ),
            swap(
                "[4 + byte for byte in character.encode()]",
                "[260 + len(characters) + byte for byte in character.encode()]",
                cause="bytes-behind-letters",
            ),
            code(
                """
                def to_text(ids, characters):
                    return "".join(chr(i - 4) if i < 260 else characters[i - 260] for i in ids)
                """,
                cause="bytes-are-no-letters",
            ),
            code(
                """
                def to_text(ids, characters):
                    return "".join(chr(i) if i < 260 else characters[i - 260] for i in ids)
                """,
                cause="bytes-not-shifted-back",
            ),
            code(
                """
                def to_text(ids, characters):
                    return "".join(
                        bytes([i - 4]).decode(errors="replace") if i < 260 else characters[i - 260]
                        for i in ids
                    )
                """,
                cause="bytes-decoded-alone",
            ),
            code(
                """
                def to_text(ids, characters):
                    return "".join(
                        bytes([i - 4]).decode(errors="ignore") if i < 260 else characters[i - 260]
                        for i in ids
                    )
                """,
                cause="bytes-decoded-alone",
            ),
            code(
                """
                def to_text(ids, characters):
                    return "".join(characters[i - 260] for i in ids if i >= 260)
                """,
                cause="bytes-left-out",
            ),
            code(
                """
                def to_text(ids, characters):
                    known = "".join(characters[i - 260] for i in ids if i >= 260)
                    return known + bytes(i - 4 for i in ids if i < 260).decode()
                """,
                cause="bytes-decoded-last",
            ),
            code(
                """
                def to_text(ids, characters):
                    text, spelled = "", b""
                    for one in ids:
                        if one < 260:
                            spelled += bytes([one - 4])
                        else:
                            text += spelled.decode() + characters[one - 260]
                            spelled = b""
                    return text
                """,
                cause="last-bytes-forgotten",
            ),
            swap(
                "return spelled.decode()", "return list(spelled.decode())", cause="letters-as-list"
            ),
            swap("return spelled.decode()", "return spelled", cause="is-another-kind bytes"),
            code(
                """
                def to_text(ids, characters):
                    return "".join(
                        bytes([i - 4]).decode() if i < 260 else characters[i - 260] for i in ids
                    )
                """,
                cause="bytes-decoded-alone",
            ),
        ],
        right=[
            code(
                """
                def to_ids(text, characters):
                    place = {character: 260 + i for i, character in enumerate(characters)}
                    return [
                        one
                        for character in text
                        for one in (
                            [place[character]]
                            if character in place
                            else [b + 4 for b in bytearray(character, "utf-8")]
                        )
                    ]
                """
            ),
            code(
                """
                def to_text(ids, characters):
                    text, spelled = "", []
                    for one in ids:
                        if one < 260:
                            spelled.append(one - 4)
                        else:
                            text += bytes(spelled).decode() + characters[one - 260]
                            spelled = []
                    return text + bytes(spelled).decode()
                """
            ),
        ],
        equivalent={
            "spelled += bytes([one - 4]) if one < 260 else characters[one - 260].encode() => "
            "spelled += bytes([one - 4]) if one < 259 else characters[one - 260].encode()": "259 "
            "is the byte 255, which UTF-8 never uses",
        },
    ),
    "09.4": Bank(
        wrong=[
            pad_left("row + [0] * (n - len(row))", cause="padding-behind"),
            pad_left("[-1] * (n - len(row)) + row", cause="padding-is-minus-one"),
            pad_left("[3] * (n - len(row)) + row", cause="padding-is-three"),
            pad_left("[0] * (n - len(row)) + row[::-1]", cause="row-turned-round"),
            pad_left("[0] * (n + 1 - len(row)) + row", cause="one-zero-too-many"),
            pad_left("row[-min(map(len, rows)):]", cause="cut-to-the-shortest"),
            pad_left("[0.0] * (n - len(row)) + row", cause="dtype-differs"),
            code(
                "padded = pad_left\npad_left = lambda rows: padded(sorted(rows, key=len))",
                cause="rows-sorted",
            ),
            position_ids(
                "((ids > 3).long().cumsum(dim=1) - 1).clamp(min=0)", cause="small-ids-as-padding"
            ),
            position_ids("real.cumsum(dim=1)", cause="places-from-one"),
            position_ids("real.cumsum(dim=1) - 1", cause="padding-at-minus-one"),
            position_ids("torch.arange(ids.shape[1]).expand_as(ids)", cause="padding-counted-too"),
            position_ids("torch.arange(ids.shape[1]) * real", cause="padding-counted-too"),
            position_ids("(real.cumsum(1) - 1).masked_fill(ids == 0, 1)", cause="padding-at-one"),
            position_ids(
                "(real.flip(1).cumsum(dim=1).flip(1) - 1).clamp(min=0)",
                cause="places-from-behind",
            ),
            position_ids(
                "(real.cumsum(dim=0) - 1).clamp(min=0)", cause="places-counted-across-rows"
            ),
            position_ids("(ids.cumsum(dim=1) - 1).clamp(min=0)", cause="ids-added-up"),
            position_ids("real", cause="only-real-or-not"),
            position_ids(
                "torch.arange(ids.shape[1]) - (ids == 0).sum(dim=1, keepdim=True)",
                cause="places-minus-padding-by-hand",
            ),
            position_ids(
                "((1 - real).cumsum(dim=1) - 1).clamp(min=0)", cause="places-count-the-padding"
            ),
            position_ids("((real.cumsum(dim=1) - 1) * real).float()", cause="dtype-differs"),
            code(
                """
                def position_ids(ids):
                    result = torch.zeros_like(ids)
                    for row in range(len(ids)):
                        first = int((ids[row] == 0).sum())
                        result[row, first:] = torch.arange(ids.shape[1] - first)
                    return result
                """,
                cause="loops-and-may-not",
            ),
        ],
        right=[
            code(
                """
                def pad_left(rows):
                    result = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
                    for filled, row in zip(result, rows):
                        filled[len(filled) - len(row) :] = torch.tensor(row)
                    return result
                """
            ),
            position_ids("(real.cumsum(dim=1) - 1).clamp(min=0)"),
            position_ids(
                "(torch.arange(ids.shape[1]) - (ids == 0).sum(1, keepdim=True)).clamp(min=0)"
            ),
        ],
        equivalent={
            "real = (ids != 0).long() => real = (ids != 0)": "True is added up as 1",
        },
    ),
    "09.5": Bank(
        wrong=[
            code("mean_pooling = buggy_mean", cause="padding-still-counted"),
            code(
                """
                def mean_pooling(tokens, ids):
                    real = (ids > 3)[:, :, None].to(tokens.dtype)
                    return (tokens * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
                """,
                cause="small-ids-as-padding",
            ),
            mean("tokens[range(len(ids)), (ids != 0).sum(dim=1) - 1]", cause="only-the-last-token"),
            mean("(tokens * real).mean(dim=1)", cause="text-divided-by-all-places"),
            mean("tokens.sum(dim=1) / real.sum(dim=1)", cause="padding-summed-too"),
            mean(
                "torch.stack([t[i != 0].median(dim=0).values for t, i in zip(tokens, ids)])",
                cause="text-median-not-mean",
            ),
            mean("(tokens * real).sum(dim=1)", cause="not-divided"),
            mean("(tokens * real).sum(dim=1) / real.sum()", cause="divided-by-the-whole-batch"),
            mean(
                "(tokens * real).sum(dim=1) / real.sum(dim=1).max()", cause="divided-by-the-longest"
            ),
            mean(
                "(tokens * (1 - real)).sum(dim=1) / (1 - real).sum(dim=1).clamp(min=1)",
                cause="mean-of-the-padding",
            ),
            mean(
                "((tokens * real).sum(dim=(0, 1)) / real.sum()).expand(len(tokens), -1)",
                cause="one-mean-for-all",
            ),
            mean(
                "torch.stack([t[: int(r.sum())].mean(0) for t, r in zip(tokens, real)])",
                cause="first-places-taken",
            ),
            mean(
                "tokens.masked_fill(real == 0, -torch.inf).amax(dim=1)",
                cause="text-largest-not-mean",
            ),
            mean("tokens[:, 0]", cause="only-the-first-token"),
            mean("(tokens[:, 0] + tokens[:, -1]) / 2", cause="mean-of-the-ends"),
            mean("(tokens * real).sum(dim=2) / real.sum(dim=2)", cause="shape-differs"),
            mean(
                "(tokens * real).sum(dim=1) / real.sum(dim=1, keepdim=True)", cause="shape-differs"
            ),
        ],
        right=[
            code(
                """
                def mean_pooling(tokens, ids):
                    return torch.stack([t[i != 0].mean(dim=0) for t, i in zip(tokens, ids)])
                """
            ),
            code(
                """
                def mean_pooling(tokens, ids):
                    return tokens.masked_fill((ids == 0)[..., None], torch.nan).nanmean(dim=1)
                """
            ),
            code(
                """
                def mean_pooling(tokens, ids):
                    real = (ids != 0).to(tokens.dtype)
                    weights = real / real.sum(dim=1, keepdim=True)
                    return torch.einsum("bn,bne->be", weights, tokens)
                """
            ),
        ],
        equivalent={
            "real = (ids != 0)[:, :, None].to(tokens.dtype) => "
            "real = ((ids != 0)[:, :, None])": "True multiplies like 1 and is added up as 1",
        },
    ),
    "09.6": Bank(
        wrong=[
            grid(
                "sinusoidal_positions(rows + 1, e // 2)[1:].repeat_interleave(columns, dim=0)",
                "sinusoidal_positions(columns + 1, e // 2)[1:].repeat(rows, 1)",
                cause="grid-begins-at-one",
            ),
            grid(DOWN.replace("// 2)", "// 2).flip(0)"), ACROSS, cause="grid-from-below"),
            grid(
                DOWN,
                "torch.cat([sinusoidal_positions(columns, e // 2).flip([0] * (row % 2)) "
                "for row in range(rows)])",
                cause="every-second-row-turned",
            ),
            grid(DOWN, ACROSS, "torch.cat([across, down], dim=1)", cause="column-before-row"),
            grid(
                "sinusoidal_positions(rows, e // 2).repeat(columns, 1)",
                "sinusoidal_positions(columns, e // 2).repeat_interleave(rows, dim=0)",
                cause="column-by-column",
            ),
            code(
                """
                def grid_codes(rows, columns, e):
                    return sinusoidal_positions(rows * columns, e)
                """,
                cause="codes-of-a-line",
            ),
            grid(
                "sinusoidal_positions(rows, e).repeat_interleave(columns, dim=0)",
                "sinusoidal_positions(columns, e).repeat(rows, 1)",
                "down + across",
                cause="codes-added",
            ),
            grid(
                "sinusoidal_positions(rows, e)[:, : e // 2].repeat_interleave(columns, dim=0)",
                "sinusoidal_positions(columns, e)[:, e // 2 :].repeat(rows, 1)",
                cause="half-of-wide-codes",
            ),
            grid(
                "sinusoidal_positions(rows, e)[:, : e // 2].repeat_interleave(columns, dim=0)",
                "sinusoidal_positions(columns, e)[:, : e // 2].repeat(rows, 1)",
                cause="half-of-wide-codes",
            ),
            grid(
                DOWN,
                ACROSS,
                "torch.stack([down, across], dim=-1).flatten(1)",
                cause="halves-alternate",
            ),
            grid(
                "sinusoidal_positions(rows, e // 2).repeat(columns, 1)",
                ACROSS,
                cause="rows-repeated-like-columns",
            ),
            grid(
                DOWN,
                "sinusoidal_positions(columns, e // 2).repeat_interleave(rows, dim=0)",
                cause="columns-repeated-like-rows",
            ),
            grid(
                DOWN,
                ACROSS,
                "torch.cat([down, across], dim=1).view(rows, columns, e)",
                cause="shape-differs",
            ),
            grid(DOWN, ACROSS, "torch.cat([down, across], dim=0)", cause="shape-differs"),
            grid(
                "sinusoidal_positions(rows, e).repeat_interleave(columns, dim=0)",
                ACROSS,
                "down",
                cause="row-says-all",
            ),
            grid(
                DOWN,
                "sinusoidal_positions(columns, e).repeat(rows, 1)",
                "across",
                cause="column-says-all",
            ),
            code(
                """
                def grid_codes(rows, columns, e):
                    down = sinusoidal_positions(columns, e // 2).repeat_interleave(rows, dim=0)
                    across = sinusoidal_positions(rows, e // 2).repeat(columns, 1)
                    return torch.cat([down, across], dim=1)
                """,
                cause="column-by-column",
            ),
        ],
        right=[
            code(
                """
                def grid_codes(rows, columns, e):
                    n = torch.arange(rows * columns)
                    down = sinusoidal_positions(rows, e // 2)[n // columns]
                    return torch.cat([down, sinusoidal_positions(columns, e // 2)[n % columns]], 1)
                """
            ),
            code(
                """
                def grid_codes(rows, columns, e):
                    codes = torch.zeros(rows, columns, e)
                    codes[:, :, : e // 2] = sinusoidal_positions(rows, e // 2)[:, None]
                    codes[:, :, e // 2 :] = sinusoidal_positions(columns, e // 2)
                    return codes.flatten(0, 1)
                """
            ),
        ],
    ),
    "09.7": Bank(
        wrong=[
            code(
                """
                def shift_matrix(e, steps):
                    codes, n = sinusoidal_positions(20 + abs(steps), e), abs(steps)
                    here, there = (codes[:20], codes[n:]) if steps > 0 else (codes[n:], codes[:20])
                    return torch.linalg.lstsq(here, there).solution
                """,
                cause="matrix-is-fitted",
            ),
            swap("= steps / 10_000", "= abs(steps) / 10_000", cause="steps-without-sign"),
            code(
                """
                right = shift_matrix

                def shift_matrix(e, steps):
                    matrix = torch.eye(e)
                    matrix[:2, :2] = right(e, steps)[:2, :2]
                    return matrix
                """,
                cause="only-the-first-pair",
            ),
            code(
                """
                def shift_matrix(e, steps):
                    angles = (steps / 10_000 ** (torch.arange(0, e, 2) / e)).deg2rad()
                    blocks = [torch.stack([torch.stack([a.cos(), -a.sin()]),
                                           torch.stack([a.sin(), a.cos()])]) for a in angles]
                    return torch.block_diag(*blocks)
                """,
                cause="angles-in-degrees",
            ),
            swap("return matrix.float()", "return matrix.float().T", cause="shifts-back"),
            swap(
                "(torch.arange(0, e, 2, dtype=torch.float64) / e)",
                "(torch.zeros(e // 2, dtype=torch.float64) / e)",
                cause="all-pairs-turn-alike",
            ),
            swap("(torch.arange(0, e, 2,", "(2 * torch.arange(0, e, 2,", cause="speeds-squared"),
            swap(
                "(torch.arange(0, e, 2, dtype=torch.float64) / e)",
                "(torch.arange(e // 2, dtype=torch.float64) / e)",
                cause="speeds-rooted",
            ),
            swap("steps / 10_000", "steps * 10_000", cause="speeds-too-fast"),
            swap(
                "(torch.arange(0, e, 2, dtype=torch.float64) / e)",
                "(torch.arange(0, e, 2, dtype=torch.float64).flip(0) / e)",
                cause="speeds-the-other-way-round",
            ),
            swap("= -angles.sin()", "= angles.sin()", cause="both-sines-positive"),
            swap("angles.sin()", "0 * angles", cause="without-sines"),
            code(
                """
                def shift_matrix(e, steps):
                    angles = steps / 10_000 ** (torch.arange(0, e, 2) / e)
                    cos, sin = torch.diag(angles.cos()), torch.diag(angles.sin())
                    return torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)])
                """,
                cause="for-codes-in-halves",
            ),
            swap("= steps / 10_000", "= 1 / 10_000", cause="always-one-step"),
            swap("= steps / 10_000", "= (steps + 1) / 10_000", cause="one-step-too-many"),
            swap("matrix.float()", "matrix", cause="dtype-differs"),
            code(
                """
                def shift_matrix(e, steps):
                    p = torch.arange(20_100, dtype=torch.float64)[:, None]
                    angles = p / 10_000 ** (torch.arange(0, e, 2) / e)
                    codes = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
                    here, there = codes[50:-50], codes[50 + steps : len(codes) - 50 + steps]
                    return torch.linalg.lstsq(here, there).solution.float()
                """,
                cause="matrix-is-fitted",
            ),
            swap("steps / 10_000", "max(steps, 0) / 10_000", cause="negative-steps-do-nothing"),
            code(
                """
                def shift_matrix(e, steps):
                    return torch.diag(sinusoidal_positions(abs(steps) + 1, e)[-1])
                """,
                cause="codes-not-rotations",
            ),
            code(
                """
                def shift_matrix(e, steps):
                    angles = steps / 10_000 ** (torch.arange(0, e, 2) / e)
                    blocks = [torch.stack([torch.stack([a.cos(), a.sin()]),
                                           torch.stack([a.sin(), -a.cos()])]) for a in angles]
                    return torch.block_diag(*blocks)
                """,
                cause="mirrors-instead",
            ),
            code(
                """
                def shift_matrix(e, steps):
                    angles = steps / 10_000 ** (torch.arange(0, e, 2) / e)
                    blocks = [torch.stack([torch.stack([a.sin(), -a.cos()]),
                                           torch.stack([a.cos(), a.sin()])]) for a in angles]
                    return torch.block_diag(*blocks)
                """,
                cause="sine-and-cosine-exchanged",
            ),
            code(
                """
                def shift_matrix(e, steps):
                    angles = min(steps, 20) / 10_000 ** (torch.arange(0, e, 2).double() / e)
                    blocks = [torch.stack([torch.stack([a.cos(), -a.sin()]),
                                           torch.stack([a.sin(), a.cos()])]) for a in angles]
                    return torch.block_diag(*blocks).float()
                """,
                cause="shift-wrong-for-steps",
            ),
        ],
        right=[
            code(
                """
                def shift_matrix(e, steps):
                    angles = steps / 10_000 ** (torch.arange(0, e, 2) / e)
                    blocks = [torch.stack([torch.stack([a.cos(), -a.sin()]),
                                           torch.stack([a.sin(), a.cos()])]) for a in angles]
                    return torch.block_diag(*blocks)
                """
            ),
            code(
                """
                def shift_matrix(e, steps):
                    code = sinusoidal_positions(abs(steps) + 1, e)[-1]
                    sin, cos = code[0::2], code[1::2]
                    sin = sin if steps >= 0 else -sin
                    matrix = torch.diag(cos.repeat_interleave(2))
                    between = torch.stack([sin, torch.zeros_like(sin)], 1).flatten()[:-1]
                    return matrix + torch.diag(between, -1) - torch.diag(between, 1)
                """
            ),
        ],
        equivalent={
            "angles = steps / 10_000 ** (torch.arange(0, e, 2, dtype=torch.float64) / e) => "
            "angles = steps / 10001 ** (torch.arange(0, e, 2, dtype=torch.float64) / e)": "less "
            "than single precision can tell",
            "angles = steps / 10_000 ** (torch.arange(0, e, 2, dtype=torch.float64) / e) => "
            "angles = steps / 9999 ** (torch.arange(0, e, 2, dtype=torch.float64) / e)": "less "
            "than single precision can tell",
        },
    ),
}
