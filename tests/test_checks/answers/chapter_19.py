"""Correct and wrong answers to the exercises of chapter 19."""

from exercise_bank import Bank, swap

BANK = {
    "19.1": Bank(
        wrong=[  # TODO
            swap("(2, 3, 5, 7)", "(2, 3, 7, 5)", cause="sizes-in-another-order"),
            swap("(2, 3, 5, 7)", "(2, 3, 5, 5)", cause="look-at-axes j"),
            swap("(2, 3, 5, 7)", "(2, 3, 4, 7)", cause="look-at-axes i"),
            swap("(2, 3, 5, 7)", "(2, 3, 5)", cause="number-of-axes"),
            swap("(2, 3, 5, 7)", "210", cause="no-shape"),
        ],
        right=[swap("(2, 3, 5, 7)", "[2, 3, 5, 7]"), swap("(2, 3, 5, 7)", "tuple([2, 3, 5, 7])")],
    ),
    "19.2": Bank(
        wrong=[  # TODO
            swap("(2, 3, 5, 7)", "(2, 3, 7, 5)", cause="sizes-in-another-order"),
            swap("(2, 3, 5, 7)", "(2, 3, 5, 5)", cause="look-at-axes j"),
            swap("(2, 3, 5, 7)", "(2, 3, 4, 7)", cause="look-at-axes i"),
            swap("(2, 3, 5, 7)", "(2, 3, 5)", cause="number-of-axes"),
            swap("(2, 3, 5, 7)", "210", cause="no-shape"),
        ],
        right=[swap("(2, 3, 5, 7)", "[2, 3, 5, 7]"), swap("(2, 3, 5, 7)", "tuple([2, 3, 5, 7])")],
    ),
    "19.3": Bank(
        wrong=[  # TODO
            swap("(2, 3, 5, 7)", "(2, 3, 7, 5)", cause="sizes-in-another-order"),
            swap("(2, 3, 5, 7)", "(2, 3, 5, 5)", cause="look-at-axes j"),
            swap("(2, 3, 5, 7)", "(2, 3, 4, 7)", cause="look-at-axes i"),
            swap("(2, 3, 5, 7)", "(2, 3, 5)", cause="number-of-axes"),
            swap("(2, 3, 5, 7)", "210", cause="no-shape"),
        ],
        right=[swap("(2, 3, 5, 7)", "[2, 3, 5, 7]"), swap("(2, 3, 5, 7)", "tuple([2, 3, 5, 7])")],
    ),
}
