"""A small language in which every probability can be computed (chapters 11 to 13)."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.text import BEGIN, END, Vocabulary, pad
from utils.validation import check_positive, check_shape

RULE_SYMBOLS = "abcdef123456"

# Shares in percent. "" is no word: a cat without an adjective, a sentence that ends.
SUBJECTS = {"cat": 30, "dog": 25, "mouse": 20, "child": 15, "bird": 10}
BEFORE_SUBJECT = {
    "cat": {"": 45, "big": 25, "hungry": 18, "small": 12},
    "dog": {"": 44, "big": 28, "hungry": 18, "small": 10},
    "mouse": {"": 39, "small": 44, "hungry": 17},
    "child": {"": 52, "small": 32, "hungry": 16},
    "bird": {"": 50, "small": 31, "big": 19},
}
VERBS = {
    "cat": {"chases": 42, "sees": 19, "hears": 11, "likes": 13, "finds": 15},
    "dog": {"chases": 27, "sees": 15, "hears": 17, "likes": 20, "finds": 21},
    "mouse": {"eats": 43, "sees": 17, "hears": 16, "finds": 24},
    "child": {"eats": 24, "sees": 21, "hears": 16, "likes": 18, "finds": 21},
    "bird": {"eats": 31, "sees": 29, "hears": 14, "finds": 26},
}
ARTICLES = {
    "chases": {"the": 100},
    "sees": {"the": 60, "a": 40},
    "hears": {"the": 100},
    "likes": {"the": 100},
    "finds": {"the": 60, "a": 40},
    "eats": {"the": 100},
}
OBJECTS = {
    ("cat", "chases"): {"mouse": 52, "bird": 27, "ball": 21},
    ("cat", "sees"): {"mouse": 27, "bird": 26, "dog": 25, "fish": 22},
    ("cat", "hears"): {"mouse": 38, "dog": 35, "bird": 27},
    ("cat", "likes"): {"fish": 33, "child": 31, "ball": 19, "cheese": 17},
    ("cat", "finds"): {"fish": 34, "mouse": 31, "ball": 18, "bird": 17},
    ("dog", "chases"): {"cat": 38, "ball": 38, "bird": 24},
    ("dog", "sees"): {"cat": 32, "child": 31, "bird": 19, "mouse": 18},
    ("dog", "hears"): {"child": 33, "cat": 32, "bird": 18, "mouse": 17},
    ("dog", "likes"): {"child": 40, "ball": 28, "fish": 17, "cake": 15},
    ("dog", "finds"): {"ball": 37, "child": 25, "cake": 21, "cat": 17},
    ("mouse", "eats"): {"cheese": 55, "cake": 45},
    ("mouse", "sees"): {"cat": 38, "child": 32, "cheese": 30},
    ("mouse", "hears"): {"cat": 35, "child": 33, "dog": 32},
    ("mouse", "finds"): {"cheese": 36, "cake": 36, "fish": 28},
    ("child", "eats"): {"cake": 37, "cheese": 33, "fish": 30},
    ("child", "sees"): {"dog": 29, "cat": 28, "bird": 25, "fish": 18},
    ("child", "hears"): {"dog": 38, "bird": 34, "cat": 28},
    ("child", "likes"): {"dog": 37, "cat": 32, "ball": 31},
    ("child", "finds"): {"ball": 30, "cat": 25, "mouse": 23, "cake": 22},
    ("bird", "eats"): {"cake": 56, "fish": 44},
    ("bird", "sees"): {"cat": 40, "cake": 30, "fish": 30},
    ("bird", "hears"): {"cat": 40, "child": 30, "dog": 30},
    ("bird", "finds"): {"cake": 45, "fish": 31, "cheese": 24},
}
BEFORE_OBJECT = {
    "cat": {"": 70, "big": 18, "hungry": 12},
    "dog": {"": 64, "big": 21, "hungry": 15},
    "mouse": {"": 70, "small": 18, "hungry": 12},
    "child": {"": 68, "small": 19, "hungry": 13},
    "bird": {"": 70, "small": 20, "hungry": 10},
    "fish": {"": 75, "small": 25},
    "ball": {"": 66, "small": 18, "big": 16},
    "cheese": {"": 81, "big": 19},
    "cake": {"": 73, "big": 15, "small": 12},
}
AT_THE_END = {
    "chases": {"": 64, "again": 20, "slowly": 16},
    "sees": {"": 62, "again": 17, "today": 21},
    "hears": {"": 62, "again": 19, "today": 19},
    "likes": {"": 70, "today": 16, "again": 14},
    "finds": {"": 63, "today": 21, "slowly": 16},
    "eats": {"": 64, "slowly": 22, "today": 14},
}


class Grammar:
    """A language given by all its sentences: each probability is a sum over those that agree.

    Args:
        sentences: every sentence, words separated by spaces, with its share of all sentences; the
            shares are divided by their sum.

    Shape:
        ids            (s, n), int64: begin, words, end, padding; one row for each sentence
        probabilities  (s,), float64
        vocabulary     v ids: the special ones, then the words in alphabetical order

    Raises: ValueError for no sentences, or a share that is not above 0.
    Source: chapter 12.
    """

    def __init__(self, sentences: Mapping[str, float]):
        shares = torch.tensor(list(sentences.values()), dtype=torch.float64)
        if not len(shares) or not (shares > 0).all():
            raise ValueError(
                "Grammar: there must be sentences, each with a share above 0, "
                f"got {dict(sentences) if len(shares) < 5 else shares.min().item()}. "
                "Leave out sentences that are never said."
            )
        words = {word for sentence in sentences for word in sentence.split()}
        self.vocabulary = Vocabulary(sorted(words))
        self.ids = pad([self.encode(sentence) for sentence in sentences])
        self.probabilities = shares / shares.sum()

    def encode(self, sentence: str) -> list[int]:
        """Return begin, the ids of the words, and end."""
        return [BEGIN, *self.vocabulary.encode(sentence.split()), END]

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw sentences, each as often as its probability says: (count, n)."""
        check_positive("Grammar", count=count)
        drawn = torch.multinomial(self.probabilities, count, True, generator=generator)
        return self.ids[drawn]

    def after(self, ids: Tensor) -> Tensor:
        """Return P(next token | the tokens up to each place): (b, n) -> (b, n, v).

        Where no sentence begins like this, the row is 0. After the end comes padding.
        """
        check_shape("Grammar", "ids", ids, "b n", "One beginning alone is ids[None].")
        n = ids.shape[1]
        table = F.pad(self.ids, (0, max(0, n + 1 - self.ids.shape[1])))
        agree = torch.ones(len(ids), len(table), dtype=torch.bool)  # (b, s)
        places = []
        for place in range(n):
            agree = agree & (ids[:, place, None] == table[:, place])
            places.append(self._add_up(agree, table[:, place + 1]))
        return torch.stack(places, dim=1)

    def between(self, ids: Tensor) -> Tensor:
        """Return P(token at each place | all other tokens): (b, n) -> (b, n, v).

        The sentences are whole, end and padding included; what stands at the place itself does not
        count. Where no sentence has these other tokens, the row is 0.
        """
        n = self.ids.shape[1]
        fix = f"Sentences are whole, with begin and end, and padded to {n}: rows of grammar.ids."
        check_shape("Grammar", "ids", ids, "b n", fix, n=n)
        differ = [ids[:, place, None] != self.ids[:, place] for place in range(n)]  # (b, s) each
        count = sum(one.long() for one in differ)
        # they agree elsewhere, if all that differs is the token at this place
        places = [
            self._add_up(count == one, self.ids[:, place]) for place, one in enumerate(differ)
        ]
        return torch.stack(places, dim=1)

    def _add_up(self, agree: Tensor, asked: Tensor) -> Tensor:
        """Add up the probabilities of the sentences that agree (b, s), by their token asked (s,).

        The result (b, v) is divided by its sum; it is 0 where no sentence agrees.
        """
        tokens = F.one_hot(asked, len(self.vocabulary)) * self.probabilities[:, None]  # (s, v)
        sums = agree.to(tokens) @ tokens
        return sums / sums.sum(dim=1, keepdim=True).clamp(min=1e-300)


def load_grammar() -> Grammar:
    """Return the grammar of the course: 3,255 sentences like "the small mouse eats the cheese".

    >>> grammar = load_grammar()
    >>> len(grammar.vocabulary), grammar.ids.shape
    (27, torch.Size([3255, 10]))

    The subject chooses its adjective and its verb, both together choose the object, that its
    adjective, and the verb the last word. So a word tells much about words on both sides of it.

    Source: chapter 12.
    """
    sentences: dict[str, float] = {}
    for subject, share in SUBJECTS.items():
        for first, p_first in BEFORE_SUBJECT[subject].items():
            for verb, p_verb in VERBS[subject].items():
                for article, p_article in ARTICLES[verb].items():
                    for thing, p_thing in OBJECTS[subject, verb].items():
                        for second, p_second in BEFORE_OBJECT[thing].items():
                            for last, p_last in AT_THE_END[verb].items():
                                words = ["the", first, subject, verb, article, second, thing, last]
                                sentence = " ".join(word for word in words if word)
                                sentences[sentence] = (
                                    share * p_first * p_verb * p_article * p_thing * p_second
                                ) * p_last
    return Grammar(sentences)


def rule_sequences(count: int, generator: torch.Generator, examples: int = 10) -> Tensor:
    """Draw texts that each have a rule of their own: it gives every letter a digit.

    A text says a letter, its digit, a letter, its digit, and so on: examples of its rule. Only an
    earlier example tells a digit.

    Args:
        count: how many texts.
        generator: of torch, on the CPU.
        examples: pairs of letter and digit in a text.

    Shape:
        result  (count, 2 * examples), ids that stand for `RULE_SYMBOLS`

    Raises: ValueError for a count below 1, or no examples.
    Source: chapters 12 and 14.
    """
    check_positive("rule_sequences", count=count, examples=examples)
    half = len(RULE_SYMBOLS) // 2
    rules = torch.randint(half, (count, half), generator=generator)
    letters = torch.randint(half, (count, examples), generator=generator)
    digits = half + rules.gather(1, letters)
    return torch.stack([letters, digits], dim=2).flatten(1)
