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
    "gives-all-three-shapes": "the code gives all three shapes",
    "state-right": "right",
    "state-not-right": "not right",
    "state-not-yet": "not yet",
    "state-not-run": "not run",
    "state-open": "open",
    "progress": "Chapter {chapter}: {done} of {checked} right",
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
    "is-no-sequence": "{name} is {got}, expected {kind:an} of {want:result|results}",
    "right-in-container": "{name} is {got} that holds the correct result. Return the result "
    "itself: a comma after it makes a tuple",
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
    "list-was-changed": "the values are right, but {name} was changed: pop, append, sort and "
    "assignments to its items change the caller's list. Work on a copy",
    "changes-its-input": "it changes {name} in place. Make a new one and leave {name} as it is",
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
    "write-its-three-steps": "write its three steps yourself",
    "returns-x-as-it-came": "it returns x as it came",
    "scores-multiplied": "the scores are multiplied by the square root of d",
    "scores-not-divided": "the scores are not divided by the square root of d",
    "softmax-over-queries": "the softmax runs over the queries (columns sum to 1)",
    "returns-argument": "it returns {name} as it came",
    "same-for-every-input": "it gives the same for every input",
    "changes-nothing": "the numbers in {name} change nothing in the result",
    "six-digits-only": "they agree to about six digits only: some step runs in single precision "
    "(torch.float32), or a small number was added somewhere",
    "part-of-graph-cut": "{name} on the way cuts the graph, so that a part of the gradient is "
    "missing",
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
    "softmax-over-heads": "the softmax runs over the heads",
    "softmax-over-batch": "the softmax runs over the batch",
    "softmax-over-queries-and-keys": "the softmax runs over all queries and keys at once",
    "softmax-over-everything": "the softmax runs over the whole tensor at once",
    "softmax-without-division": "exp is there, the division by the sum of the row is not",
    "softmax-without-exp": "the numbers are divided by their sum without exp",
    "softmax-logarithm": "it is the logarithm of the softmax",
    "scores-divided-by-d": "the scores are divided by d, not by its square root",
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

CHAPTER_04 = {
    "joined-as-in-memory": "the heads were joined as they lie in memory, so that tokens are "
    "mixed: bring the heads beside d before you join them",
    "samples-swap-heads": "samples get each other's heads: b must come first when the heads are "
    "joined",
    "joined-interleaved": "the numbers of the heads are shuffled into each other, (d h): first "
    "all of head 0, then all of head 1, is (h d)",
    "heads-not-joined": "what the heads say is not joined yet: (b, h, i, d) must become (b, i, (h "
    "d))",
    "joined-heads-reversed": "the heads stand in the opposite order",
    "always-head-zero": "every head says what head 0 says: the number of the head is not used",
    "weights-of-head-zero": "every head uses the weights of head 0",
    "values-of-head-zero": "every head mixes the values of head 0",
    "mean-of-weights": "all heads use the mean of the heads' weights",
    "one-table-for-all-heads": "there is one table of weights for all heads, because the sum runs "
    "over h, too. Each head needs scores of its own",
    "joined-before-attending": "the heads are joined before they attend, so there is one head "
    "over the whole width. Let each head attend, then join",
    "loops-over-samples": "the loop runs over the samples, axis 0; the heads are axis 1",
    "scaled-by-token-width": "the scores are divided by the square root of h * d; a head's "
    "products run over d numbers",
    "keys-are-mixed": "the keys are mixed: the values come third, attention(q, k, v)",
    "keys-and-values-exchanged": "keys and values are exchanged: the values come third, "
    "attention(q, k, v)",
    "queries-and-keys-exchanged": "queries and keys are exchanged: q_proj makes the queries, and "
    "the order is attention(q, k, v)",
    "queries-and-values-exchanged": "queries and values are exchanged: q_proj makes the queries, "
    "and the order is attention(q, k, v)",
    "roles-in-a-circle": "keys ask, values answer and queries are mixed: the order is "
    "attention(q, k, v)",
    "roles-in-the-other-circle": "values ask, queries answer and keys are mixed: the order is "
    "attention(q, k, v)",
    "values-are-asked": "queries are compared with the values: the order is attention(q, k, v)",
    "every-hth-number": "a head takes every h-th number of a token, as (d h) does; it must take "
    "neighbours, (h d), or weights that come from elsewhere do not fit",
    "split-interleaved-join-not": "the split takes every h-th number, (d h), and the join puts "
    "neighbours together, (h d)",
    "heads-attend-inside-tokens": "the split gives (b, n, h, d), so the heads of one token attend "
    "to each other: tokens must stand beside d, b h n d",
    "heads-split-behind-tokens": "the split gives (b, n, h, d), so the heads of one token attend "
    "to each other, and the join takes tokens for heads: split into b h n d",
    "join-reads-heads-as-tokens": "the join reads (b, h, i, d) as if the heads came behind the "
    "tokens: the pattern begins b h i d",
    "adds-x": "it adds x to the result: the residual belongs into the block, this layer returns "
    "only what the attention gathered",
    "num-heads-taken-for-d": "num_heads is taken for d, the width of a head",
    "scaled-twice": "the scores are divided twice: the attention function divides by the square "
    "root of d already",
    "made-by-wrong-layer": "the {made} are made by {by}: {right} is there for them",
    "not-projected": "the {made} are not projected: {right} is not used",
    "always-so-many-heads": "it always has {count:head|heads}, whatever num_heads says",
    "context-not-used": "right without context; with it, context is not used: keys and values "
    "come from context",
    "queries-from-context": "right without context; with it, the queries come from context, too: "
    "x asks",
    "x-and-context-exchanged": "right without context; with it, x and context are exchanged: x "
    "asks, context answers",
    "keys-from-x": "right without context; with it, the keys still come from x",
    "values-from-x": "right without context; with it, the values still come from x",
    "write-layer-steps": "write its steps yourself: project, split, attend, join, project",
    "still-scaled-by-token-width": "the scores are divided by the square root of e, the width of "
    "a whole token: the products run over one head",
    "not-scaled": "the scores are not divided by anything",
    "scaled-by-number-of-heads": "the scores are divided by the square root of the number of heads",
    "scaled-by-number-of-tokens": "the scores are divided by the square root of a number of tokens",
    "scaled-without-root": "the scores are divided by d without its square root",
    "token-width-without-root": "the scores are divided by e, the width of a whole token, without "
    "a square root",
    "scaled-by-root-over-heads": "the scores are divided by the square root of d / h, which is "
    "the root of e divided by h: a head is d wide, divide by the root of d",
    "weights-are-scaled": "the weights are divided, behind the softmax, so that rows do not sum "
    "to 1: divide the scores",
    "weights-are-scaled-by-token-width": "the weights are divided by the square root of e, behind "
    "the softmax, so that rows do not sum to 1: divide the scores, by the square root of d",
    "softmax-is-missing": "there is no softmax: the scores themselves mix the values",
    "only-one-head": "there is only one head: split before the scores",
    "new-layer-is-asked": "{name} gives {got} back, the new MultiHeadAttention is asked for",
    "old-columns-of-out": "out_proj still reads the heads in their old order: its columns must "
    "move with them",
    "only-out-has-moved": "only the columns of out_proj have moved, the heads that write have not",
    "rows-of-out-moved": "out_proj reads the heads with its columns, not with its rows",
    "rows-of-out-moved-too": "the rows of out_proj moved, too: they are what it writes, and no "
    "head owns them",
    "bias-of-out-moved": "the bias of out_proj moved, and it belongs to no head",
    "rows-and-bias-of-out-moved": "out_proj was treated like the other three, rows and bias: it "
    "reads the heads with its columns, and its bias belongs to no head",
    "rows-and-bias-of-out-moved-too": "the rows and the bias of out_proj moved, too: they are "
    "what it writes, and no head owns them",
    "biases-stand-still": "the biases of q_proj, k_proj and v_proj belong to the heads and must "
    "move with them",
    "parts-stand-still": "{names:and} did not move: queries, keys and values all belong to the "
    "heads",
    "parts-and-out-stand-still": "{names:and} did not move, and neither did the columns of "
    "out_proj, which reads the heads: queries, keys, values and these columns belong to the heads",
    "columns-of-projections-moved": "the columns of q_proj, k_proj and v_proj moved: a head is "
    "written by their rows",
    "rows-are-every-hth": "a head has neighbouring rows, (h d), not every h-th one",
    "columns-move-opposite": "the columns of out_proj move the opposite way",
    "one-row-for-a-head": "one row was moved for each head, and a head has d of them",
    "heads-overwritten": "heads are read from the layer that is being written, where some are "
    "overwritten already: read from the old one",
    "heads-in-another-order": "the result is the same, but the heads do not stand in the order "
    "asked for",
    "no-head-moved": "no head has moved",
    "order-the-other-way": "head order[h] of the new layer is head h of the old one, and it is to "
    "be the other way round",
    "heads-stand-elsewhere": "the result is the same for random layers and orders, and every head "
    "stands elsewhere",
    "changed-the-given-layer": "the values are right, but {name} changed the one that it was "
    "given: change a copy, deepcopy(...)",
    "nobody-is-silent": "nobody is silent",
    "others-are-silent": "these heads speak, and all others are silent",
    "first-of-list-is-silent": "only the first head of the list is silent",
    "last-of-list-is-silent": "only the last head of the list is silent",
    "all-between-are-silent": "all heads from the smallest to the largest of the list are silent: "
    "those between were not named",
    "rows-of-out-silenced": "the rows of out_proj are what it writes; what it reads from a head "
    "are columns",
    "rows-and-bias-of-out-silenced": "the rows and the bias of out_proj are what it writes; what "
    "it reads from a head are columns",
    "columns-are-neighbours": "a head has neighbouring columns of out_proj, not every h-th one",
    "bias-of-out-must-stay": "the bias of out_proj belongs to no head and must stay",
    "values-keep-their-bias": "the values still have their bias: a silent head has only 0 to mix",
    "all-keep-their-bias": "the biases of the projections are still there, and the values are "
    "made of them: a silent head has only 0 to mix",
    "columns-of-values-silenced": "the columns of v_proj are what it reads from a token; a head "
    "is written by rows",
    "one-column-for-a-head": "a head has d columns of out_proj, not one",
    "columns-begin-at-head": "the columns of a head begin at head * d, not at head",
    "d-is-not-num-heads": "d is the width of a head, embed_dim // num_heads; num_heads was taken "
    "for it",
    "silenced-where-it-looks": "zeros in q_proj or k_proj do not silence a head: it looks "
    "elsewhere and goes on mixing values",
    "silenced-weight-of-queries": "zeros in the weight of q_proj do not silence a head: it looks "
    "elsewhere and goes on mixing values",
    "one-head-still-speaks": "head {head} still speaks; silence all four",
    "counts-misread": "it counts what is read wrongly",
    "counts-lost": "it counts what is lost; how many are still read is asked for",
    "other-layer-is-silent": "the heads of the other layer are silent",
    "always-layer-zero": "the heads of layer 0 are silent, whatever layer is asked for",
    "always-layer-one": "the heads of layer 1 are silent, whatever layer is asked for",
    "share-instead-of-number": "it is a share of the digits, and their number is asked for",
    "silent-in-the-next-call": "still_read: heads that were silent in one call are silent in the "
    "next one, too: load the model anew in every call, load_digits_model()",
    "four-numbers-are-asked": "lost_alone is a list of four numbers, one for each head, got {got}",
    "not-the-lost-digits": "{got} are not the digits lost without each head of layer 0",
    "still-read-not-lost": "so many are still read, and the lost ones are asked for",
    "read-before-was-less": "the model reads 356 of 360 before, and only what it read can be lost",
    "after-minus-before": "lost is before minus after, not after minus before",
    "heads-of-layer-one": "these are the heads of layer 1",
    "shares-of-digits": "they are shares, and the numbers of digits are asked for",
    "nothing-is-lost": "nothing is lost, as if no head were silent",
    "look-at-heads": "the number is another one for head {heads:and}: count again, with still_read",
    "lost-without-all-heads": "the number of digits lost without all four heads",
    "sum-of-the-four": "this is the sum of the four; silence them all at once",
    "heads-lose": "the four heads lose {alone} digits when each is silent alone, and {together} "
    "together: while one is silent, the others do part of its work",
    "named-function-is-asked": "{name} is {got}, a function is asked for",
}

# ------------------------------------------------------------------------------------ chapter 05

CHAPTER_05 = {
    "layer-with-normalised-inputs": "layer that normalises its inputs",
    "layer-with-unit-inputs": "layer that gives its inputs the length 1",
    "layer-with-normalised-outputs": "layer that normalises its outputs",
    "layer-with-a-faint-leak": "causal layer with one faint look ahead",
    "layers-with-windows": "pair of layers with windows",
    "layer-of-causal-attention": "causal attention",
    "window-too-wide": "it is one too wide: the token itself is one of the width keys",
    "window-too-narrow": "it is one too narrow",
    "window-looks-ahead": "it looks ahead, not back: rows are queries, columns are keys",
    "window-both-ways": "it looks ahead as well as back",
    "window-without-itself": "a token does not see itself",
    "window-begins-one-before": "a token does not see itself, and the window begins one before it",
    "window-is-causal": "it is the causal mask: far tokens must be blocked",
    "window-future-open": "the future is open: only far tokens of the past are blocked",
    "past-and-so-many-ahead": "it opens all of the past, and the width - 1 tokens ahead: the "
    "window lies behind the query",
    "everything-open": "everything is open: both rules must hold, & and not |",
    "window-upside-down": "it is upside down, True means may attend",
    "outside-of-window": "it allows what lies outside of the window in the past",
    "window-always-so-wide": "the window is {width} wide, whatever width says",
    "window-at-the-edge": "right for other sizes, but not window_mask({n}, {width}): with width 1 "
    "a token sees itself, with width n or more all the past",
    "loops-over-positions": "the values are right, but it loops: compare whole tables of "
    "positions instead",
    "mask-still-upside-down": "the mask is still upside down: True must mean may attend",
    "only-padding-mended": "the padding is right, the future is still open and the past blocked",
    "only-past-mended": "the past is right, but the real keys are blocked and the padding is open",
    "or-instead-of-and": "a key is open if one of the two rules allows it, and both must: & and "
    "not |",
    "real-or-future": "a key is open if it is real or in the future",
    "padding-or-past": "a key is open if it is padding or in the past",
    "padding-in-the-future": "only padding in the future is open",
    "sees-itself-and-later": "a query sees the tokens after it and not those before it",
    "token-without-itself": "a token does not see itself: the diagonal belongs to the past",
    "sees-one-ahead": "a token sees the one after it",
    "padded-queries-blocked": "queries in the padding are blocked, and padding blocks keys only, "
    "whoever asks",
    "padded-rows-blocked-too": "the rows of the padding are blocked, too: padding blocks keys, "
    "whoever asks",
    "only-causal": "the padding is open: the mask is only causal",
    "only-padding": "the future is open: the mask only knows the padding",
    "mask-not-used": "there is no mask at all",
    "mask-as-ones-and-zeros": "the mask is added as ones and zeros, for only a bool mask blocks",
    "padded-values-zero": "the values of the padding are 0, but its keys still get weight, which "
    "the real ones lack: mask the scores",
    "not-on-every-backend": "the values are right on this machine, but another implementation of "
    "PyTorch's refuses the call: attn_mask and is_causal=True exclude each other. Join both rules "
    "in one mask, with &",
    "padding-over-queries": "the padding is laid over the queries: whole rows are blocked, and "
    "real tokens hear from the padding",
    "mask-upside-down": "it is upside down: True must mean may attend",
    "real-blocked-padding-open": "the real tokens are blocked and the padding is open",
    "ones-are-counted": "it counts the ones and takes as many tokens from the front, but padding "
    "may stand anywhere",
    "axis-of-heads-missing": "the axis of the heads is missing, and b would be read as heads",
    "rows-with-a-key": "these are the rows that have a key",
    "rows-with-a-blocked-key": "these are the rows in which some key is blocked; empty means that "
    "all are",
    "rows-all-open": "these are the rows in which every key is open",
    "rows-with-one-key": "these are the rows with exactly one key; an empty one has none",
    "keys-nobody-sees": "these are the keys that nobody sees: the keys are the last axis, and "
    "rows run along it",
    "keepdim-left-an-axis": "the last axis must go: keepdim leaves it there",
    "first-key-alone": "it looks at the first key alone",
    "last-key-alone": "it looks at the last key alone",
    "one-answer-for-all": "it asks whether the whole mask is empty; ask each row, with dim=-1",
    "mask-turned-round": "it is the mask turned round; ask of each row whether any key is open",
    "masked-score-is-zero": "a masked score becomes 0, and a score of 0 is a score like any "
    "other, -inf is none",
    "masked-after-softmax": "the weights are masked after they were divided by their sum, so the "
    "rows no longer sum to 1",
    "weights-upside-down": "the mask is upside down: it blocks where it is True",
    "weights-upside-down-no-nan": "the mask is upside down, it blocks where it is True",
    "weights-without-mask": "there is no mask",
    "sum-over-queries": "the powers are divided by their sum over the queries; the keys of a row "
    "are the last axis",
    "sum-over-everything": "the powers are divided by the sum of all of them; each row has its own",
    "scores-plus-ones": "the mask is added as ones and zeros, which only favours the allowed keys "
    "a little",
    "masked-score-is-infinite": "a masked score becomes plus infinity, and minus infinity is "
    "needed",
    "weights-not-divided": "the powers are not divided by the sum of their row",
    "powers-alone": "these are the powers of the scores; divide them by the sum of their row",
    "no-exp": "there is no exp: the scores themselves are divided by their sum",
    "no-exp-and-no-sum": "there is no exp and no sum",
    "scores-only-masked": "the scores are masked, exp and sum are missing",
    "powers-of-two": "these are powers of 2, and a softmax has powers of e: exp",
    "weights-sum-to-nothing": "these are the logarithms of the weights",
    "and-masked-again": "{what}; to set the masked weights to 0 afterwards does not mend it",
    "weights-hold-all-four": "values and gradients agree on 4 random sizes, empty rows are 0 with "
    "a finite gradient, scores of 1000 and float16 do no harm",
    "wrong-for-this-row": "right for ordinary scores, but not for a row with the scores {row:and} "
    "and a masked one of {masked:g}",
    "nothing-is-subtracted": "exp of a large score is infinite, and of a very small one 0: "
    "subtract the largest allowed score of the row first",
    "powers-times-mask": "exp of a large score is infinite, and infinity times 0 is no number: "
    "mask before exp, and subtract the largest allowed score",
    "wrong-beside-larger-scores": "right for each row alone, but a row of small scores goes wrong "
    "beside one of large scores",
    "largest-of-all-rows": "the largest score of all rows is subtracted, and exp of what lies far "
    "below it is 0: each row has a largest score of its own",
    "largest-of-all-keys": "the largest score of the row is sought among the masked ones, too; "
    "take the largest allowed one",
    "largest-of-masked-as-zero": "a masked score counts as 0 when the largest is sought, and 0 "
    "may be larger than all others; it must count as -inf",
    "mean-is-subtracted": "the mean of the row is subtracted, and exp of what lies far above it "
    "is infinite: subtract the largest allowed score",
    "mean-of-allowed-is-subtracted": "the mean of the allowed scores is subtracted, and exp of "
    "what lies far above it is infinite: subtract the largest of them",
    "fill-too-small": "what replaces a masked score is larger than the allowed ones here: only "
    "-inf is smaller than every score",
    "wrong-with-empty-rows": "right as long as every row has a key, but with empty rows: {what}",
    "empty-row-is-nan": "an empty row becomes NaN, as 0 / 0 and -inf - -inf are; its weights must "
    "be 0",
    "empty-row-has-weights": "an empty row gets weights on masked keys, because its largest score "
    "is the one that was filled in; set the weights of such a row to 0",
    "other-rows-changed": "the empty rows are 0, but other rows changed",
    "no-gradient-with-empty-rows": "the weights are right, empty rows included, but with an empty "
    "row no gradient reaches the scores",
    "gradient-nan-with-empty-rows": "the weights are right, empty rows included, but their "
    "gradient is NaN: a 0 was put over a NaN, and going back 0 times NaN is NaN again. Replace "
    "the masked scores with masked_fill instead of adding to them, or leave the scores of an "
    "empty row as they are",
    "wrong-for-half-precision": "right for float64 and float32, not for float16: {what}. The "
    "largest float16 is 65504; -inf fits into every dtype",
    "table-transposed": "rows and columns are exchanged: row i is the output, column j the token "
    "that changes",
    "table-upside-down": "it is upside down: True where the output depends on the token",
    "diagonal-missing": "an output that depends on its own token counts, too: the diagonal",
    "all-tokens-changed": "all tokens were changed at once; change token j alone to see who "
    "depends on it",
    "changed-from-here-on": "token j and all behind it were changed; change token j alone",
    "changes-pile-up": "the changes pile up: put token j back before you change the next",
    "same-number-added": "the same number was added to all of the token, and a layer that "
    "normalises does not see that; change it at random",
    "token-only-scaled": "the token was only multiplied by a number, and a layer that normalises "
    "does not see that; change it at random",
    "outputs-summed": "the numbers of an output, or their changes, were added up with their "
    "signs; where a layer normalises they always sum to 0",
    "gradients-summed": "the gradients were added up with their signs, and where a layer "
    "normalises they sum to 0",
    "squares-and-gradients-summed": "the gradients of a token's numbers were added up with their "
    "signs, and where a layer normalises they sum to 0; take the largest of their absolute values",
    "first-number-of-output": "it looks at the first number of each output alone",
    "last-number-of-output": "it looks at the last number of each output alone",
    "first-number-of-token": "only the first number of each token was changed, and this layer "
    "reads others",
    "last-number-of-token": "only the last number of each token was changed, and this layer reads "
    "others",
    "all-numbers-must-move": "an output counts only if all of its numbers moved; one is enough",
    "faint-is-missed": "a faint dependence is missed: what is not exactly 0 counts (allow 1e-6 "
    "for rounding)",
    "layer-normalises-inputs": "this layer normalises its tokens: one that grows everywhere by "
    "the same number or by the same factor is the same to it",
    "layer-normalises-outputs": "this layer normalises its outputs: the numbers of each sum to 0 "
    "but for rounding, and the gradient of that sum is as useless",
    "layer-leaks-faintly": "one output looks ahead, with a weight of 1e-4",
    "layer-never-called": "nothing was measured: it never calls the layer",
    "sign-matters": "an output that falls counts as well as one that grows: take the absolute "
    "value",
    "width-counts-itself": "a layer with the window width looks width - 1 tokens back, for the "
    "token itself is one of the keys",
    "width-counts-itself-in-each-layer": "the token itself is one of the keys of every layer, not "
    "of the last one alone: each layer looks width - 1 tokens back",
    "one-layer-alone": "that is one layer alone; the next one gathers from what the first has "
    "gathered",
    "two-layers-alone": "that is a stack of two, whatever num_layers says",
    "counts-the-token-itself": "this counts the token itself",
    "steps-multiplied": "steps of several layers add up, they do not multiply",
    "widths-multiplied": "steps of several layers add up, they do not multiply, and one layer "
    "looks width - 1 tokens back",
    "one-layer-less": "one layer less was counted than there are",
    "one-step-a-layer": "each layer adds width - 1 tokens, not one, and the token itself is one "
    "of the keys",
    "one-step-a-layer-more": "each further layer adds width - 1 tokens, not one",
    "finds-every-dependence": "your test finds every dependence of five kinds of layers, one of "
    "1e-4 included, and num_layers windows reach as far back as you say",
}

# ------------------------------------------------------------------------------------ chapter 06

CHAPTER_06 = {
    "bend-missing": "the bend is missing, so two Linears are one",
    "bends-with": "it bends with {name}, GELU is asked for",
    "gelu-with-tanh": "this is the GELU that only comes close, with tanh: leave approximate out",
    "softmax-for-a-bend": "it normalises the inner values with a softmax, GELU is asked for",
    "bends-after-fc2": "it bends after fc2, the bend belongs between fc1 and fc2",
    "bends-after-fc2-too": "it bends once more after fc2",
    "bends-before-fc1": "it bends before fc1, the bend belongs between fc1 and fc2",
    "feed-forward-adds-x": "it adds x: the residual belongs into the block, not in here",
    "last-piece-missing": "the tokens behind the last whole piece are missing: the last piece may "
    "be shorter",
    "only-first-piece": "only the first piece comes back: all pieces x[:, i : i + k] are needed, "
    "joined behind the loop",
    "only-last-piece": "only the last piece comes back: collect the pieces, and join all",
    "only-last-piece-of-as-many": "only the last piece comes back, and chunk(k) makes k pieces, "
    "not pieces of k tokens",
    "pieces-reversed": "the pieces are joined in the opposite order",
    "pieces-joined-as-samples": "the pieces are joined along the batch, dim=0; tokens are dim=1",
    "too-wide": "the values are right, but with tokens_at_once={tokens} a tensor of {largest} "
    "numbers is made on the way, and no more than {allowed} are needed",
    "all-tokens-at-once": "all tokens go through at once",
    "as-many-pieces": "tokens_at_once is taken for the number of pieces, as chunk does; it is "
    "their size, as in split",
    "cut-along-batch": "the cut runs along the batch, dim=0; tokens are dim=1",
    "never-wider": "values and gradients agree for 3 random sizes, and never more than "
    "tokens_at_once tokens of a sequence are wide at once",
    "linear-was-changed": "the convolution is right, but the {name} of the Linear was changed",
    "a-linear": "a Linear from {e} to {m}",
    "conv-result": "the result of the convolution",
    "conv-is-asked": "as_convolution returns {got}, an nn.Conv1d is asked for",
    "conv-has-no": "the convolution has no {name}, and the Linear has one",
    "conv-shape-differs": "the {name} of the convolution has shape {got:shape}, asked for is "
    "{want:shape}: outputs, inputs, a window one token wide",
    "conv-cannot-learn": "the {name} of the convolution cannot learn: keep it an nn.Parameter",
    "window-axis-missing": "the axis of the window is missing, weight[:, :, None] adds it",
    "inputs-and-outputs-exchanged": "inputs and outputs are exchanged: nn.Conv1d(inputs, outputs, "
    "1), and its weight has the outputs first",
    "window-is-wider": "the window is wider than one token: kernel_size=1",
    "not-those-of-linear": "its {names:and} is not taken over from the Linear",
    "numbers-are-shared": "the values are right, but convolution and Linear share their numbers: "
    "training the one changes the other. Copy them, with clone or load_state_dict",
    "tokens-that-change": "the number of tokens that change",
    "one-wide-changes-one": "that is so for windows one wide; a window of three sees a neighbour "
    "on each side",
    "both-sides-and-itself": "count to both sides, and token 9 itself",
    "after-one-convolution": "that is after one convolution; the second carries it one token "
    "further",
    "and-itself": "count token 9 itself, too",
    "windows-overlap": "two windows of three overlap in the middle",
    "three-to-each-side": "a window of three reaches one token to each side, two of them two",
    "windows-follow": "two windows of three, one after the other, reach two tokens to each side",
    "only-attention-reaches-all": "only attention reaches every token",
    "convolution-right": "values, copies and the number of tokens agree; with windows wider than "
    "1 tokens mix",
    "write-norm-steps": "write its steps yourself",
    "divides-by-e-minus-one": "the variance divides by e - 1, and by e it should: correction=0",
    "eps-outside-root": "eps is added outside the root, it belongs under it",
    "e-minus-one-and-eps-outside": "the variance divides by e - 1, and eps is added outside the "
    "root",
    "eps-missing": "eps is missing",
    "eps-squared": "eps is squared, and added as it is it should be",
    "eps-fixed": "eps is 1e-5, whatever was given",
    "divides-by-variance": "it divides by the variance, not by its root",
    "spread-under-root": "the standard deviation stands under the root, and it is a root already: "
    "take the variance",
    "spread-under-root-minus-one": "the standard deviation stands under the root, and it is a "
    "root already: take the variance, with correction=0",
    "squares-of-x": "the variance is the mean of the squares of x - mean, not of x",
    "squares-summed": "the squares are summed; the variance is their mean",
    "sizes-for-squares": "the mean of the absolute values stands where the mean of the squares "
    "belongs",
    "norms-over-tokens": "it normalises over the tokens; the numbers of one token lie along the "
    "last axis",
    "norms-over-tokens-and-numbers": "it normalises over tokens and numbers together, not each "
    "token by itself",
    "norms-over-batch": "it normalises over the batch, not each token by itself",
    "norms-over-everything": "it normalises over the whole tensor at once, not each token by "
    "itself",
    "mean-of-everything": "the mean of the whole tensor is subtracted, each token has its own",
    "mean-of-everything-in-both": "the mean of the whole tensor is subtracted, in the variance "
    "too; each token has its own",
    "mean-not-subtracted": "the mean is not subtracted",
    "spread-not-divided": "the mean is subtracted, the spread not divided by",
    "rms-with-bias": "this is the RMSNorm with a bias: subtract the mean",
    "weight-and-bias-not-used": "weight and bias are not used",
    "weight-not-used": "the weight is not used",
    "bias-not-used": "the bias is not used",
    "bias-before-weight": "the bias is added before the weight multiplies",
    "bias-subtracted": "the bias is subtracted",
    "weight-and-bias-exchanged": "weight and bias are exchanged",
    "rms-subtracts-mean": "the mean is subtracted, as LayerNorm does",
    "rms-of-spread": "it divides by the spread around the mean; take the squares of x itself",
    "rms-of-sum": "the squares are summed, their mean is asked for",
    "rms-of-length": "it divides by the length of the token, the root of the sum of its squares; "
    "the root of their mean is asked for, with eps under it",
    "square-of-mean": "it squares the mean, and the mean of the squares is asked for",
    "rms-without-root": "it divides by the mean of the squares, not by its root",
    "mean-size": "it divides by the mean size of the numbers, not by the root of their mean square",
    "eps-is-added-to-result": "eps is added behind the division, it belongs under the root",
    "divides-by-weight": "it divides by the weight, and multiplies it should",
    "multiplies-by-root": "it multiplies by the root, and divides it should",
    "wrong-for-equal-numbers": "right for random tokens; for a token whose numbers are all "
    "{number:g}, {what}",
    "root-of-zero": "the values are right, but for a token whose numbers are all {number:g} the "
    "gradient is NaN: the root of 0 has no slope. Take one root only, after eps is added",
    "both-norms-agree": "both norms agree on 6 random sizes each, gradients too; tokens of equal "
    "numbers survive",
    "block-is-sick": "this is Sick: the second sum adds to norm2(x), not to the stream as it came",
    "both-sums-from-norm": "now both sums add to a normalised x, not to the stream as it came",
    "first-sum-from-norm": "the first sum adds to norm1(x), not to the stream as it came",
    "feed-forward-not-normed": "the feed-forward reads the stream without a norm",
    "attention-not-normed": "the attention reads the stream without a norm",
    "feed-forward-reads-norm1": "the feed-forward reads norm1, norm2 is meant for it",
    "feed-forward-not-added": "the feed-forward is not added to the stream, it replaces it",
    "attention-not-added": "the attention is not added to the stream, it replaces it",
    "block-is-post-norm": "this is post-norm: the sums are normalised",
    "second-sum-normalised": "the second sum is normalised, as in post-norm",
    "normalised-at-the-end": "the end of the block is normalised as well: in pre-norm the stream "
    "leaves as it is",
    "feed-forward-reads-start": "the feed-forward reads the stream as it was before attention "
    "added to it",
    "added-to-the-start": "what attention added is lost: the second sum adds to the stream from "
    "before",
    "attention-lost": "the feed-forward reads what attention returns instead of the stream, and "
    "what attention added is lost",
    "feeds-on-attention-alone": "the feed-forward reads what attention returns, and not the "
    "stream that it was added to",
    "feed-forward-runs-first": "the feed-forward runs before the attention, it belongs after it",
    "norm-behind-the-part": "the norm stands behind the part: it belongs before it, on what the "
    "part reads",
    "norm-before-and-behind": "each norm is used twice, before its part and behind it: it belongs "
    "before it",
    "norms-changed-places": "norm1 and norm2 have changed places",
    "no-norm-at-all": "there is no norm at all",
    "stream-added-twice": "the stream is added twice in the second half",
    "norm-added-as-well": "norm1(x) is added as well: only what attention returns is added to x",
    "norms-added-as-well": "norm1(x) and norm2(x) are added as well: only what a part returns is "
    "added to the stream",
    "write-order-of-parts": "write the order of its parts yourself",
    "spread-of-stream": "the spread of such a stream",
    "nothing-normalised": "nothing is normalised before the matrix",
    "sum-normalised": "the sum is normalised, as in post-norm",
    "sum-of-normed-normalised": "the sum is normalised as well",
    "stream-replaced": "nothing is added, each layer replaces the stream",
    "stream-replaced-unnormed": "nothing is added and nothing normalised",
    "normalised-stream-added": "the normalised stream is added, not the stream as it came",
    "normalised-stream-and-raw-matrix": "the norm stands on what is added to, not on what is "
    "multiplied: x + norm(x) @ matrix",
    "one-matrix-for-all": "all layers have the same matrix, each needs its own",
    "matrix-not-divided": "the matrix is not divided by the root of 256",
    "matrix-divided-by-256": "the matrix is divided by 256, not by its root",
    "root-of-gain": "the root is taken of the gain, too: it belongs to 256 alone",
    "square-of-gain": "the gain is squared: the numbers of the matrix have the standard deviation "
    "gain / root of 256",
    "tokens-between-0-and-1": "the tokens are uniform between 0 and 1, as torch.rand draws them: "
    "mean 0 and variance 1 is torch.randn",
    "matrix-between-0-and-1": "the numbers of the matrix are uniform between 0 and 1, as "
    "torch.rand draws them: torch.randn has mean 0",
    "gain-without-effect": "the gain has no effect: it is not used, or what is added is "
    "normalised, too",
    "variance-not-spread": "this is the variance, the spread is its root",
    "mean-not-spread": "this is the mean of the numbers, their spread is asked for",
    "one-layer-too-many": "it ran one layer too many",
    "one-layer-too-few": "it ran one layer too few",
    "growth-draws": "growth draws random numbers: a formula of depth and gain is asked for",
    "gain-needs-square": "the gain needs its square: variances add up, spreads do not",
    "spreads-added": "the spreads are added; variances add up, spreads do not",
    "spreads-added-by-root": "the spread of what is added is right, but it is added to the 1 of "
    "the start: variances add up, spreads do not",
    "start-missing": "the stream starts with variance 1, which is missing",
    "start-times-gain": "the variance 1 of the start is multiplied by the gain, too: only what "
    "the layers add has it",
    "growth-without-norm": "that would be so without the norm, when each layer multiplies the "
    "variance",
    "variance-without-norm": "that would be the variance without the norm, when each layer "
    "multiplies it",
    "spreads-multiplied": "the spreads are multiplied; variances add up",
    "depth-without-effect": "the depth has no effect: every layer adds the same variance",
    "depth-for-the-start": "the depth belongs to what the layers add, gain squared each, not to "
    "the start",
    "depth-squared": "the depth is squared, too: one layer adds the square of the gain, depth of "
    "them add depth times as much",
    "and-formula-agrees": "{what}, and the formula agrees",
}

# ------------------------------------------------------------------------------------ chapter 07

CHAPTER_07 = {
    "model-in-training": "model in training mode",
    "linear-biases-missing": "the biases of the Linears are missing",
    "all-biases-missing": "the biases of the Linears and of the norms are missing",
    "norm-bias-missing": "a norm has a bias as well as a weight",
    "last-norm-missing": "the norm after the last block is missing",
    "last-norm-twice": "after the last block there is one norm, not two",
    "one-norm-a-block": "a block has two norms, not one",
    "four-widths-missing": "each block lacks 4 times embed_dim: the biases of its attention, or "
    "its two norms",
    "block-norms-once": "the two norms of a block are counted once for all blocks; each has its "
    "own",
    "feed-biases-missing": "the biases of the feed-forward are missing",
    "fc1-bias-missing": "the bias of the first Linear of the feed-forward is missing, mlp_dim "
    "numbers",
    "fc2-bias-missing": "the bias of the second Linear of the feed-forward is missing, embed_dim "
    "numbers",
    "fc2-bias-is-m": "the second Linear of the feed-forward writes embed_dim numbers, and its "
    "bias has as many, not mlp_dim",
    "fc1-bias-is-e": "the first Linear of the feed-forward writes mlp_dim numbers, and its bias "
    "has as many, not embed_dim",
    "fc2-missing": "the feed-forward has two Linears, one widens and one narrows",
    "feed-is-square": "the second Linear of the feed-forward reads mlp_dim numbers, not embed_dim",
    "all-norms-missing": "the two norms of each block and the last one are missing",
    "three-projections": "the attention has four Linears: query, key, value, output",
    "one-bias-for-the-attention": "each of the four Linears of the attention has a bias; one was "
    "counted",
    "three-biases-for-the-attention": "each of the four Linears of the attention has a bias; "
    "three were counted",
    "one-block": "it counts one block, not all of them",
    "number-of-the-chapter": "it is the number of the chapter's encoder, whatever the sizes",
    "last-norm-in-each-block": "the last norm stands once after all blocks, not in each of them",
    "linears-for-each-head": "the heads have no Linears of their own: they share those of width e",
    "three-linears-for-each-head": "the heads have no Linears of their own: the query, key and "
    "value Linear of all heads together is e x e",
    "biases-for-each-head": "a bias was counted for every head; the four Linears have one each, "
    "for all heads together",
    "projections-to-one-head": "the four Linears are e x e; what they write holds all heads, h * "
    "d = e numbers, not those of one head",
    "three-projections-to-one-head": "the query, key and value Linears are e x e; what they write "
    "holds all heads, h * d = e numbers, not those of one head",
    "count-by-arithmetic": "build nothing, and count by arithmetic",
    "mask-not-handed-on": "the mask is not handed on to the attention",
    "mask-is-inverted": "the mask is inverted: True means may attend, in the attention too",
    "feed-forward-first": "the feed-forward runs first, and the attention should",
    "norm1-in-both-halves": "norm1 stands in both halves, norm2 belongs to the feed-forward",
    "order-instead": 'these are the steps of order="{wrong}", and here it is "{right}"',
    "post-norm-instead": "this is post-norm, norm(x + part(x)), which none of the three orders is",
    "no-norm-before-the-parts": "the parts stand side by side, but read the stream without their "
    "norms",
    "norm-before-and-behind-second": "norm2 is used twice, before the feed-forward and behind it: "
    "in this order it stands behind it",
    "out-beside": "the feed-forward reads the stream as it came into the block; in this order it "
    "reads what the attention left",
    "stream-not-added": "what the parts return is not added to the stream",
    "one-part-inside-the-other": "the feed-forward reads what the attention returns, instead of "
    "the stream",
    "sums-from-norm": "both sums add to a normalised x, not to the stream as it came",
    "norms-add-eps": "the norms add another eps, {eps:g}: nn.LayerNorm as it is has 1e-05",
    "write-block-lines": "write its lines yourself, with norm1, attn, norm2 and mlp",
    "with-order": 'with order="{order}", {what}',
    "three-orders-agree": "values and gradients agree in all three orders, with and without a mask",
    "stack-norm-missing": "the last norm is missing",
    "stack-norm-after-every-block": "the last norm runs after every block; it belongs behind the "
    "loop",
    "stack-norm-after-every-block-too": "the last norm runs after every block, too; it belongs "
    "behind the loop alone",
    "first-block-alone": "only the first block runs",
    "every-block-reads-x": "only the last block counts: each one reads the input of the stack, "
    "and its result is thrown away by the next",
    "block-added-and-normed": "a block adds to the stream itself, and the last norm belongs "
    "behind the loop: x = layer(x) is enough",
    "stream-added-to-normed": "the stream is added behind the last norm: the normed stream alone "
    "is the result",
    "stack-norm-first": "the last norm runs before the blocks; it belongs behind the loop",
    "block-added-again": "a block adds to the stream itself: x = layer(x) is enough",
    "blocks-backwards": "the blocks run in the wrong order, the last one first",
    "blocks-are-post-norm": "the blocks are post-norm: leave norm_first out, it is True",
    "number-of-blocks": "layers holds {got:block|blocks} with num_layers={want}",
    "write-list-and-loop": "write the list of blocks and the loop over them",
    "stack-is-sick-before-training": "with given weights the values are right, but a fresh stack "
    "has a bug",
    "layers-have-their-own": "each layer has weights of its own; values and gradients agree for 2 "
    "random sizes",
    "reads-before-encoder": "it reads the tokens before the encoder",
    "encoded-twice": "the tokens go through the encoder twice",
    "class-token-cut-off": "the class token is cut off before the encoder: token 0 is a patch then",
    "softmax-too-many": "there is a softmax too many, the scores themselves are asked for",
    "reads-last-token": "it reads the last token; the class token is the first",
    "reads-first-patch": "it reads token 1, the first patch; the class token is token 0",
    "reads-mean-of-patches": "it reads the mean of the patches, which is pool='mean'",
    "reads-mean-of-all": "it reads the mean of all tokens",
    "reads-sum-of-all": "it reads the sum of all tokens",
    "class-token-in-mean": "the class token is in the mean: the patches begin at token 1",
    "reads-class-token": "it reads the class token, which is pool='class'",
    "last-patch-missing": "the last patch is missing from the mean, and the class token is in it",
    "first-patch-missing": "the first patch is missing from the mean: the patches begin at token 1",
    "reads-sum-of-patches": "it reads the sum, not the mean",
    "divided-by-all-tokens": "the sum of the patches is divided by the number of all tokens, the "
    "class token too",
    "largest-not-mean": "it reads the largest numbers, not the mean",
    "median-not-mean": "it reads the median, not the mean",
    "largest-score-of-patches": "it takes the largest score of all patches, not the mean",
    "with-pool": "with pool={pool:repr}, {what}",
    "both-readings-agree": "values and gradients agree for both ways to read, on pictures that "
    "are not square",
    "layers-from-the-first": "it goes through the layers from the first to the last: a token asks "
    "the last layer first from where it has its numbers, then the one before",
    "column-instead-of-row": "it follows where the token's numbers go, the column of the table; "
    "from where they come is its row",
    "column-from-the-first": "it follows where the numbers of an input token go, the column of "
    "the table; from where this token has its numbers is its row, beginning with the last layer",
    "own-and-rest-exchanged": "own and 1 - own are exchanged",
    "own-not-used": "own is not used: it is a half for every share",
    "own-part-missing": "what the token holds itself is missing: add own times the row",
    "gathered-alone": "only the weights are multiplied, without the token's own share",
    "rest-not-multiplied": "the gathered part is not multiplied by 1 - own, so the row does not "
    "sum to 1",
    "own-not-multiplied": "the own part is not multiplied by own, so the row does not sum to 1",
    "both-not-multiplied": "own and 1 - own are missing, so the row does not sum to 1",
    "heads-summed": "the heads are summed, not averaged",
    "largest-of-heads": "the largest weight of the heads is taken, not their mean",
    "first-head-alone": "it looks at the first head alone",
    "last-layer-alone": "it is the last layer alone, the earlier ones are lost",
    "first-layer-alone": "it is the first layer alone",
    "last-layer-missing": "the last layer is missing",
    "first-layer-missing": "the first layer is missing",
    "layers-added": "the layers are added; each carries on the row of the one before",
    "layers-averaged": "the layers are averaged; each carries on the row of the one before",
    "always-class-token": "it is the class token, whatever token was asked for",
    "whole-table-returned": "these are the rows of all tokens; one token was asked for",
    "own-share-of-all": "own is added everywhere, not only to the token itself",
    "sample-instead-of-token": "the row starts as 1 in sample number token: tokens are the last "
    "axis, row[:, token] = 1",
    "own-missing-in-last-layer": "the own part of the last layer is missing: the row starts as 1 "
    "at the token itself, and every layer keeps own of it",
    "own-share-of-the-start": "every layer keeps own of the first row: it keeps own of the row "
    "that the layer behind it has left",
    "row-of-token-each-time": "each layer is asked for the row of the token alone: the row "
    "carried so far must be multiplied by its table",
    "one-layer-differs": "right for several layers, but a list of one layer gives something else",
    "whole-tables-multiplied": "the values are right, but two tables (n, n) are multiplied: carry "
    "one row (b, n) through the layers, which is n times less work",
    "accuracy-when-moved": "the accuracy on digits moved to the right by {columns:pixel|pixels}",
    "accuracy-unmoved": "this is the accuracy of digits that nobody moved",
    "accuracy-is-percentage": "an accuracy is a share from 0 to 1, not a percentage",
    "accuracy-is-error": "this is the share that is read wrongly",
    "accuracy-is-loss": "this is what it loses, not what is left",
    "moved-to-the-left": "the digits were moved to the left",
    "moved-down": "the digits were moved down",
    "moved-by": "they were moved by {columns}",
    "comes-back-at-other-side": "what leaves at one side comes back at the other; paper, 0, "
    "should come in",
    "rolls-all-numbers": "torch.roll without dims rolls all numbers in one line, from row to row; "
    "and what leaves should not come back",
    "rolls-rows": "the rows are rolled, along H; columns lie along the last axis, and what leaves "
    "should not come back",
    "moves-to-the-left": "it moves to the left, and a negative number to the right",
    "negative-moves-right-too": "a negative number moves to the right as well; it should move to "
    "the left",
    "negative-needs-paper": "a negative number should move to the left, and 0 come in at the right",
    "moves-down": "it moves down, along H",
    "moves-channels": "it moves the channels",
    "edge-is-repeated": "the edge is repeated; paper, 0, should come in",
    "old-columns-stay": "where paper, 0, should come in, the old columns are left: begin with "
    "torch.zeros_like",
    "one-column-more": "it moves one pixel further to the right than it should",
    "paper-is-zero": "what comes in is 1, and paper is 0",
    "this-shift-differs": "right for most shifts, but columns={columns} gives something else",
    "training-mode": "accuracy_of runs the model in training mode, where dropout makes every "
    "answer a game of chance: call model.eval() first",
    "share-read-wrongly": "it is the share that is read wrongly",
    "smallest-score": "it takes the class with the smallest score",
    "number-not-share": "it is the number of right answers, not their share",
    "percentage-not-share": "it is a percentage, not a share from 0 to 1",
    "chance-not-hit": "it is the mean chance that the model gives to the label; count how often "
    "the label has the largest score",
    "mean-score-not-hit": "it is the mean score of the label; count how often the label has the "
    "largest one",
    "rounded": "the share is rounded: return it as it is",
    "write-accuracy-steps": "write it with eval, no_grad and argmax",
    "records-gradients": "accuracy_of is right, but it records gradients, which costs memory for "
    "nothing: call the model inside `with torch.no_grad():`",
    "pixels-cost": "one pixel costs a quarter of the digits. Two cost far more, though every "
    "patch stays whole: it then stands at its neighbour's place, and the learned positions say so",
}

# ------------------------------------------------------------------------------------ chapter 08

CHAPTER_08 = {
    "both-shapes-right": "PyTorch's layer gives both shapes",
    "that-is-with-batch-first": "that is its shape with batch_first=True; without it the layer "
    "takes the first axis for the tokens",
    "that-is-without-batch-first": "that is its shape without batch_first=True; with it the first "
    "axis is the batch",
    "layer-causal": "a causal attention",
    "layer-window": "a causal window of three tokens",
    "layer-token-alone": "a layer that works on each token alone",
    "layer-adds-past": "a layer that adds up the past",
    "layer-before-alone": "a layer whose results depend on the tokens before them alone",
    "layer-constant": "a layer that gives the same for every input",
    "layer-mixes-samples": "an attention that is causal and mixes the samples of the batch",
    "layer-no-mask": "an attention without a mask",
    "layer-one-later": "a mask that lets one later token through",
    "layer-upside-down": "a mask that is upside down",
    "layer-last-into-first": "a layer whose last token alone leaks, into the first",
    "layer-last-into-one-before": "a layer whose last token alone leaks, into the one before",
    "layer-one-into-zero": "a layer whose token 1 alone leaks, into token 0",
    "layer-two-into-one": "a layer whose token 2 alone leaks, into token 1",
    "layer-first-sample-whispers": "a layer in which only the first sample sees the future, and "
    "only a little",
    "layer-last-sample-whispers": "a layer in which only the last sample sees the future, and "
    "only a little",
    "layer-first-sample-hears-last": "a layer in which the first sample sees the future of the "
    "last one, and only a little",
    "layer-last-number-leaks": "a layer in which only the last number of each result sees the "
    "future",
    "layer-takes-mean-out": "a layer without a mask that takes the mean out of its tokens, as a "
    "norm does, so that a token plus 1 is the same token",
    "layer-results-sum-to-0": "a layer without a mask the numbers of whose results sum to 0",
    "layer-normalises-size": "a layer without a mask that normalises its tokens, so that a token "
    "times 2 is the same token",
    "layer-ignores-first-number": "a layer without a mask that reads all numbers of a token but "
    "number 0",
    "layer-ignores-last-number": "a layer without a mask that reads all numbers of a token but "
    "the last",
    "layer-turns-round": "a layer that turns the tokens round",
    "calls-blind-layer-seeing": "it says {said} for {layer}: no earlier result changes there",
    "calls-seeing-layer-blind": "it says {said} for {layer}: an earlier one changes",
    "test-always-true": "it says True of every layer: nothing is changed, or nothing is compared, "
    "or too little to show",
    "test-always-false": "it says False of every layer, whatever the layer does",
    "test-last-place-alone": 'only the last token is changed; "later" may begin at every place',
    "test-first-place-alone": 'it tries only the place 1; "later" may begin at every place',
    "test-place-two-alone": 'it tries only the place 2; "later" may begin at every place',
    "test-begins-at-two": "it begins at place 2, so that nobody sees token 1 leak into token 0",
    "test-last-place-missing": "the last place is missing, where the last token alone is later",
    "test-one-token-one-before": "one token is changed, and only the result just before it is "
    "looked at; all earlier results count",
    "test-one-before": "only the result just before the changed tokens is looked at; all earlier "
    "results count",
    "test-first-result-alone": "only the first result is looked at; all results before the "
    "changed tokens count",
    "test-only-scales": "the later tokens are only multiplied by a number, and a layer that "
    "normalises does not see that: put random ones in their place",
    "test-adds-same-number": "the same number is added to all of a token, and a layer that "
    "normalises does not see that: put random ones in their place",
    "test-first-number-of-token": "only number 0 of the later tokens is changed, and some layers "
    "read the others: change all of a token",
    "test-last-number-of-token": "only the last number of the later tokens is changed, and some "
    "layers read the others: change all of a token",
    "test-reorders": "the later tokens are only put into another order, and an attention without "
    "a mask does not see that: put random ones in their place",
    "test-changes-first-sample": "only the first sample is changed; every one may leak",
    "test-changes-other-samples": "the first sample is not changed; every one may leak",
    "test-changes-samples": "later samples are changed, axis 0; the tokens are axis 1",
    "test-changes-samples-not-tokens": "later samples are changed, axis 0, with all of their "
    "tokens; the tokens are axis 1",
    "test-first-sample-alone": "only the first sample is looked at; every one may leak",
    "test-last-sample-alone": "only the last sample is looked at; every one may leak",
    "test-first-number-of-result": "only number 0 of each result is looked at; all numbers count",
    "test-last-number-of-result": "only the last number of each result is looked at; all numbers "
    "count",
    "test-sums-numbers": "the numbers of a result are added up, or averaged, with their signs; "
    "where a layer normalises they always sum to 0",
    "test-sums-everything": "all results are added up with their signs, so that changes can cancel",
    "test-includes-changed": "the result at the first changed place is compared, too, and it may "
    "change: results before it are [:, :place]",
    "test-compares-later": "later results are compared, which may change; the earlier ones are "
    "[:, :place]",
    "test-too-tolerant": "the tolerance is so wide that a small leak does not show",
    "test-all-must-move": "a leak counts only when all numbers move; one is enough",
    "test-turned-round": "it is turned round: True when a result changes",
    "test-one-place-is-enough": "one place without a leak is enough for True; there must be none "
    "at any place",
    "true-or-false-is-asked": "past_is_blind returns {got}, True or False is asked for",
    "tokens-changed": "tokens was changed in place: work on tokens.clone()",
    "tells-layers-apart": "it tells {blind} layers that are blind from {sees} that see the future",
    "healthy-is-sick": "this is Sick, pre-norm: the norm stands before the part, and belongs "
    "around the sum",
    "norm-of-part-is-added": "the norm stands around the part alone, x + norm(part(x)), and "
    "belongs around the sum",
    "norm-of-first-part-is-added": "in the first half the norm stands around the part alone, and "
    "belongs around the sum",
    "norm-of-second-part-is-added": "in the second half the norm stands around the part alone, "
    "and belongs around the sum",
    "first-norm-twice": "norm1 is used twice, before the part and around the sum: around the sum "
    "is enough",
    "second-norm-twice": "norm2 is used twice, before the part and around the sum: around the sum "
    "is enough",
    "both-norms-at-the-end": "both norms stand at the end: each sum has its own",
    "one-sum-of-both-parts": "there is one sum, and both parts read the same: the feed-forward "
    "reads what the first half made of the stream",
    "first-half-pre-norm": "the first half is still pre-norm: its norm belongs around the sum",
    "second-half-pre-norm": "the second half is still pre-norm: its norm belongs around the sum",
    "pre-norm-and-post-norm": "each norm is used twice, before the part and around the sum: "
    "around the sum is enough",
    "pre-norm-normed-at-the-end": "this is pre-norm with a norm at the end: each sum has its own, "
    "and the parts read the stream as it is",
    "adds-the-normed-stream": "it adds norm(x) to the results instead of x: the norm belongs "
    "around the sum",
    "second-sum-not-normed": "the second sum is not normalised",
    "first-sum-not-normed": "the first sum is not normalised",
    "half-missing": "it stops after the attention: the feed-forward is missing",
    "first-stream-not-added": "in the first half the stream is not added: norm1(x + ...)",
    "second-stream-not-added": "in the second half the stream is not added: norm2(x + ...)",
    "second-adds-the-start": "the second sum adds to the stream as it came into the block, so "
    "what the first half made is lost",
    "feeds-on-the-start": "the feed-forward reads what came into the block, not what the first "
    "half made of it",
    "write-two-lines": "write the two lines yourself",
    "judged-after-reading": "each word is judged by the scores that were made after reading it",
    "pays-for-word-before": "the scores are those of place i + 1: it pays for the word before",
    "last-word-left-out": "the last word is left out on both sides, but nothing is shifted",
    "first-word-left-out": "the first word is left out on both sides, but nothing is shifted",
    "roll-goes-round": "the last scores are judged by the first word: roll goes round",
    "roll-of-all-goes-round": "the last scores of a sentence are judged by the first word of the "
    "next: roll without dims goes through all sentences in one line",
    "shift-in-one-row": "the sentences were put in one row before the shift: the last place of "
    "one is judged by the first word of the next",
    "shift-along-batch": "the shift runs along the batch: scores of one sentence are judged by "
    "the words of the next one. Places are axis 1, [:, :-1] and [:, 1:]",
    "last-sentence-left-out": "the last sentence is left out, and nothing is shifted: places are "
    "axis 1, [:, :-1] and [:, 1:]",
    "two-places-on": "the scores at place i are judged by the word at place i + 2",
    "divided-by-all-places": "the sum is divided by all places, also by those without a next word",
    "divided-by-sentences": "the sum is divided by the number of sentences, and it is to be "
    "divided by the number of places",
    "loss-is-sum": "it is the sum over all places, the mean is asked for",
    "loss-is-not-averaged": "there is one loss for each place; their mean is asked for",
    "loss-is-not-averaged-by-sentence": "there is one loss for each place of each sentence; their "
    "mean is asked for",
    "softmax-twice": "cross_entropy applies the softmax itself, and gets probabilities",
    "scores-for-log-chances": "the scores themselves are picked, as nll_loss does: it wants "
    "log_softmax of them, which cross_entropy applies itself",
    "chances-for-log-chances": "probabilities are picked, and their logarithm is meant: nll_loss "
    "wants log_softmax, not softmax",
    "logarithm-of-scores": "the logarithm of the scores is taken; cross_entropy wants the scores "
    "as they are",
    "loss-has-other-sign": "it has the other sign: a loss gets smaller when the right word gets "
    "more likely",
    "places-and-sentences-exchanged": "the scores are put in a row place by place, the words "
    "sentence by sentence, so that most do not belong together",
    "word-zero-ignored": "the word with number 0 is left out; it is a word like any other",
    "factor-not-divisor": "that is the factor; the divisor is 1 over it",
    "divisor-squared": "that is the square of the divisor",
    "divisor-rooted": "that is the root of the divisor",
    "what-it-should-divide-by": "that is what the layer should divide by: measure what it does",
    "root-of-token-width": "that is the square root of the width of a token",
    "queries-read-tokens": "the queries still read the tokens: set the weight of q_proj to 0, so "
    "that only its bias of 1 is left",
    "width-of-head": "that is the width of a head, nothing was measured",
    "d-left-over": "a factor of d is left over: a head adds up d products",
    "d-missing": "a factor of d is missing: a head adds up d products",
    "h-left-over": "a factor of h is left over: a head is d = e / h wide",
    "e-left-over": "a factor of e is left over",
    "tokens-of-ones": "the token holds 1 everywhere, so that its score is d, and its weight came "
    "back times d: with 1/d the score is 1",
    "tokens-of-one-over-e": "the token holds 1/e everywhere, and a head adds up only d products: "
    "with 1/d the score is 1",
    "weight-not-times-d": "the result is w / d, and it was taken for the weight: multiply by d",
    "weight-times-e": "the result is w / d, and it was multiplied by e: multiply by d",
    "log-for-logit": "the logarithm of the weight is not the score; it is that of w / (1 - w), "
    "which logit gives",
    "weight-not-undone": "that is 1 over the weight; the score behind it is its logit",
    "weight-as-it-is": "that is the weight of the first key; the score behind it is its logit",
    "dropout-still-on": "the layer drops weights at random: call eval() on your copy first",
    "divisor-is-no-number": "divisor returns {got}, a number is asked for",
    "divisor-wrote-into-layer": "divisor wrote into the layer itself: work on copy.deepcopy(layer)",
    "divisor-changed-mode": "divisor put the layer itself into eval mode: do so with the copy",
    "divisor-differs": "divisor says {got:.4g} for a layer of width {e} with {h:head|heads} that "
    "divides by {want:.4g}",
    "all-divisors-found": "it finds all {count} divisors within 1%, and leaves the layers as they "
    "were",
}

# ------------------------------------------------------------------------------------ chapter 09

CHAPTER_09 = {
    "four-shapes-right": "the code gives all four shapes",
    "shortest-piece-first": "it takes the shortest piece each time: begin with the whole rest of "
    "the word and shorten it",
    "only-letters": "every letter stands alone: no longer piece is looked for",
    "longest-from-the-right": "it cuts from the right, or into the fewest pieces: begin at the "
    "left, take the longest each time, and go on where the piece ends",
    "longest-of-the-whole-word": "it takes the longest piece anywhere in the word first: begin at "
    "the left, and go on where the piece ends",
    "unknown-letters-left-out": "a letter with which no piece begins is left out: it stands alone",
    "stops-at-unknown-letter": "it stops at a letter with which no piece begins: that one stands "
    "alone, and it goes on behind",
    "rest-is-one-piece": "from a letter on with which no piece begins, the rest is one piece: only "
    "that letter stands alone",
    "last-piece-forgotten": "the last piece is missing",
    "last-letter-never-taken": "the last letter always stands alone: word[start:end] ends before "
    "end, so end begins with len(word)",
    "pieces-as-one-text": "it is one text: a list of pieces is asked for",
    "found-pieces-only-once": "a piece that occurs twice is listed once",
    "word-given-up": "one letter with which no piece begins makes the whole word one piece, as in "
    "BERT: here only that letter stands alone",
    "later-pieces-marked": "## stands before the later pieces: the pieces are asked for as they "
    "stand in the word",
    "mark-put-in-front": "▁ is put in front: the word has it already, if it needs it",
    "piece-removed-everywhere": "the piece is removed wherever it stands, or letter by letter: "
    "word[len(piece):] leaves out the beginning only",
    "wrong-for-short-word": "right for other words, but not for {word!r} with the vocabulary "
    "{{'a', 'ab'}}",
    "cuts-agree": "the pieces agree for 12 random words, and for very short ones",
    "unknown-is-3": "an unknown letter became the id 3: spell it in bytes",
    "unknown-left-out": "an unknown letter is left out: spell it in bytes",
    "bytes-not-behind-special": "the bytes begin at id 0: four special ids stand before them",
    "bytes-behind-letters": "the bytes stand behind the letters: their ids are 4 to 259",
    "letters-among-bytes": "the letters begin at id 4, where the bytes stand: they begin at 260",
    "letters-from-256": "the letters begin at 256: four special ids come first, then 256 bytes",
    "letters-from-261": "the letters begin at 261: the first one has the id 260",
    "both-off-by-special": "all ids are four too small: four special ids come first",
    "numbers-of-letters": "it takes ord(letter), the number of a letter in Unicode: "
    "letter.encode() gives its bytes",
    "everything-in-bytes": "the known letters are spelled in bytes, too: they have ids of their "
    "own",
    "first-byte-only": "only the first byte of each unknown letter is there",
    "bytes-from-behind": "the bytes of a letter stand in reverse order",
    "bytes-in-lists": "the bytes of a letter are a list inside of the list: join it with += or "
    "extend",
    "bytes-of-utf-16": "these are the bytes of UTF-16: letter.encode() gives those of UTF-8",
    "place-of-unknown-is-minus-one": "an unknown letter became the id 259: find gives -1 for what "
    "is not there",
    "special-ids-added": "BEGIN or END was added: the ids of the text alone are asked for",
    "capitals-are-lost": "capitals became small letters: every letter has to come back as it was",
    "spaces-are-lost": "spaces got lost: they are letters like all others",
    "bytes-are-no-letters": "each byte became a letter of its own: the bytes of one letter have to "
    "be decoded together",
    "bytes-not-shifted-back": "each byte id became the letter of that number: id - 4 is the byte, "
    "and the bytes of one letter have to be decoded together",
    "bytes-decoded-alone": "each byte is decoded alone, and one byte of several is no letter: "
    "decode once, at the end",
    "bytes-left-out": "the bytes are left out",
    "bytes-decoded-last": "all spelled letters stand behind the known ones: keep the order",
    "last-bytes-forgotten": "bytes behind the last known letter are forgotten",
    "letters-as-list": "it is a list of letters: one text is asked for",
    "does-not-come-back": "right for other texts, but to_text(to_ids({text!r}, 'abc'), 'abc') is "
    "another text",
    "text-comes-back": "ids and texts agree on 4 random texts each, and short ones come back, too",
    "padding-behind": "the padding stands behind: it belongs in front",
    "padding-is-minus-one": "the padding is -1: its id is 0",
    "padding-is-three": "the padding is 3, which is UNKNOWN: its id is 0",
    "row-turned-round": "the rows stand in reverse order: only the padding goes in front",
    "one-zero-too-many": "every row has one 0 too many",
    "cut-to-the-shortest": "the rows are cut to the shortest one: fill up to the longest",
    "rows-sorted": "the rows are sorted by length: keep their order",
    "small-ids-as-padding": "the ids 1 to 3 are taken for padding: only 0 is",
    "places-from-one": "the first real token has place 1: places begin at 0",
    "padding-at-minus-one": "padding has place -1, which is no row of a table of positions, or "
    "its last one: it gets 0",
    "padding-counted-too": "the padding is counted, too: the first real token has place 0",
    "places-from-behind": "it counts from the end of the row: the first real token has place 0",
    "places-counted-across-rows": "it counts down the batch: tokens of one text lie along dim 1",
    "ids-added-up": "the ids are added up: add up ones for real tokens",
    "only-real-or-not": "it says only which tokens are real: add them up along the row",
    "places-minus-padding-by-hand": "padding has negative places: it gets 0",
    "places-count-the-padding": "it counts the padding: count the real tokens",
    "padding-still-counted": "the padding is still counted",
    "text-divided-by-all-places": "the padding is left out of the sum, but the sum is divided by "
    "all places: divide by the number of real ones",
    "padding-summed-too": "the sum still has the padding in it; only the number is right",
    "not-divided": "it is the sum: divide it by the number of real tokens",
    "divided-by-the-whole-batch": "it divides by the real tokens of the whole batch: each sentence "
    "has its own number",
    "divided-by-the-longest": "it divides by the real tokens of the longest sentence: each has its "
    "own number",
    "mean-of-the-padding": "it is the mean of the padding: real is where ids != 0",
    "one-mean-for-all": "all sentences got the same mean, that of the whole batch",
    "first-places-taken": "it takes the first places, as many as are real: the padding may stand "
    "in front",
    "text-largest-not-mean": "it takes the largest number of each column, not the mean",
    "text-median-not-mean": "it takes the median of each column, not the mean",
    "only-the-first-token": "it takes the first token alone",
    "mean-of-the-ends": "it takes the first and the last place only",
    "column-before-row": "the column stands in the first half: that one is for the row",
    "column-by-column": "the patches run column by column: patchify cuts row by row",
    "columns-and-rows-exchanged": "rows and columns are exchanged: rows is the first argument",
    "codes-of-a-line": "it numbers the patches along one line: each half has a place of its own",
    "codes-added": "the two codes are added: set them side by side, half as wide",
    "half-of-wide-codes": "the halves are cut out of codes of width e: make each of width e // 2",
    "halves-alternate": "the halves alternate: all of the row's code comes first",
    "rows-repeated-like-columns": "the row's codes follow each other like the column's: each "
    "stands columns times in succession",
    "columns-repeated-like-rows": "each column's code stands several times in succession, like the "
    "row's: they follow each other, rows times",
    "row-says-all": "the code says the row alone",
    "column-says-all": "the code says the column alone",
    "every-second-row-turned": "every second row runs from right to left: each begins at column 0",
    "shifts-back": "it turns backwards: it is the transpose of what is asked for, since the codes "
    "stand on the left",
    "all-pairs-turn-alike": "all pairs turn by the same angle: pair k has its own speed, 1 / 10000 "
    "** (2k / e)",
    "speeds-squared": "the exponents are twice too large: arange(0, e, 2) is 2k already",
    "speeds-rooted": "the exponents are half of what they should be: 2k / e, and k is the pair",
    "speeds-too-fast": "later pairs turn faster: divide by 10000 ** (2k / e)",
    "speeds-the-other-way-round": "the first pair has the speed of the last",
    "mirrors-instead": "the blocks mirror the pair: a rotation has twice the same cosine, and "
    "sines of opposite sign",
    "both-sines-positive": "both sines of a block have the same sign: one of them is negative",
    "sine-and-cosine-exchanged": "sine and cosine are exchanged in the blocks: without a step, the "
    "matrix is the identity",
    "without-sines": "the sines are missing: each column is made of both numbers of its pair",
    "for-codes-in-halves": "it is right for codes with all sines first: here sine and cosine "
    "alternate",
    "always-one-step": "it makes one step, whatever steps says",
    "one-step-too-many": "it makes one step too many",
    "codes-not-rotations": "the code itself stands on the diagonal: a pair turns, it is not "
    "multiplied",
    "matrix-is-fitted": "it moves the codes of the first places, but it is no rotation, as if it "
    "had been fitted to a table: pair k turns by the angle steps / 10000 ** (2k / e), and the "
    "matrix is made of the sines and cosines of these angles",
    "shift-wrong-for-steps": "right for other steps, but not for steps={steps}",
    "shift-agrees": "the values agree for 6 random widths and steps, and 0 and 40 steps lead where "
    "they should",
    "only-the-last-token": "it takes the last token alone: the mean of all real ones is asked for",
    "grid-begins-at-one": "rows and columns are counted from 1: the first ones have place 0",
    "grid-from-below": "the rows are counted from below: the first one has place 0",
    "steps-without-sign": "it goes forward whatever the sign of steps is: negative steps lead back",
    "only-the-first-pair": "only the first pair turns: every pair does, each at its own speed",
    "angles-in-degrees": "the angles are taken for degrees: they are radians, as they are",
}

# ------------------------------------------------------------------------------------ chapter 10

CHAPTER_10 = {
    "small-transformer": "small Transformer",
    "heads-cut-from-memory": "the heads are cut as the numbers lie in memory, so that a head gets "
    "numbers of several tokens: split the width, then move the axis",
    "queries-split-otherwise": "the queries are split into heads otherwise than the keys: each "
    "head takes neighbouring columns, (h d)",
    "sigmoid-not-softmax": "each score becomes its sigmoid: the weights of a row do not "
    "compete, and do not sum to 1",
    "masked-score-is-only-low": "a masked score becomes some low number, such as -10, of which "
    "softmax leaves a little: -torch.inf leaves nothing",
    "source-is-turned": "the source is read from its end",
    "source-not-masked": "the padding of the context is open: where real is False, no weight may "
    "fall",
    "keys-from-w-v": "keys and values are exchanged: w_k makes what is compared, w_v what is mixed",
    "source-masked-by-target": "the source is still masked by the target: cross-attention asks the "
    "source's tokens, so its mask is made of real_source",
    "source-masked-by-both": "the source is masked by both tables: the columns of cross-attention "
    "are source tokens, and real_target says nothing about them",
    "source-padding-open": "the padding of the source is open to cross-attention",
    "source-over-queries": "real_source is laid over the queries; the source's tokens are the "
    "keys, the last axis",
    "source-upside-down": "the source's mask is upside down: the padding is open and the real "
    "tokens are blocked",
    "source-also-causal": "cross-attention is causal, too: the source is complete before the first "
    "target token is written, so every query may look at all of it",
    "source-masked-as-target": "cross-attention has the mask of the self-attention",
    "queries-of-padding-blocked": "queries of the target's padding are blocked, too: padding "
    "blocks keys, whoever asks",
    "both-tables-exchanged": "the two tables are exchanged: real_target is about the target, "
    "real_source about the source",
    "target-padding-open": "the padding of the target is open to the self-attention, and it may "
    "stand anywhere",
    "future-is-open": "the self-attention is not causal: a token sees the later ones",
    "target-mask-is-missing": "the self-attention has no mask at all",
    "past-or-real": "a key of the self-attention is open if one of the two rules allows it, and "
    "both must: & and not |",
    "target-masked-by-source-too": "the self-attention is masked by real_source, too, which says "
    "nothing about the target",
    "end-is-read": "END is read in the shorter rows: padding first and cutting off the last column "
    "leaves it there. No harm is done in training, since nothing is asked behind it, but the card "
    "asks for PADDING",
    "said-not-shifted": "what is read at a place is what must be said there: the answer lies "
    "before the model's eyes. The two must be one step apart",
    "said-shifted-twice": "what must be said is two steps ahead of what is read",
    "begin-is-missing": "BEGIN is missing in front of what is read, so nothing asks for the first "
    "token",
    "end-is-missing": "END is missing behind what must be said, so the model never learns to stop",
    "read-and-said-exchanged": "the two are exchanged: read comes first",
    "one-place-too-many": "there is one place too many: the longest target has one place more than "
    "it has tokens",
    "padding-in-front": "the padding stands in front, and it should stand behind",
    "rows-filled-with-end": "the rows are filled up with END, and PADDING is asked for",
    "said-is-turned": "what must be said runs backwards",
    "one-target-differs": "right for several targets, but one target alone gives something else",
    "four-lines": "write its four lines yourself",
    "sources-are-exchanged": "text and image are exchanged: text_attn asks the text, image_attn "
    "the image",
    "text-asked-twice": "image_attn asks the text, and the image is never asked",
    "image-asked-twice": "text_attn asks the image, and the text is never asked",
    "sources-never-asked": "a cross-attention was given no context, so that the stream asks "
    "itself: hand text and image over",
    "own-mask-not-used": "right without masks; with them, attn_mask is not handed on",
    "text-mask-not-used": "right without masks; with them, text_mask is not handed on",
    "image-before-text": "the image is asked before the text; the text comes first",
    "sources-side-by-side": "both sources are asked from the same stream: the image should be "
    "asked from the stream to which the text's answer was added",
    "sources-are-normed": "text and image are normalised, too: the norms are for the stream, the "
    "sources come from encoders that did it",
    "feed-forward-is-missing": "norm4 and mlp are missing at the end",
    "one-norm-for-all": "norm1 stands before all four parts: each has a norm of its own",
    "source-layers-exchanged": "text_attn and image_attn have changed places: text_attn asks the "
    "text, image_attn the image",
    "one-layer-for-both-sources": "one layer asks both sources: each has a layer of its own",
    "no-smoothing": "there is no smoothing: smoothing is not used",
    "padding-is-counted": "the places where padding must be said are counted, too",
    "divided-by-padding-too": "the losses of the real places are divided by the number of all "
    "places, padding included",
    "losses-are-summed": "it is the sum over the real places: divide by their number",
    "mean-by-sentence": "it is the mean of the sentences' means: a place in a short sentence would "
    "count more than one in a long sentence",
    "only-padding-counted": "only the places of the padding are counted",
    "shares-exchanged": "the shares are exchanged: the right id keeps 1 - smoothing",
    "both-shares-are-smoothing": "the right id keeps smoothing, and 1 - smoothing it should",
    "spread-over-the-others": "smoothing is shared among the wrong ids only; it is shared among "
    "all v ids, the right one included",
    "smoothing-not-divided": "each id gets the whole of smoothing: it is shared among the v ids",
    "spread-is-added": "the right id keeps all of its share: it must give smoothing away",
    "spread-is-missing": "smoothing is taken from the right id, and nobody gets it",
    "spread-without-padding-id": "the padding's id gets no share; it is one of the v ids",
    "spread-has-wrong-sign": "what is spread has the wrong sign: the loss is minus the logarithm, "
    "for every id",
    "spread-over-padding-places": "what is spread is averaged over all places, padding included",
    "minus-is-missing": "the sign is wrong: the loss is minus the logarithm",
    "no-logarithm": "there is no logarithm: these are the probabilities",
    "scores-as-logarithms": "the scores are taken for logarithms of probabilities: log_softmax "
    "makes them so",
    "loss-softmax-over-places": "the softmax runs over the places; over the ids, the last axis, "
    "it must",
    "smoothed-softmax-twice": "softmax is taken twice",
    "logarithm-of-base-2": "it is the logarithm of base 2, and the natural one is asked for",
    "logarithm-of-base-10": "it is the logarithm of base 10, and the natural one is asked for",
    "write-the-loss-steps": "write it with log_softmax, gather and a mean",
    "scores-not-logarithms": "these are the scores: their log_softmax is asked for",
    "probabilities-not-logarithms": "these are the probabilities: their logarithms are asked for",
    "log-of-bare-scores": "it is the logarithm of the scores themselves: first a softmax",
    "softmax-over-beginnings": "the softmax runs over the beginnings: each row has to sum to 1",
    "normed-over-everything": "all rows together sum to 1: each beginning has a softmax of its own",
    "place-is-first": "this is what follows the first token: take the last place",
    "place-before-last": "this is what follows the token before the last one: read all tokens, and "
    "take the last place",
    "only-last-token-read": "only the last token of each beginning is read",
    "begin-put-in-front": "BEGIN was put in front, and the beginnings have it already",
    "mean-over-places": "the scores of all places are averaged: the last place knows what follows",
    "source-encoded-again": "the values are right, but {count:source|sources} went through the "
    "encoder, and there is one: encode it once, as a batch of 1, and let all beginnings look at "
    "the same memory (expand)",
    "own-place-blocked": "no token may attend to itself: the past includes the token's own place",
    "only-future-is-open": "the causal mask is transposed: each token sees itself and the future",
    "own-mask-over-queries": "in the self-attention the target's padding lies over the queries: "
    "real_target[:, None, None, :] blocks keys",
    "both-masks-exchanged": "the two masks are exchanged: the decoder takes the one of its own "
    "text first",
    "right-id-counted-twice": "the right id's part of smoothing is counted twice: the sum over all "
    "ids has it already",
    "loss-by-number-of-pairs": "it is divided by the number of sentences, not by that of real "
    "places",
    "always-causal": "it makes a causal mask of its own: the mask comes from outside, and without "
    "one all may be seen",
    "norm-at-the-end": "there is a norm behind the last part: the block returns the stream itself",
    "mask-of-first-pair": "all pairs have the first one's mask: each source has its own padding",
    "padding-made-zero": "padding was made 0 by a product: a mask blocks its keys, and the result "
    "stays as the decoder gives it",
    "said-filled-with-minus-100": "what must be said is filled up with -100, which F.cross_entropy "
    "ignores by default: here it is PADDING",
    "targets-are-sorted": "the targets are sorted by length: keep their order",
    "last-id-is-missing": "the last id of each target is never said: END stands behind it",
    "end-at-the-last-place": "END stands in the last column: it stands right behind the ids of "
    "each target, before the padding",
    "begin-and-end-exchanged": "BEGIN and END are exchanged: BEGIN is read first, END is said last",
    "special-ids-not-counted": "the ids 1 to 3 do not count: only PADDING does not",
    "end-not-counted": "places where END must be said do not count: a model has to learn when it "
    "is done",
    "smoothing-is-fixed": "smoothing is always 0.1, whatever the argument says",
    "begin-is-cut-off": "BEGIN is cut off: the model reads the beginnings as they are",
    "whole-beginning-scored": "the logarithms of the beginning's own tokens are added: only the "
    "next token's are asked for",
    "softmax-over-the-places": "the softmax runs over the places: at each place, all ids share 1",
    "padding-forbidden": "PADDING is ruled out before the softmax: the model's own probabilities "
    "are asked for",
}

# ------------------------------------------------------------------------------------ chapter 11

CHAPTER_11 = {
    "model-that-writes-on": "model that writes rubbish after its END",
    "goes-on-after-the-end": "a row that has written END goes on writing; it should get PADDING",
    "end-becomes-padding": "END itself is written over: a row is done after it, not with it",
    "filled-with-end": "a row that is done gets END again and again; it should get PADDING",
    "does-not-stop": "it goes on although all rows are done, and appends columns of padding",
    "does-not-stop-nor-fill": "it takes all its steps, and rows that have written END go on "
    "writing",
    "stops-at-the-first-end": "it stops when one row is done; the others are not",
    "begin-left-out": "the rows should begin with BEGIN, as next_scores got them",
    "begins-with-padding": "the rows should begin with BEGIN, not with PADDING",
    "takes-the-smallest": "it takes the smallest score, and the largest is asked for",
    "last-step-alone": "the best continuations are chosen by the last step alone: what the "
    "beginnings bring along, scores, is not added",
    "score-of-the-step": "the returned scores are those of the last step; the sums are asked for",
    "logs-multiplied": "logarithms are multiplied; those of steps that follow one another are "
    "added",
    "best-of-each-row": "each beginning gives its best continuation only; two of one beginning may "
    "both be among the best",
    "divided-by-w": "a place of (w v) is divided by w; row p // v, column p % v",
    "parents-and-tokens-exchanged": "parents and tokens have changed places",
    "worst-are-taken": "the smallest sums are taken, and the largest are asked for",
    "worst-first": "the right ones, but worst first",
    "probabilities-for-logs": "the returned scores are probabilities; scores stay logarithms",
    "width-beyond-all": "with a width larger than the number of continuations all of them are "
    "asked for, best first",
    "most-frequent-not-drawn": "that is the chapter's ceiling: each text gets its most frequent "
    "answer, nothing is drawn",
    "drawn-uniformly": "each answer of a text is drawn equally often; it should be drawn as often "
    "as it occurs",
    "different-texts-once": "each different text counts once; it counts as often as it occurs",
    "text-is-ignored": "the answer is drawn from all answers, whatever the text is",
    "share-that-is-wrong": "that is the share that is wrong",
    "number-not-share-of-texts": "that is the number of right answers, not their share",
    "percentage-of-texts": "that is a percentage; a share from 0 to 1 is asked for",
    "counts-not-squared": "every answer counts as right: an answer that occurs in a share p of the "
    "cases is drawn in p of them",
    "sure-texts-only": "only texts with one answer count; a draw may be right for the others, too",
    "not-divided-by-text": "the squared counts are not divided by how often their text occurs",
    "right-beginning-is-handed-in": "the model still reads the right beginning at every step; it "
    "should read what it wrote itself",
    "right-beginning-without-mask": "the model still reads the right beginning at every step, and "
    "the padding of the source as well",
    "padding-is-read": "the padding of the source is read: hand the mask to encode and to decode",
    "begin-is-counted": "BEGIN is counted, which nobody had to write",
    "whole-answers-counted": "whole answers are counted; here single tokens are asked for",
    "last-token-alone": "only the last token is counted",
    "first-token-alone": "only the first written token is counted",
    "one-place-off": "what is written is compared with the token one place further to the right",
    "number-of-tokens": "that is the number of right tokens, not their share",
    "tokens-that-are-wrong": "that is the share of tokens that are wrong",
    "reader-is-a-module": "reader should be a model, an nn.Module, got {got}",
    "reader-has-nothing-learned": "reader has no parameters: build a Transformer and train it",
    "read-returns-texts": "read should return a list of strings, got {got} that holds {inside}",
    "read-returns-as-many": "read should return one string for each text, {want}, got {got}",
    "reads-too-few": "of {count} numbers that no training showed, {share:.0%} are read rightly, "
    "{want:.0%} are asked for",
    "read-goes-on-after-the-end": "read keeps what a model writes after END; an answer ends there",
    "read-is-turned-round": "the figures come out in the wrong order, the last one first",
    "read-stops-too-early": "the model writes up to four figures and END; read takes fewer steps",
    "model-reads-but-read-does-not": "the model reads well when it is asked step by step; the "
    "error is in read: BEGIN first, the mask of the padding, the largest score of the last row",
    "model-says-the-same": "the model says nearly the same to every text: it has not been "
    "trained, or not on these pairs",
    "model-copies": "the model repeats BEGIN: in its training the target was not shifted, so that "
    "it learned to copy what it reads",
    "model-has-not-learned": "the model itself has not learned enough: 300 steps with a rate of "
    "5e-3, and scores of target[:, :-1] against target[:, 1:]",
    "reads-without-the-model": "read reads as well with random weights: the model has no part in "
    "it",
    "numbers-are-read": "at least {want:.0%} of {count} numbers that no training showed are read, "
    "and with random weights they are not",
}

# ------------------------------------------------------------------------------------ chapter 12

CHAPTER_12 = {
    "all-places-counted": "all places are counted; only the hidden ones are asked for",
    "blanks-divided-by-all-places": "the sum runs over the hidden places, but it is divided by "
    "the number of all places",
    "visible-places-counted": "the visible places are counted, and the hidden ones should be",
    "blanks-shifted": "the targets are shifted: at a blank the model is asked for the token that "
    "belongs there, not for the next one",
    "blanks-shifted-back": "the targets are shifted by one place against the blanks: a blank is "
    "asked for the token that belongs there",
    "mean-of-text-means": "each text is averaged first, then the texts: a text with one blank "
    "then counts as much as one with many; every blank counts the same",
    "blanks-summed": "the surprises are summed, the mean is asked for",
    "divided-by-texts": "the sum is divided by the number of texts, not by the number of blanks",
    "loss-in-bits": "these are bits, nats are asked for: do not divide by log 2",
    "blanks-softmax-twice": "the scores go through a softmax first, and the cross-entropy applies "
    "it again",
    "sign-missing": "the sign is wrong: a surprise is minus the log of a probability",
    "scores-not-normalised": "the scores are taken as log-probabilities: log_softmax is missing",
    "softmax-over-places": "the softmax runs over the places; it belongs over the vocabulary",
    "masked-scores-as-zero": "scores of visible places are set to 0, and these places still "
    "count: take the hidden ones out",
    "given-in-nats": "these are nats: divide by log 2 for bits",
    "padding-is-paid": "padding is paid for, too; it is no part of the text",
    "padding-after-the-end-is-paid": "the first padding after each text is paid for: look at the "
    "token that is asked for, not at the one before it",
    "target-at-same-place": "the scores of a place are compared with the token that the model was "
    "given there; they are for the next one",
    "target-two-ahead": "the scores of a place are compared with the token two places further: "
    "shifted twice",
    "mean-instead-of-sum": "this is the mean of a token, the whole text is asked for",
    "mean-over-all-places": "this is divided by the number of places; the whole text is asked for",
    "log-probability-has-a-sign": "the sign is wrong: what something costs is minus the log of "
    "its probability",
    "all-texts-together": "all texts are added up; each text has its own number",
    "mean-of-the-texts": "this is the mean of all texts; each text has its own number",
    "entropy-instead": "this is the entropy of what the model says, whatever the text is; asked "
    "for is what its own tokens cost",
    "sum-over-texts": "the sum runs over the texts; it belongs over the places of each text",
    "scores-summed": "the scores themselves are added up: log_softmax is missing",
    "one-token-short": "the first token that is asked for, that at place 1, is left out",
    "not-divided-by-what-is-left": "the rows do not sum to 1: divide by what is left",
    "share-is-of-the-largest": "each probability is compared with the share itself; it is a share "
    "of the largest probability",
    "this-is-top-p": "this is top-p: it adds probabilities up until they reach the share",
    "scores-are-compared": "the scores are compared with a share of the largest score; compare "
    "probabilities",
    "gpt-largest-of-all-rows": "the largest is that of all rows together; each row has its own",
    "largest-over-the-texts": "the largest is taken over the texts; it belongs over the vocabulary",
    "largest-over-the-places": "the largest is taken over the places; it belongs over the "
    "vocabulary",
    "keeps-the-unlikely": "it keeps the unlikely tokens and drops the others",
    "softmax-of-probabilities": "a softmax is applied to probabilities: what was set to 0 comes "
    "back; divide by the sum instead",
    "cut-scores-set-to-zero": "the scores of dropped tokens are set to 0, and exp(0) is 1: -inf, "
    "or cut the probabilities",
    "nothing-cut": "nothing is cut: this is the softmax",
    "divided-by-the-largest": "it is divided by the largest probability; divide by the sum of "
    "what is left",
    "divided-over-everything": "it is divided by the sum of everything; each row has its own sum",
    "log-probabilities-returned": "these are logs of probabilities; the probabilities are asked "
    "for",
    "probabilities-with-one-minus": "the share that is dropped and the one that is kept are "
    "exchanged: 1 - share",
    "positions-start-again": "the positions of new tokens start at 0 again; they go on where the "
    "cache ends",
    "positions-one-too-far": "new tokens stand one place too far; the first one stands at "
    "cache.length",
    "positions-one-too-near": "new tokens stand one place too early; the first one stands at "
    "cache.length",
    "positions-after-the-part": "the positions begin behind the new tokens: cache.length was read "
    "after it had grown, or the new tokens were added to it",
    "new-tokens-see-all": "there is no mask: of several new tokens, the first sees those after it",
    "first-part-sees-all": "the first part has no mask: its tokens see those after them",
    "cache-is-not-used": "the cache is not handed on: every part is computed as a text of its own",
    "earlier-tokens-hidden": "the mask hides the tokens in the cache",
    "first-rows-of-the-mask": "these are the first rows of the causal mask; the rows of the new "
    "tokens are the last ones",
    "new-tokens-see-no-new-ones": "a new token sees the cache and itself, but not the new tokens "
    "before it",
    "mask-and-positions": "the positions start at 0 again, and there is no mask",
    "scores-are-asked": "this is what the encoder returns; the head makes scores of it",
    "last-norm-forgotten": "the norm after the last block is left out: call model.encoder itself",
    "write-the-steps-of-forward": "write the steps yourself: embedding, mask, encoder, head",
    "parts-and-whole-agree": "a text in parts, with a cache, has the scores of the whole text",
    "words-begin-at-17": "the word for digit d has the id 17 + d: ids below 17 are levels of ink",
    "words-one-further": "the words are one too far: the word for digit d has the id 17 + d",
    "words-one-short": "the words are one too early: the word for digit d has the id 17 + d",
    "one-word-for-all": "all columns are computed with the word for any digit",
    "bits-a-pixel": "these are bits a pixel; the whole drawing is asked for",
    "first-pixel-free": "the first pixel is left out: the word says something about it, too",
    "pixel-asked-at-its-own-place": "each pixel is asked for at the place where the model was "
    "given it; the place before it says what comes",
    "digits-are-rows": "digits are rows and drawings columns; it should be the other way round",
    "argmin-returned": "these are the digits that were read; the bits of all ten are asked for",
    "argmax-returned": "these are the digits that cost most; the bits of all ten are asked for",
    "softmax-returned": "these are probabilities of the ten words; the bits are asked for",
    "drawings-added-up": "all drawings are added up; each has its own row",
    "digits-backwards": "the digits run from 9 to 0",
}

# ------------------------------------------------------------------------------------ chapter 13

CHAPTER_13 = {
    "numbers-in-cache": "the number that the cache holds",
    "keys-and-values-are-kept": "keys and values are kept, both",
    "every-layer-keeps": "that is one layer, and each of the 5 keeps its own",
    "every-layer-keeps-both": "that is the keys of one layer; each of the 5 keeps keys and values",
    "every-text-keeps": "that is one text, and there are 3",
    "every-token-keeps": "that is one token of each text, and each text has 11",
    "queries-are-not-kept": "queries are not kept: only the heads of keys and values count",
    "shapes-and-cache-right": "the layer gives these shapes, and 5 layers keep so many numbers",
    "gate-and-value-exchanged": "gate and value are exchanged: the first rows make the gate, and "
    "only the gate is bent",
    "both-are-bent": "gate and value are both bent; only the gate is",
    "nothing-is-bent": "nothing is bent: the gate goes through the activation function",
    "product-is-bent": "the product is bent; the gate alone is, before it is multiplied",
    "gate-is-added": "the gate is added to the value; it multiplies",
    "value-is-missing": "only the gate comes through: multiply it by the value",
    "gate-is-missing": "only the value comes through: multiply it by the bent gate",
    "bend-is-always-silu": "it bends with SiLU, whatever bend was given",
    "bend-is-always-sigmoid": "it bends with the sigmoid, whatever bend was given",
    "gate-times-itself": "the gate is multiplied in twice: bend(gate) * value is enough",
    "rows-taken-in-turn": "gate and value take the rows in turn; the first m rows are the gate, "
    "the last m the value",
    "turns-neighbours": "it turns neighbours, 2p and 2p + 1; pairs by halves are p and p + r/2",
    "turns-backwards": "it turns the other way: the first of a pair is x cos - y sin",
    "turns-halves-by-angles-of-neighbours": "the pairs are halves, but the angles are laid out for "
    "neighbours: both numbers of a pair turn by one angle",
    "turns-whole-head": "it turns all d numbers; only the first r are turned",
    "turns-last-numbers": "it turns the last r numbers; the first r are asked for",
    "rest-is-lost": "the numbers behind the first r are missing: they come back unchanged",
    "exponent-without-two": "the exponent is -p/r; it is -2p/r, so that the last pair comes close "
    "to 1/base",
    "exponent-over-all-numbers": "the exponent is divided by d; of r numbers it is -2p/r",
    "speeds-grow": "the speeds grow with the pair: the exponent has a minus sign",
    "base-is-fixed": "the base is 10,000, whatever was given",
    "one-speed-for-all": "all pairs turn at one speed: pair p turns by base^(-2p/r)",
    "positions-start-at-one": "it adds 1 to the positions; they are right as they are given",
    "positions-not-used": "it counts positions itself, from 0 on; each token has the one given",
    "positions-of-first-text": "all texts are turned by the positions of the first",
    "converts-to-halves": "it converts the other way, from neighbours to halves",
    "norm-is-forgotten": "the weight of the norm comes back as it was, and it multiplies numbers "
    "that now lie elsewhere",
    "keys-are-forgotten": "the keys come back as they were",
    "queries-are-forgotten": "the queries come back as they were",
    "norm-converted-the-other-way": "the weight of the norm is converted the other way",
    "heads-not-told-apart": "the rows are sorted as if all were one head: sort them inside each",
    "heads-exchanged-in-conversion": "h and g are exchanged: h counts the heads of queries, g "
    "those of keys",
    "columns-are-sorted": "the columns are sorted; a number of a query is made by a row",
    "heads-tiled": "the heads of keys are still put down 0 1 2 0 1 2: neighbouring heads of "
    "queries share one, 0 0 1 1 2 2",
    "keys-tiled": "the keys are still put down 0 1 2 0 1 2, and only the values 0 0 1 1 2 2",
    "values-tiled": "the values are still put down 0 1 2 0 1 2, and only the keys 0 0 1 1 2 2",
    "first-head-for-all": "all heads of queries read the first head of keys",
    "last-head-for-all": "all heads of queries read the last head of keys",
    "mean-of-heads": "all heads of queries read the mean of the heads of keys",
    "groups-in-reverse": "the groups are in reverse: the first heads of queries read the first "
    "head of keys",
    "joined-in-other-order": "attention is right, but the heads are joined in another order",
    "all-pairs-slower": "all pairs are slower: those that turned often enough keep their speed",
    "no-pair-slower": "no pair is slower",
    "share-outside-0-and-1": "the share that is kept leaves 0 to 1: below and above it stays there",
    "share-not-below-0": "the share that is kept falls below 0 for slow pairs: it stays at 0",
    "share-not-above-1": "the share that is kept rises above 1 for fast pairs: it stays at 1",
    "share-turned-around": "kept and divided are exchanged: fast pairs keep their speed",
    "no-pairs-between": "every pair above low is kept; between low and high it is a mixture",
    "no-pairs-between-high": "every pair below high is divided; between low and high it is a "
    "mixture",
    "between-not-treated": "the pairs between low and high keep their speed; they get a mixture",
    "wavelength-without-2-pi": "the wavelength is 1 / speed; a whole turn is 2 pi",
    "multiplied-by-factor": "slow pairs are multiplied by factor; they are divided by it",
    "wavelengths-are-mixed": "between low and high the wavelengths are mixed; the speeds are",
    "returns-wavelengths": "it returns wavelengths; speeds are asked for",
}

CHAPTER_14 = {
    "parts-not-divided": "the parts sum to query times key; a score is divided by the root of d",
    "parts-divided-by-d": "this divides by d; a score is divided by the root of d",
    "parts-divided-by-whole-width": "this divides by the root of the width of all heads together; "
    "a score is divided by the root of d, the width of one",
    "parts-divided-by-tokens": "this divides by the root of the number of tokens; the width of a "
    "head is the last axis",
    "parts-summed": "this is the score itself; the d numbers that it is the sum of are asked for",
    "parts-summed-with-axis": "this is the score itself, with an axis of size 1; the d "
    "numbers that it is the sum of are asked for",
    "parts-sides-exchanged": "token j asks and token i is asked: it is the other way round",
    "parts-of-query-with-query": "both factors are queries; the token that is asked has a key",
    "parts-of-key-with-key": "both factors are keys; the token that asks has a query",
    "parts-softmax": "a softmax runs over the features; the parts of the score itself are asked "
    "for, before any softmax",
    "parts-added": "query and key are added; they are multiplied, feature by feature",
    "parts-multiplied-by-root": "this multiplies by the root of d; divide",
    "parts-mean-of-heads": "this is the mean of the heads; each has its own parts",
    "spread-zeros-not-safe": "0 times the log of 0 gave nan; a place that is hidden adds nothing",
    "spread-of-the-mean-map": "the texts are averaged first, and the mean of maps is wider than "
    "each of them: measure each, then average",
    "spread-of-the-mean-row": "the rows are averaged first, and the mean of rows is wider than "
    "each of them: measure each, then average",
    "spread-one-number": "all heads are averaged; each has its own number",
    "heads-averaged-texts-left": "the heads are averaged, and each text has a number; it is the "
    "other way round",
    "spread-heads-and-texts-averaged": "texts and heads are averaged, and each place has a number; "
    "each head should",
    "spread-summed-over-rows": "the rows are summed; their mean is asked for",
    "spread-summed": "texts and rows are summed; their mean is asked for",
    "each-text-has-a-number": "each text has its own number; their mean is asked for",
    "spread-mean-over-keys": "it is divided by the number of keys as well: over the keys there is "
    "a sum",
    "spread-as-a-count": "these are numbers of tokens, 2 to the bits; the bits are asked for",
    "rollout-of-the-mean": "this is the mean of the heads; the strongest is asked for",
    "rollout-of-the-least": "this is the weakest head; the strongest is asked for",
    "rollout-without-residual": "the residual is missing: add the identity in every layer",
    "rollout-rows-not-divided": "the rows do not sum to 1: divide each by its sum",
    "rollout-halved-only": "half of this and half of that: but the rows of the strongest sum to "
    "more than 1; divide each row by its sum",
    "rollout-divided-at-the-end": "the rows are divided once, at the end; in every layer they "
    "should be",
    "rollout-divided-first": "the rows are divided before the identity is added; add it first",
    "rollout-columns-divided": "the columns sum to 1, and the rows should",
    "rollout-keepdim-missing": "the sums of the rows divide the columns: keepdim=True is missing",
    "rollout-backwards": "the layers are taken in the wrong order: the last one stands on the left",
    "rollout-last-layer-only": "this is the last layer alone",
    "rollout-first-layer-only": "this is the first layer alone",
    "rollout-layers-averaged": "the layers are averaged; follow one after the other, as matrices",
    "rollout-number-by-number": "the layers are multiplied number by number; it is a product of "
    "matrices",
    "rollout-turned": "rows and columns are exchanged",
    "rollout-of-texts": "this takes the strongest of the texts; the heads are axis 1",
    "head-after-the-projection": "numbers are set to 0 behind the output projection; there all "
    "heads are mixed, and no block of numbers belongs to one of them",
    "head-interleaved": "every h-th number is set to 0; the numbers of one head stand side by side",
    "head-and-bias-gone": "the bias of the output projection is gone, too; it belongs to no head",
    "head-averaged": "the head is replaced by its mean over the tokens; it should bring 0",
    "head-looks-evenly": "the head looks at all tokens alike; it should bring 0",
    "head-alone-is-left": "it is the other way round: only this head is left",
    "head-others-scaled-up": "the other heads are scaled up; they should stay as they are",
    "head-next-one-gone": "the head after it is gone: count from 0",
    "head-counted-from-the-end": "the heads are counted from the end",
    "head-nothing-gone": "nothing is taken away: this is the layer's own result",
    "head-stays-gone": "the layer gives this afterwards, too: it must be as it was; take the "
    "hook off",
    "head-is-gone-and-back": "the result without each head, on 5 random sizes, and the layer is as "
    "before afterwards",
    "head-not-projected": "the output projection is missing",
    "importance-absolute-too-early": "each weight's gain is made positive before they are added; "
    "what one weight gains and another loses cancels within a head",
    "importance-absolute-too-late": "the texts are averaged before the sign is dropped: what helps "
    "one text and harms another cancels",
    "importance-keeps-its-sign": "the signs stay; a head matters when it harms, too",
    "importance-of-what-helps": "only weights that help count; that is relevance, and here all do",
    "importance-clamped": "texts that a head harms count as 0; drop the sign instead",
    "importance-without-weights": "the gradients alone are summed; multiply with the weights",
    "importance-without-gradients": "the gradients are not used",
    "importance-summed-over-texts": "the texts are summed; their mean is asked for",
    "importance-mean-of-weights": "the weights of a head are averaged; they are added up",
    "importance-turned": "rows are layers and columns are heads; here it is the other way round",
    "importance-of-layers": "the heads are averaged; each has its own number",
    "importance-layers-averaged": "the layers are averaged; each has its own numbers",
    "importance-of-rows": "the sign is dropped row by row; add up the whole map first",
}

CHAPTER_15 = {
    "numbers-to-train": "the number of numbers to train",
    "feed-forward-has-products-too": "those are the products beside q, k, v and out; fc1 and fc2 "
    "have theirs, too",
    "attention-has-products-too": "those are the products beside fc1 and fc2; q, k, v and out have "
    "theirs, too",
    "rank-is-left-out": "that is for rank 1; the rank is 4",
    "one-of-two-matrices": "that is one of the two matrices on average; each product has two, "
    "(out, r) and (r, in)",
    "whole-weights-counted": "that is the weights themselves, and these stay frozen",
    "biases-stay-frozen": "the biases stay frozen: a product has none",
    "one-linear-of-the-feed-forward": "the feed-forward has two Linears, fc1 and fc2",
    "packed-as-one-linear": "in our model q, k and v are three Linears, each with a product of its "
    "own",
    "shapes-and-numbers-right": "the file and our Linear have these shapes, and so many numbers "
    "are trained in a block",
    "channels-lie-last": "the channels run fastest, as in the kernel; patchify has them outside: "
    "(c ph pw)",
    "patch-goes-by-columns": "the patch is laid out column by column; patchify goes row by row",
    "channels-last-column-by-column": "the channels run fastest, and the patch goes column by "
    "column; it is (c ph pw)",
    "channels-in-the-middle": "the channels lie between rows and columns; they go outside, "
    "(c ph pw)",
    "channels-in-the-middle-of-columns": "columns, channels, rows; it is (c ph pw)",
    "kernel-not-sorted": "the numbers lie as they lay in the kernel, and only the shape is new: "
    "axes have to be moved",
    "kernel-upside-down": "the kernel is turned upside down; a convolution of these libraries does "
    "not turn it",
    "c-proj-not-turned": "c_proj is used as it lies in the file, (in, out); it is square, so "
    "nothing complains",
    "packed-head-by-head": "queries, keys and values are cut out head by head; GPT-2 has all "
    "queries first, then all keys, then all values",
    "heads-run-fastest": "the heads run fastest; each head has d numbers in a row: (three h d)",
    "keys-before-queries": "queries and keys are exchanged: the first third are the queries",
    "values-exchanged-with-keys": "keys and values are exchanged: the second third are the keys",
    "values-before-all": "queries and values are exchanged: the first third are the queries",
    "sees-later-tokens": "every token sees the later ones, too: GPT-2 is causal",
    "proj-bias-left-out": "the bias of c_proj is left out",
    "attn-bias-left-out": "the bias of c_attn is left out",
    "cut-as-three-blocks": "it is cut into three blocks, as if all queries came first; they lie "
    "group by group",
    "keys-exchanged-with-values": "keys and values are exchanged: the head of values is the last "
    "of a group",
    "keys-and-values-lie-first": "keys and values are taken from the front of each group; the "
    "queries lie there",
    "queries-lie-last": "the queries are taken from the end of each group; they lie in front",
    "queries-by-place-in-the-group": "the heads of queries are sorted by their place in the group; "
    "groups go outside: head a reads keys a // r",
    "groups-run-inside": "the rows are read as (heads g d); the group goes outside: (g heads d)",
    "rows-run-outside": "the rows are read as (d g heads); the d rows of a head lie together: "
    "(g heads d)",
    "stretched-bilinearly": 'it is stretched with mode="bilinear"; asked for is "bicubic"',
    "nearest-taken": 'it is stretched with mode="nearest", F.interpolate\'s own choice; asked for '
    'is "bicubic"',
    "corners-aligned": "it is stretched with align_corners=True; asked for is False",
    "bilinear-corners-aligned": 'it is stretched with mode="bilinear" and align_corners=True',
    "class-token-is-lost": "the row of the class token is missing: put it back in front",
    "class-token-set-to-0": "the row of the class token is 0; it stays as it was",
    "class-token-put-last": "the row of the class token stands at the end; it is row 0",
    "class-token-taken-from-the-end": "the last row is kept as that of the class token; it is row "
    "0",
    "grid-read-by-columns": "the patches are read column by column; they lie row by row: (gh gw)",
    "grid-written-by-columns": "the stretched grid is written column by column; row by row is "
    "(gh gw)",
    "numbers-mixed-by-a-view": "a view makes channels of the table without moving its axes, so "
    "numbers of different patches are mixed: rearrange first",
    "numbers-mixed-by-a-view-at-the-end": "a view makes rows of the stretched grid without moving "
    "its axes back, so numbers of different patches are mixed",
    "stretched-as-one-row": "the patches are stretched as one long row; they are a picture of "
    "gh x gw",
    "after-is-compressed": "it compresses `after` itself; what changed is to be of low rank",
    "after-is-compressed-and-added": "it adds the best product for `after`; the product for what "
    "changed is asked for",
    "only-the-product": "that is the product alone; `before` is missing",
    "change-has-the-wrong-sign": "it adds the best product for before - after; what changed is "
    "after - before",
    "added-to-after": "the product is added to `after`, which has the change already",
    "singular-values-left-out": "the singular values are left out: each column of U is weighted "
    "by its own",
    "singular-values-twice": "the singular values come in twice; once is enough, on one side",
    "smallest-kept": "it keeps the r smallest singular values; the largest come first",
    "largest-left-out": "it leaves the r largest singular values out and keeps the rest",
    "one-too-many": "it keeps r + 1 singular values",
    "one-too-few": "it keeps r - 1 singular values",
    "nothing-is-compressed": "that is `after` as it was: nothing is of low rank",
}

CHAPTER_16 = {
    "bytes-of-the-cache": "the bytes of the cache",
    "cache-of-every-layer": "that is one layer, and each of the 6 keeps its own",
    "cache-of-every-layer-both": "that is the keys of one layer; each of the 6 keeps keys and "
    "values",
    "cache-of-every-text": "that is one text, and there are 5",
    "cache-of-every-token": "that is one token of each text, and each text has 33",
    "cache-of-later-tokens": "these are the first 20 tokens; the 13 that came later are kept, too",
    "cache-of-earlier-tokens": "these are the 13 later tokens; the first 20 are kept, too",
    "cache-of-last-token": "that is one token too few: the last one that was read is kept, too",
    "cache-in-bytes": "that is how many numbers it holds; each has 4 bytes",
    "cache-keeps-no-queries": "queries are not kept: the 4 heads of keys and values count, not the "
    "12 of queries",
    "cache-shapes-right": "the layer gives these shapes, and 6 caches of it so many bytes",
    "halves-not-shrunk": "the two halves are added as they are, but their sums are relative to two "
    "different maxima",
    "only-total-shrinks": "total is brought to the common maximum, mixed is not",
    "only-mixed-shrinks": "mixed is brought to the common maximum, total is not",
    "halves-grow": "the factors have the wrong sign: a half with a smaller maximum shrinks, by "
    "exp(its top - top)",
    "factors-exchanged": "the factors of the two halves are exchanged",
    "factors-without-exp": "the factor is exp(its top - top), not the difference itself",
    "relative-to-nothing": "the sums are brought to scores as they are, but top says that they are "
    "relative to top",
    "mixed-is-divided": "mixed is divided by total already; then the next half could not be joined "
    "to it",
    "halves-are-divided": "each half is divided by its own total before it is joined: then a half "
    "counts as much, whatever its scores say",
    "relative-to-smaller": "all is relative to the smaller maximum: with far scores exp overflows",
    "relative-to-first": "all is relative to the maximum of the first half; the second's may be "
    "larger, and exp overflows",
    "relative-to-second": "all is relative to the maximum of the second half; the first's may be "
    "larger, and exp overflows",
    "relative-to-mean": "all is relative to the mean of the two maxima; top is the larger one",
    "relative-to-all-queries": "all is relative to one maximum of all queries; each query has its "
    "own",
    "corner-at-top-left": "query number r sees the keys 0 to r, as if the queries were the first "
    "tokens: they are the last i of j, so it stands at j - i + r",
    "no-causal-mask": "every query sees all keys; those behind its own place are hidden",
    "no-causal-mask-in-tiles": "later tiles are left out, but in the last one a query still sees "
    "the keys behind its own place",
    "not-its-own-key": "a query does not see the key at its own place",
    "sees-one-key-too-many": "a query sees one key too many: its own place is the last one",
    "sees-one-key-too-many-in-tiles": "inside a tile a query sees one key too many: its own place "
    "is the last one",
    "tiles-mixed-not-shrunk": "mixed does not shrink when a larger score comes, total does",
    "tiles-total-not-shrunk": "total does not shrink when a larger score comes, mixed does",
    "tiles-not-divided": "mixed is never divided by total",
    "tiles-scores-not-divided": "the scores are not divided by the root of d",
    "scores-divided-twice": "the scores are divided by d; it is the root of d",
    "tiles-not-joined": "each tile has a softmax of its own, and the results are added: earlier "
    "tiles must shrink when a larger score comes, and the sum divides once, at the end",
    "holds-a-table": "the values are right, but with tiles of 8, 24 queries and 40 keys it makes a "
    "table of {rows} times {columns}: scores and masks are made tile by tile",
    "rows-overwritten": "the rows are still written one after the other, over rows that are read "
    "later: beam 0 changes before the others go on from it",
    "values-stay": "the keys follow, the values stay with the old beams",
    "keys-stay": "the values follow, the keys stay with the old beams",
    "later-layers-stay": "the first layer follows, the later ones stay with the old beams",
    "nothing-follows": "all stays with the old beams",
    "beams-go-to-parents": "it is the other way round: new beam r gets what beam parents[r] has",
    "heads-follow": "the heads are put in order; beams are the first axis",
    "one-scale-for-all-tokens": "all tokens share one scale; each has its own largest value",
    "one-scale-for-each-text": "all tokens of a text share one scale; each has its own",
    "scale-of-columns-of-x": "the scale is that of a column of x; each token has one, over its e "
    "numbers",
    "one-scale-for-all-rows": "all rows of the weight share one scale; each has its own",
    "scale-without-abs": "the scale comes from the largest value; it is the largest absolute one",
    "not-rounded": "nothing is rounded: what is multiplied are no whole numbers",
    "cut-off-not-rounded": "the numbers are cut off behind the point; they are rounded",
    "rounded-down": "the numbers are rounded down; they are rounded to the nearest",
    "up-to-128": "the whole numbers go up to 128; int8 ends at 127, and so do they",
    "up-to-255": "the whole numbers go up to 255; they go from -127 to 127",
    "scale-of-x-is-missing": "the scale of the tokens is not put back",
    "scale-of-weight-is-missing": "the scale of the rows is not put back",
    "scales-are-missing": "the scales are not put back",
    "sums-in-eight-bits": "the sums do not fit into 8 bits and wrap around: keep them in int32",
    "only-weight-is-whole": "only the weight was made whole; x is, too",
    "only-x-is-whole": "only x was made whole; the weight is, too",
    "division-by-processes-forgotten": "DDP still divides by the number of processes: the gradient "
    "comes out too small",
    "shares-count-alike": "a small share counts as much as a large one",
    "factor-upside-down": "it is upside down: a larger share gets the larger number",
    "sizes-not-divided": "the sizes are not divided by anything: of equal shares all are 1",
    "divided-by-largest-share": "it divides by the largest share; of equal shares that is 1, of "
    "others the gradient becomes too small",
}
CHAPTER_17 = {
    "queries-that-say-nothing": "the number of queries that should say nothing",
    "nobody-lends-queries": "a query answers for its own picture only: 9 objects take none "
    "from the others",
    "counted-in-every-block": "that is all 3 blocks; after the last one is asked for",
    "more-objects-than-queries": "where 9 objects stand, all 7 queries have one; none says nothing",
    "objects-counted": "that is the number of objects",
    "all-queries-counted": "that is all queries of the five pictures",
    "detector-shapes-right": "these are the shapes, and so many queries should say nothing",
    "apart-is-not-cut-off": "sides below 0 are not cut off: boxes that are apart share nothing",
    "area-is-cut-off-late": "the area is cut off at 0, but each side must be: two negative sides "
    "have a positive product",
    "shared-counted-twice": "what is shared counts twice in what is covered: subtract it once",
    "shared-alone": "it returns the shared area; divide it by what both cover",
    "divided-by-frame": "it divides by the frame around both boxes; divide by what they cover",
    "divided-by-smaller": "it divides by the smaller of the two boxes; divide by what they cover",
    "frame-for-shared": "smaller and larger are exchanged: that is the frame around both boxes",
    "edges-read-as-sizes": "the last two numbers are right and bottom, not width and height",
    "edges-read-as-middles": "the four numbers are left, top, right, bottom, not middle and size",
    "one-pixel-more": "it adds 1 to the sides; these edges are no pixel numbers",
    "second-against-first": "rows and columns are exchanged: (i, t), the first boxes are the rows",
    "each-for-itself": "each object takes the query that is cheapest for it, and some queries are "
    "taken twice",
    "objects-one-by-one": "the objects choose one after the other, so the first ones spoil it for "
    "the last",
    "cheapest-pair-first": "the cheapest pair is taken first, and that can spoil the rest",
    "dearest": "it finds the largest sum; the least is asked for",
    "first-queries-only": "only the first t queries are tried, and any of the i may answer",
    "a-query-used-twice": "a query answers for two objects",
    "objects-of-queries": "it returns the object of each query; the query of each object is asked "
    "for",
    "queries-are-sorted": "the queries are right, but sorted: number t belongs to object t",
    "returns-the-sum": "it returns the sum of the costs; the queries are asked for",
    "labels-in-their-own-order": "the labels come in their own order: the m-th pair is about "
    "object objects[m]",
    "queries-in-their-own-order": "the first queries are taken; the matched ones are in queries",
    "nothing-counts-fully": "a query that should say nothing counts 1; it counts nothing",
    "nothing-does-not-count": "queries without an object do not count at all; they count nothing",
    "nothing-is-class-0": "class 0 stands for nothing; the last column does",
    "mean-over-queries": "the sum is divided by the number of queries; divide it by the sum of the "
    "weights",
    "mean-over-objects": "the sum is divided by the number of matched queries; divide it by the "
    "sum of the weights",
    "sum-not-mean-of-answers": "it is the sum; divide it by the sum of the weights",
    "weights-exchanged": "the weights are exchanged: matched queries count 1",
    "scores-are-not-probabilities": "the scores themselves are taken: softmax over the classes, "
    "then the logarithm",
    "softmax-over-queries-of-scores": "the softmax runs over the queries; it runs over the classes",
    "logarithm-is-missing": "it takes probabilities; their logarithms are asked for",
    "softmax-twice-of-answers": "the softmax is applied twice",
    "sign-of-the-loss": "the sign is missing: surprise is minus the logarithm",
    "twice-is-still-right": "an object that is taken already still makes a box right",
    "taken-place-not-left-aside": "a box whose best object is taken may still take another "
    "one that it overlaps",
    "least-sure-takes-first": "the boxes are gone through from the last to the first; the surest "
    "chooses first",
    "first-place-that-fits": "a box takes the first object that fits; it takes the one that it "
    "overlaps most",
    "twice-is-left-out": "a second box on one object is left out; it is wrong, and stays there",
    "all-after-one-are-wrong": "only one box is right; each object can be found once",
    "threshold-turned-around": "a box is right from the threshold on, not below it",
    "threshold-is-half": "the threshold is 0.5, whatever was given",
    "suppressed-ones-suppress": "a box that was thrown away throws others out: compare with the "
    "kept ones alone",
    "only-last-kept-suppresses": "it compares with the box that was kept last; compare with all "
    "kept ones",
    "only-one-before-suppresses": "it compares with the box before; compare with all kept ones",
    "least-sure-first": "it begins with the least sure box; the surest comes first",
    "not-sorted-by-sureness": "it takes the boxes in the order in which they come; the surest "
    "comes first",
    "suppress-turned-around": "it keeps the boxes that overlap a kept one and throws out the "
    "others",
    "kept-are-sorted": "the boxes are right, but sorted by number; the surest comes first",
    "truths-for-numbers": "it returns truth values; the numbers of the kept boxes are asked for",
    "boxes-for-numbers": "it returns the boxes; their numbers are asked for",
}


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
    *(part for name, part in list(globals().items()) if name.startswith("CHAPTER_")),
)
