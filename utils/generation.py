"""Write a sequence token by token (chapters 11 and 12)."""

from collections.abc import Callable

import torch
from torch import Tensor

from utils.shapes import check_positive


@torch.no_grad()
def beam_search(
    next_scores: Callable[[Tensor], Tensor],
    start_id: int,
    end_id: int,
    width: int,
    max_length: int,
    length_penalty: float = 0.0,
) -> list[tuple[list[int], float]]:
    """Find likely sequences by carrying the best `width` beginnings from step to step.

    All beginnings are one batch: each step calls the model once. A sequence that ends is kept
    aside, whatever comes later, and the others go on. The search stops when none of them can still
    become one of the `width` best, or at `max_length`. Width 1 is greedy decoding.

    Args:
        next_scores: gives for every beginning the log-probabilities of its next token.
        start_id: the token that every sequence begins with; it costs nothing.
        end_id: the token that ends a sequence.
        width: beginnings that are carried on.
        max_length: most tokens after the start, the end among them.
        length_penalty: scores are divided by the number of tokens after the start, to this power;
            0 leaves the log-probability, 1 makes it the mean of a token, so longer ones win.

    Shape:
        next_scores  (w, t) -> (w, vocabulary), w at most `width`

    Returns:
        At most `width` pairs (ids, score), best first. `ids` begins with `start_id` and ends with
        `end_id`; only if no sequence ended within `max_length`, those that were cut off there.

    Raises:
        ValueError: a width or max_length below 1, a length_penalty below 0, an id outside the
            vocabulary, or scores that are no (w, vocabulary) log-probabilities.

    Source: chapter 11; Wu et al. 2016, section 7 (another form of the length penalty).
    """
    check_positive("beam_search", width=width, max_length=max_length)
    if not 0 <= length_penalty < float("inf"):
        raise ValueError(
            "beam_search: length_penalty must be a number of at least 0, "
            f"got length_penalty={length_penalty}. Pass 0 for none, or for example 0.6."
        )
    beams = torch.tensor([[start_id]])  # (w, t)
    scores = torch.zeros(1)  # (w,), the log-probability of each beginning
    ended: list[tuple[list[int], float]] = []
    for length in range(1, max_length + 1):
        step = _checked(next_scores(beams), beams, start_id, end_id).to(scores)
        longer = (scores[:, None] + step).flatten()  # (w * vocabulary,)
        best = longer.sort(descending=True, stable=True)
        chosen = best.indices[:width][best.values[:width] > -torch.inf]
        vocabulary = step.shape[1]
        parents, tokens = chosen // vocabulary, chosen % vocabulary
        beams = torch.cat([beams[parents], tokens[:, None]], dim=1)
        scores = longer[chosen]
        for ids, score in zip(beams[tokens == end_id], scores[tokens == end_id], strict=True):
            ended.append((ids.tolist(), score.item() / length**length_penalty))
        ended = sorted(ended, key=lambda pair: -pair[1])[:width]
        beams, scores = beams[tokens != end_id], scores[tokens != end_id]
        # A log-probability only falls, and no divisor is larger than that of max_length.
        hope = scores.max() / max_length**length_penalty if len(scores) else -torch.inf
        if not len(scores) or (len(ended) == width and hope <= ended[-1][1]):
            break
    if ended:
        return ended
    return [
        (ids, score / length**length_penalty)
        for ids, score in zip(beams.tolist(), scores.tolist(), strict=True)
    ]


def _checked(step: Tensor, beams: Tensor, start_id: int, end_id: int) -> Tensor:
    """Return the scores of a step after checking that they are log-probabilities."""
    if step.ndim != 2 or len(step) != len(beams):
        raise ValueError(
            "beam_search: next_scores must return (w, vocabulary) for ids (w, t), got "
            f"{tuple(step.shape)} for ids {tuple(beams.shape)}. Take the last position, [:, -1]."
        )
    for name, number in (("start_id", start_id), ("end_id", end_id)):
        if not 0 <= number < step.shape[1]:
            raise ValueError(
                f"beam_search: {name} must be from 0 to {step.shape[1] - 1}, "
                f"got {name}={number}. Pass an id of the vocabulary."
            )
    if not step.max() <= 1e-4:  # a NaN is not below either
        raise ValueError(
            "beam_search: next_scores must return log-probabilities, at most 0, "
            f"got {step.max().item():.4g}. Apply log_softmax(dim=-1) to the scores."
        )
    return step
