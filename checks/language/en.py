"""Every sentence that a check says, in English, by the id of its message.

A parameter stands in braces; what follows its colon is a form (below) or Python's own format:
`{shape:shape}` is (2, 3), `{names:and}` joins a list, `{count:axis|axes}` counts. A sentence that
tells a cause ends "the values are not: ...". Sentences end without a full stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _and(parts: list[Any]) -> str:
    said = [str(part) for part in parts]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def _an(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


FORMS: dict[str, Callable[[Any], str]] = {
    "shape": lambda sizes: str(tuple(sizes)),
    "shapes": lambda shapes: f"[{', '.join(str(tuple(shape)) for shape in shapes)}]",
    "and": _and,
    "numbers": lambda numbers: _and([f"{number:.3g}" for number in numbers]),
    "list": lambda parts: ", ".join(map(str, parts)),
    "plus": " + ".join,
    "quoted": lambda parts: ", ".join(map(repr, parts)),
    "repr": repr,
    "an": _an,
}

# --------------------------------------------------------------------------------- the verdict

VERDICT = {
    "state-right": "right",
    "state-not-right": "not right",
    "state-not-yet": "not yet",
    "state-not-run": "not run",
    "state-open": "open",
    "progress": "Chapter {chapter}: {done} of {checked} right",
    "prose": "{text}",
    "in-answer": "{answer}: {what}",
    "because": "{what}: {cause}",
    "tried-with": "Tried with {inputs:and}",
    "see-chapter": "Chapter {chapter}",
    "write-and-run": "Write your code, run its cell, run this cell",
    "still-empty": "the answer is still empty",
    "function-still-empty": "{name} is still empty",
    "stub-left": "put your code in the place of pass in {name}",
    "unforeseen": "the check cannot use this answer: it {what}",
}

# ---------------------------------------------------------------------------- what is compared

RESULTS = {
    "the-result": "the result",
    "part": "part {number} of {of}",
    "of-part": "{name}: {what}",
    "nothing": "None",
    "kind": "{name:an}",
    "input-tensor": "{name} {shape:shape}",
    "input-tensors": "{name} {shapes:shapes}",
    "input-module": "{kind:an} as {name}",
    "input-function": "the function {name}",
    "input-value": "{name}={value}",
    "is-no-tuple": "{name} is {got}, {want} results in a tuple are asked for",
    "has-parts": "{name} has {got:part|parts}, {want} are asked for",
    "is-another-kind": "{name} is {got}, {want} is asked for",
    "is-no-tensor": "{name} is {got}, a tensor of shape {shape:shape} is asked for",
    "is-sparse": "{name} is a nested or sparse tensor, an ordinary one is asked for",
    "result-is": "{name} is {got:.6g}",
    "shape-differs": "{name} has shape {got:shape}, asked for is {want:shape}",
    "dtype-differs": "shape {shape:shape} is right, the dtype is not: {got} instead of {want}",
    "device-differs": "shape {shape:shape} is right, but it lies on another device",
    "holds-nan": "shape {shape:shape} is right, but it holds NaN",
    "values-differ": "shape {shape:shape} is right, the values are not",
}

# ----------------------------------------------------------------------- functions and classes

ANSWERS = {
    "raises": "raises {error}: {words}",
    "raises-only": "raises {error}",
    "raises-in-place": "raises {error}: a tensor was written into after a step that needs its old "
    "numbers for the gradient. Make a new tensor instead",
    "it-raises": "it {what}",
    "returns-none": "{name} returns None: end it with return and the result",
    "function-is-asked": "the answer is {got}, a function is asked for",
    "class-is-asked": "the answer is {got}, a class that extends nn.Module is asked for",
    "list-was-changed": "the values are right, but {name} is shorter or longer afterwards: pop, "
    "append and the like change the list of whoever calls",
    "changed-in-place": "the values are right, but {name} was changed in place: make a new tensor "
    "instead of writing into {name}",
    "not-at-size-one": "it is right, but not where axes have size 1 ({found}): some step drops "
    "such axes, as squeeze does",
    "no-gradient-through-numpy": "the values are right, but no gradient passes through numpy: stay "
    "with torch",
    "gradient-raises": "the values are right, but its gradient {what}",
    "no-gradient": "the values are right, but no gradient reaches {name}: detach, data, item, "
    "torch.tensor, nn.Parameter and no_grad cut the graph",
    "gradient-differs": "the values are right, the gradient of {name} is not",
    "calls-shortcut": "the values are right, but it calls {name}, which does the exercise for you: "
    "{instead}",
    "calls-the-reference": "the values are right, but it calls the function that the check "
    "compares with: write the steps yourself",
    "loops-and-may-not": "the values are right, but it loops: the larger the input, the more steps "
    "it takes. Let one operation do a whole axis",
    "loop-is-missing": "the values are right, but nothing loops: a large input takes no more steps "
    "than a small one. Here the loop is asked for, one piece after the other",
    "write-softmax-with-exp": "write the softmax with exp and sum",
    "write-attention-steps": "write its steps yourself: scores, softmax, mix",
    "write-with-view-and-transpose": "write it with view and transpose",
    "write-loops-and-products": "write the loops and the products yourself",
    "results-agree": "results agree on {trials} random sizes, the input stays as it was",
    "values-agree": "shapes and values agree on {trials} random sizes, the input stays as it was",
    "values-and-gradients-agree": "shapes, values and gradients agree on {trials} random sizes, "
    "the input stays as it was",
    "modules-agree": "parameters, shapes, values and gradients agree for {trials} random sizes",
    "right-but": "the values are right, but {what}",
    "building-raises": "{name}({arguments:list}) {what}",
    "parameter-frozen": "the values are right, but {name} has requires_grad=False: nothing trains "
    "it",
    "parameters-are-one": "{one} and {other} are one and the same: the two share one weight, give "
    "each its own",
    "parameter-missing": "{kind} has no {name}: keep the names that the card gives, and assign "
    "each layer to self; it has {has:list}",
    "part-differs": "{kind} has no {name}: {part} is there, but built otherwise than the card "
    "says; it has {has:list}",
    "parameter-in-list": "{kind} has no {name}: {part} is {got:an} of Python, whose layers the "
    "module does not know; nn.ModuleList holds layers",
    "too-few-layers": "{kind} has no {name}: {part} holds {got:layer|layers} only",
    "parameter-without-self": "{kind} has no {name}: __init__ has a variable {part}, and it is "
    "gone when __init__ ends; write self.{part}",
    "bias-missing": "{kind} has no {name}: {part} was built without a bias",
    "has-no-parameters": "{kind} has no {name}, and no parameters at all: a layer belongs to the "
    "module when it is assigned to self",
    "parameter-too-many": "{kind} has {name}, which no step of the exercise needs",
    "no-parameter": "{name} is a tensor, but not a parameter, so nothing trains it: nn.Parameter "
    "must stand around all of it, a factor included",
}

# ------------------------------------------------------------------------- causes in any chapter

CAUSES = {
    "returns-argument": "it returns {name} as it came",
    "same-for-every-input": "it gives the same for every input",
    "changes-nothing": "the numbers in {name} change nothing in the result",
    "six-digits-only": "they agree to about six digits only: some step runs in single precision "
    "(torch.float32), or a small number was added somewhere",
    "clinic-found": "it {words} ({ids:plus} in the clinic). {fix}",
}

# ------------------------------------------------------------------ shapes, numbers and choices

GUESSES = {
    "no-shape": "a shape is a tuple of whole numbers such as (2, 3), got {got}",
    "is-the-shape": "{shape:shape} is the shape that the code gives",
    "not-the-shape": "{got:shape} is not the shape",
    "number-of-axes": "it needs {want:axis|axes}, {axes:list}, and not {got}",
    "sizes-in-another-order": "these are the right sizes in another order; the axes are "
    "{axes:list}",
    "laid-out-otherwise": "there are as many numbers, but laid out otherwise; the axes are "
    "{axes:list}",
    "look-at-axes": "look at {wrong:list}; the axes are {axes:list}",
    "number-is-asked": "{name} is a number, got {got}",
    "number-agrees": "{name} is within {margin:g} of {want:g}",
    "number-differs": "{got:.6g} is not {name}",
    "not-a-number": "it is not a number",
    "too-large": "it is too large",
    "uniform-for-normal": "torch.rand draws numbers between 0 and 1; with torch.randn in its place "
    "the result is right",
    "same-for-all-sizes": "{side}, and the same for all sizes",
    "too-few-samples": "it is right on average, but scatters by chance (three runs give "
    "{runs:numbers}): draw more numbers, or repeat and take the mean",
    "too-small": "it is too small",
    "no-choice": "the answer must be one of {choices:quoted}, got {got}",
    "not-this-choice": "{got:repr} is not it",
    "right-choice": "{got:repr}, because {because}",
    "measure-is-no-number": "{call} is {got}, a number is asked for",
    "measure-differs": "{call} is {got:.3g}, {name} is {want:.3g} within {within:.0%}",
    "nothing-measured": "{call} is the right number, but nothing was measured with torch: draw "
    "random numbers (torch.randn) and compute it from them",
    "measures-agree": "{name} is within {within:.0%} of the expected in all {cases} experiments",
}

# ------------------------------------------------------------------------------------ chapter 00

CHAPTER_00 = {
    "gives-all-three-shapes": "the code gives all three shapes",
    "sheet-goes-along-rows": "the pictures follow each other along the rows of the sheet, and "
    "should go down its columns: in the batch, the last letter in parentheses runs fastest",
    "sheet-pictures-run-fastest": "inside (H down) and (W across) the pictures run fastest, so "
    "their rows and columns are shuffled into each other",
    "sheet-rows-shuffled": "the rows of the pictures below each other are shuffled into each "
    "other: (H down) should be (down H)",
    "sheet-columns-shuffled": "the columns of the pictures beside each other are shuffled into "
    "each other: (W across) should be (across W)",
    "only-cut-anew": "the numbers were only cut anew as they lie in memory, as view and reshape "
    "do; the axes must move",
    "apart-rows-shuffled": "the rows of all pictures are shuffled into each other: (H b) should "
    "be (b H)",
    "apart-columns-shuffled": "the columns of the channels are shuffled into each other: (W c) "
    "should be (c W)",
    "apart-both-shuffled": "rows and columns of both are shuffled into each other: the whole "
    "picture must come before the next one, (b H) and (c W)",
    "write-pattern-or-steps": "write the pattern, or the steps of view and permute",
    "fold-channel-fastest": "the channel runs fastest, (ph pw c): channel, row, column is (c ph "
    "pw)",
    "fold-row-and-column-exchanged": "row and column in the block are exchanged: the column must "
    "run fastest",
    "fold-takes-distant-pixels": "(ph gh) takes one pixel of every block to make a picture of its "
    "own; a block is neighbouring pixels, (gh ph)",
    "fold-channel-fastest-distant": "the channel runs fastest, and (ph gh) takes pixels from far "
    "apart",
    "normalised-columns": "the first columns are normalised, the channels are not: the last axis "
    "of (b, c, H, W) is the width",
    "normalised-rows": "the first rows are normalised, the channels are not: axis 2 of (b, c, H, "
    "W) is the height",
    "normalised-pictures": "the first pictures are normalised, the channels are not: axis 0 of "
    "(b, c, H, W) is the batch",
    "std-missing": "the mean is subtracted, the division by std is missing",
    "mean-missing": "the division by std is there, the mean is not subtracted",
    "std-multiplied": "it is multiplied by std, not divided",
    "mean-added": "the mean is added, not subtracted",
    "divides-before-subtracting": "it divides first and subtracts then: (images - mean) / std",
    "mean-and-std-exchanged": "mean and std are exchanged",
    "only-first-picture": "only the first picture is normalised",
    "divided-by-variance": "it is divided by the square of std",
    "mean-of-first-channel": "all channels get the mean of the first",
    "mean-and-std-of-first-channel": "all channels get the mean and std of the first",
    "own-mean-and-std": "the pictures' own mean and std are taken, not the given ones",
    "mean-over-channels": "it is the mean over the channels, not the sum",
    "last-product-only": "each new channel holds its last product only: add to it, do not write "
    "over it",
    "sum-without-table": "every new channel is the sum of the old ones, without the table",
    "first-pictures-table": "every picture is mixed with the first picture's table",
    "last-pictures-table": "every picture is mixed with the last picture's table",
    "sum-of-all-tables": "every picture is mixed with the sum of all tables: the b of the tables "
    "must be the b of the pictures",
    "mean-of-all-tables": "every picture is mixed with the mean of all tables",
    "tables-cut-anew": "the tables were turned with view or reshape; that cuts them elsewhere",
    "sum-not-mean": "it is the sum, not the mean",
    "grid-for-block": "side is taken for the number of blocks, as gh=side says; it is the size of "
    "a block, ph=side",
    "two-results": "{one}; {other}",
    "differences-cancel": "the differences cancel each other: square each of them, then take the "
    "mean",
    "size-not-square": "it is the mean size of the difference, not of its square",
    "root-of-mean-square": "it is the root of the mean square",
    "enlarged-by-tiling": "the blocks are enlarged by tiling: (ph gh) should be (gh ph)",
    "blocks-hold-largest": "the blocks hold their largest number, not their mean",
    "blocks-hold-sum": "the blocks hold their sum, not their mean",
    "square-of-shrunk": "it is the mean square of the shrunk pictures, not of the difference",
    "times-shuffled-lose": "how many times more the shuffled photographs lose",
    "shuffled-keep-neighbours": "the shuffled photographs lose as much as the photographs: their "
    "numbers still have the old neighbours",
    "quotient-upside-down": "divide the other way round: shuffled by photographs",
    "loss-of-shuffled": "this is what the shuffled photographs lose; divide it by what the "
    "photographs lose",
    "difference-not-quotient": "this is a difference; how many times more is a quotient",
    "loss-of-photographs": "this is what the photographs lose; how many times more do the "
    "shuffled ones?",
    "stayed-in-photograph-and-channel": "the numbers stayed in their photograph and in their "
    "channel; they may go anywhere",
    "stayed-in-photograph": "the numbers stayed in their photograph; they may go to any photograph",
    "stayed-in-channel": "the numbers stayed in their channel, as when the three colours of a "
    "pixel move together; every number goes by itself",
    "blocks-of-two": "these are blocks of 2 x 2",
    "blocks-of-eight": "these are blocks of 8 x 8",
    "blocks-of-sixteen": "these are blocks of 16 x 16",
}

# ------------------------------------------------------------------------------------ chapter 01

CHAPTER_01 = {
    "make-patches-yourself": "make the patches yourself",
    "write-pattern-yourself": "write the pattern yourself",
    "patches-are-strips": "the picture is viewed as rows of numbers: strips of the picture, not "
    "patches",
    "channels-before-grid": "the channels come before the grid, so a patch holds one channel of "
    "different places",
    "columns-behind-channels": "gw stands behind the channels, so a patch holds parts of its "
    "neighbours",
    "patches-by-column": "the patches are numbered column by column, (gw gh), not row by row",
    "patch-channels-last": "a patch is laid out with the channels last, (ph pw c), not (c ph pw)",
    "patch-by-column": "a patch is laid out column by column, (c pw ph), not row by row",
    "patch-pw-ph-c": "a patch is laid out as (pw ph c), not as (c ph pw)",
    "patch-ph-c-pw": "a patch is laid out as (ph c pw), not as (c ph pw)",
    "patches-of-distant-pixels": "the patches are taken from the places with the same remainder: "
    "in (gh ph), the letter of the grid comes first",
    "ph-and-pw-exchanged": "ph and pw are exchanged",
    "unfold-viewed": "F.unfold returns (b, p, n): the last two axes must be swapped, not viewed",
    "cut-one-slice-each": "cut one slice for each place of the grid",
    "maps-viewed-as-tokens": "the maps (b, e, gh, gw) of the convolution are viewed as (b, n, e): "
    "e must move to the end",
    "projection-bias-missing": "the bias is missing",
    "tokens-by-column": "the tokens are numbered column by column, (gw gh), not row by row",
    "weight-split-channels-last": "the rows of the weight are split as (ph pw c), not as (c ph pw)",
    "weight-split-by-column": "the rows of the weight are split as (c pw ph), not as (c ph pw)",
    "weight-way-back": "this is the way back, from (c ph pw) to (ph pw c)",
    "weight-read-pw-ph-c": "the rows are read as (pw ph c), and they came as (ph pw c)",
    "weight-out-c-pw-ph": "the rows go out as (c pw ph), and should as (c ph pw)",
    "weight-out-pw-ph-c": "the rows go out as (pw ph c), and should as (c ph pw)",
    "weight-out-ph-c-pw": "the rows go out as (ph c pw), and should as (c ph pw)",
    "conv-cuts-and-projects": "F.conv2d cuts and projects in one step",
    "convolution-missing": "the values are right, but there is no convolution: give the weight "
    "the shape (e, c, ph, pw) and call F.conv2d",
    "positions-missing": "the positions are missing",
    "class-token-at-end": "the class token stands at the end, not in front",
    "class-token-without-position": "the class token gets no position: put it in front first, "
    "then add the positions",
    "positions-of-neighbours": "the class token gets no position, and each patch the one of its "
    "neighbour",
    "positions-shifted": "each token gets the position of its neighbour: the rows of the positions "
    "are shifted by one",
    "and-weights-fit": "{compared}; the weights of others fit",
    "starts-with-deviation": "{name} starts with standard deviation {got:.2g}, asked for is {want}",
    "with-cut": "with {cut}, {what}",
    "tables-agree": "the tables of {cuts} cuts agree, and {found}",
    "positions-twice": "the positions are added twice",
    "positions-multiplied": "the positions are multiplied, not added",
    "write-embedding-steps": "write its four steps yourself",
    "cut-right": "a right cut",
    "cut-of-exercise-three": "the cut of exercise 3",
    "cut-strips": "strips of the picture",
    "cut-by-columns": "a cut numbered by columns",
    "cut-last-picture": "a cut that knows the last picture only",
    "cut-with-signs": "a cut that gives every second number a minus",
    "always-own-patch": "each square changes its own patch, whatever the cut does: cut the "
    "painted pictures with cut",
    "influence-transposed": "rows and columns are exchanged: a row is one painted square",
    "influence-inverted": "it is False where a patch changes and True where not",
    "painted-without-fresh-copy": "the squares are painted one after the other into the same "
    "tensor: start each from a fresh copy, images.clone()",
    "paint-taken-away": "the paint is taken away again, which leaves rounded numbers: start each "
    "square from a fresh copy",
    "squares-by-column": "the squares are numbered column by column, not row by row",
    "paints-first-channel": "only channel 0 is painted: paint the square in all channels",
    "asks-all-numbers": "a patch is marked only when all of its numbers change: ask any, not all",
    "asks-all-pictures": "a patch is marked when it changes in any picture, not only in all or in "
    "the first",
    "paints-white": "painting a square with 1 changes no square that is white already: add 1 to it",
    "paints-black": "painting a square with 0 changes no square that is black already: add 1 to it",
    "no-patch-changes": "no patch ever changes: is the painted copy the one that is cut?",
    "mean-patches-that-change": "the mean number of patches that change",
    "reach-of-right-cut": "this is what one square changes in a right cut",
    "reach-as-share": "this is the share of all patches, not their number",
    "reach-of-all-marks": "this is the number of all marks, not that of one row",
    "reach-number-of-patches": "this is the number of patches",
    "reach-other-channels": "sick takes one channel of three neighbours; where are the other "
    "channels?",
}

# ------------------------------------------------------------------------------------ chapter 02

CHAPTER_02 = {
    "numbers-q-proj-learns": "how many numbers q_proj learns",
    "learned-without-biases": "the biases are missing, one for each number of a query",
    "learned-biases-of-token": "there is one bias for each number of the query, not of the token",
    "learned-widths-added": "these are the two widths added; each of the 12 numbers has a row of "
    "10 weights",
    "heads-share-rows": "the heads share the 12 rows, they have none of their own",
    "tokens-share-weights": "the number of tokens does not matter: all share the same weights",
    "gives-shapes-and-number": "the code gives all three shapes and the number",
    "heads-cut-by-memory": "the numbers were cut as they lie in memory, and tokens and heads "
    "never changed places: reshape or view cannot move an axis, transpose can",
    "heads-take-every-hth": "a head takes every h-th number of a token, as (d h) does; it must "
    "take neighbours, (h d): the heads' axis comes before d when the width is split",
    "heads-shuffled-at-join": "the heads are shuffled into each other, as in (d h); each head's "
    "numbers must stay together, (h d)",
    "head-biases-missing": "the biases are missing",
    "head-biases-subtracted": "the biases are subtracted",
    "table-of-head-zero": "every head has the table of head 0",
    "table-and-biases-of-head-zero": "every head has the table and the biases of head 0",
    "biases-of-head-zero": "every head has the biases of head 0",
    "sum-of-head-tables": "every head has the sum of all tables: h must stand in the tables and "
    "in the result",
    "sum-of-head-biases": "every head has the sum of all biases",
    "biases-added-each-time": "the biases are added once for each number of a token: add them "
    "after the sum over e",
    "mean-over-token": "the sum over e is a mean",
    "heads-reshaped-to-front": "the heads are right, but reshape brought them in front; that cuts "
    "them elsewhere, name the axes instead",
    "heads-reversed": "the heads come in reverse order",
    "wide-read-head-by-head": "the rows are read head by head, (h three d); here all queries come "
    "first, (three h d)",
    "wide-read-in-turns": "q, k and v take turns in every row, (h d three); here all queries come "
    "first, (three h d)",
    "wide-every-hth": "a head takes every h-th number, (three d h); it must take neighbours, "
    "(three h d)",
    "wide-heads-by-memory": "the heads of all three are cut as they lie in memory: view or "
    "reshape alone moves no axis",
    "wide-parts-by-memory": "the three are cut as they lie in memory: view or reshape cannot "
    "bring `three` to the front",
    "wide-queries-keys-exchanged": "queries and keys are exchanged",
    "wide-keys-values-exchanged": "keys and values are exchanged",
    "wide-reversed": "the three come in reverse order",
    "wide-keys-as-values": "the keys are given out as values, too",
    "wide-all-queries": "all three are the queries",
    "order-ours-to-theirs": "this is the way from our order to theirs",
    "order-every-hth": "all is in another order than asked for, (three d h): the numbers of a "
    "head must stay neighbours, (three h d)",
    "order-read-in-turns": "the rows are taken as (h d three): of each head, q, k and v take "
    "turns; theirs are (h three d)",
    "order-read-dh-three": "the rows are taken as (d h three); theirs are (h three d)",
    "and-weights-find-places": "{compared}, and weights from elsewhere find their places",
    "and-gain-fits": "{measured}, and the gain brings it to 1",
    "variance-of-queries": "the variance of such queries",
    "variance-of-own-table": "this is what a table (e, e) of its own gives; all tables must be "
    "filled at once, as one",
    "deviation-not-variance": "this is the standard deviation, not its square",
    "variance-of-weights": "this is the variance of the weights, not of the queries",
    "linear-fills-otherwise": "nn.Linear fills its table in another way: use "
    "nn.init.xavier_uniform_",
    "gain-for-variance-one": "the gain for a variance of 1",
    "gain-root-missing": "a gain multiplies the variance by its square, so a root is missing",
    "gain-root-of-tables": "this is the square root of the number of tables: measure again with 3 "
    "tables, the variance is 1/2",
    "gain-upside-down": "it is upside down: the variance must grow",
    "gain-is-variance": "this is the variance without a gain",
    "gain-for-three-tables": "this is right for 3 tables only",
    "gain-is-number-of-tables": "this is the number of tables",
}

# ------------------------------------------------------------------------------------ chapter 03

CHAPTER_03 = {
    "gives-both-shapes": "the code gives both shapes",
    "softmax-over-queries": "the softmax runs over the queries (columns sum to 1)",
    "softmax-over-heads": "the softmax runs over the heads",
    "softmax-over-batch": "the softmax runs over the batch",
    "softmax-over-queries-and-keys": "the softmax runs over all queries and keys at once",
    "softmax-over-everything": "the softmax runs over the whole tensor at once",
    "softmax-without-division": "exp is there, the division by the sum of the row is not",
    "softmax-without-exp": "the numbers are divided by their sum without exp",
    "softmax-logarithm": "it is the logarithm of the softmax",
    "scores-not-divided": "the scores are not divided by the square root of d",
    "scores-divided-by-d": "the scores are divided by d, not by its square root",
    "scores-multiplied": "the scores are multiplied by the square root of d",
    "scores-divided-by-queries": "the scores are divided by the square root of the number of "
    "queries, not of d",
    "scores-divided-by-keys": "the scores are divided by the square root of the number of keys, "
    "not of d",
    "scores-divided-by-token-width": "the scores are divided by the square root of h * d, the "
    "width of a token",
    "scores-transposed": "queries and keys are exchanged: i comes first, then j",
    "keys-viewed": "the keys were turned with view or reshape, which cuts them elsewhere: "
    "transpose",
    "scores-of-all-heads": "each query meets the keys of all heads: the h of the keys must be the "
    "h of the queries",
    "scores-are-weights": "these are the weights: the softmax comes later",
    "weights-divided": "the weights are divided by the square root of d, not the scores: rows do "
    "not sum to 1",
    "no-softmax": "there is no softmax",
    "scores-divided-by-value-width": "the scores are divided by the square root of the width of a "
    "value, not of a key",
    "scores-returned": "the mix is right, but the scores are returned instead of the weights",
    "softmax-over-axis-one": "the softmax runs over dim=1, which is the keys for some shapes only; "
    "the keys are the last axis, dim=-1",
    "softmax-over-axis-zero": "the softmax runs over dim=0; the keys are the last axis, dim=-1",
    "scores-divided-by-heads": "the scores are divided by the square root of the number of heads, "
    "not of d",
    "scores-divided-by-axis": "the scores are divided by the square root of the size of an axis "
    "counted from the front, as len(q) and q.shape[1] are; d is the last, q.shape[-1]",
    "scores-divided-by-a-fixed-number": "the scores are divided by a fixed number; d is the width "
    "of these queries, q.shape[-1]",
    "weights-divided-too": "the scores are divided by the square root of d, and then the weights, "
    "too: rows do not sum to 1",
    "mix-divided": "the mix is divided by the square root of d, not the scores",
    "not-for-large-scores": "right for small scores, but not for the row {row:shape}",
    "softmax-less-nothing": "exp leaves the range of the computer there, so subtract the largest "
    "score of each row before exp",
    "softmax-less-mean": "the mean of the row is subtracted, and a score far above it still leaves "
    "the range of exp: subtract the largest score of each row",
    "softmax-less-total": "the largest score of all rows is subtracted, and a row far below it "
    "vanishes: subtract from each row its own largest score",
    "softmax-subtract-largest": "subtract the largest score of each row before exp, then no exp is "
    "above 1",
    "and-large-rows-survive": "{compared}, and rows of 1000 and -1000 survive",
    "and-divisor-fits": "{measured}, and the divisor brings it to 1",
    "variance-of-scores": "the variance of such scores",
    "spreads-not-used": "the spreads are not used",
    "keys-without-spread": "the keys are not multiplied by their spread",
    "queries-without-spread": "the queries are not multiplied by their spread",
    "products-not-summed": "it is d times too small: the products of a query and a key are not "
    "summed over d, or their sum is divided already",
    "products-averaged": "the products are averaged over d, not summed",
    "spread-for-variance": "the spread is taken for the variance",
    "divisor-needed": "the divisor that is needed",
    "divisor-without-spreads": "the spreads are missing: longer keys make larger scores",
    "divisor-is-variance": "this is the variance; dividing by c divides it by c squared",
    "divisor-root-of-spreads": "the spreads stand under the root once, and their squares should",
    "divisor-spreads-squared": "the spreads are squared, and should not be",
    "divisor-spreads-added": "the spreads are added, not multiplied",
    "divisor-upside-down": "it is upside down: the scores are divided by it",
    "divisor-width-without-root": "the width needs its square root",
}

# ------------------------------------------------------------------------------------ chapter 04

CHAPTER_04: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 05

CHAPTER_05: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 06

CHAPTER_06: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 07

CHAPTER_07: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 08

CHAPTER_08: dict[str, str] = {}


def _joined(*parts: dict[str, str]) -> dict[str, str]:
    """Join the parts; an id stands in one of them only."""
    sentences: dict[str, str] = {}
    for part in parts:
        if twice := sorted(sentences.keys() & part):
            raise ValueError(f"en: an id has one sentence, got {twice[0]} twice. Rename one.")
        sentences |= part
    return sentences


SENTENCES = _joined(
    VERDICT,
    RESULTS,
    ANSWERS,
    CAUSES,
    GUESSES,
    CHAPTER_00,
    CHAPTER_01,
    CHAPTER_02,
    CHAPTER_03,
    CHAPTER_04,
    CHAPTER_05,
    CHAPTER_06,
    CHAPTER_07,
    CHAPTER_08,
)
