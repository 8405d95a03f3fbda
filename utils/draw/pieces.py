"""Text cut into pieces, one box for each."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

BOX = "display: inline-block; border: 1px solid; border-radius: 3px; padding: 0 2px; margin: 1px 0"


def show_pieces(lines: Mapping[str, Sequence[str]]) -> None:
    """Show how texts are cut: one line for each, a box for each piece, their number at the end.

    It is text and no picture, so every script of the world is shown by the fonts of the page.

    >>> show_pieces({"two merges": ["▁c", "old"]})

    Args:
        lines: what a line is called -> its pieces.

    Raises:
        ValueError: no lines, or pieces that are no texts (ids, or a text that is not cut).
    """
    cut = [pieces for pieces in lines.values() if not isinstance(pieces, str)]
    if not lines or len(cut) < len(lines) or not all(isinstance(p, str) for c in cut for p in c):
        raise ValueError(
            "show_pieces: lines must be lists of texts by their names, "
            f"got lines={dict(lines)}. Take encode(text, out_type=str), or text.split()."
        )
    rows = "\n".join(
        f'<tr><th scope="row" style="text-align: left; white-space: nowrap">{html.escape(name)}'
        '</th><td style="text-align: left">'
        + "".join(f'<span style="{BOX}">{html.escape(piece)}</span>' for piece in pieces)
        + f'</td><td style="text-align: right">{len(pieces)}</td></tr>'
        for name, pieces in lines.items()
    )
    wide = max(map(len, lines))
    plain = [f"{name:{wide}}  {'|'.join(ps)}  ({len(ps)})" for name, ps in lines.items()]
    from IPython.display import display

    display(
        {
            "text/html": f"<table>\n<tbody>\n{rows}\n</tbody></table>",
            "text/plain": "\n".join(plain),
        },
        raw=True,
    )
