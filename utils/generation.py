"""Generate token by token: beam search, sampling, drafts, guidance (chapters 11, 12, 16, 18)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from utils.cache import KeyValueCache
from utils.masking import Mask
from utils.training import eval_mode
from utils.validation import check_floating, check_number, check_positive, check_real, check_shape


@torch.no_grad()
def beam_search(
    next_scores: Callable[[Tensor], Tensor],
    start_id: int,
    end_id: int,
    width: int,
    max_length: int,
    length_penalty: float = 0.0,
) -> list[tuple[list[int], float]]:
    """Find likely sequences by extending the best `width` beginnings step by step.

    All beginnings are one batch: each step calls the model once. A sequence that ends is set
    aside, and the others go on until none of them can still become one of the `width` best, or
    until `max_length`. Width 1 is greedy decoding.

    >>> coin = lambda ids: torch.tensor([0.0, 0.4, 0.6]).log().expand(len(ids), 3)
    >>> [ids for ids, score in beam_search(coin, start_id=0, end_id=2, width=2, max_length=4)]
    [[0, 2], [0, 1, 2]]

    Args:
        next_scores: gives for every beginning the log-probabilities of its next token.
        start_id: the token that every sequence begins with; it costs nothing.
        end_id: the token that ends a sequence.
        width: beginnings that are kept at each step.
        max_length: most tokens after the start, the end included.
        length_penalty: scores are divided by the number of tokens after the start, to this power;
            0 leaves the log-probability, 1 takes the mean of the tokens.

    Shape:
        next_scores  (w, t) -> (w, vocabulary), w at most `width`

    Returns:
        At most `width` pairs (ids, score), best first. `ids` begins with `start_id` and ends with
        `end_id`; only if no sequence ended within `max_length`, those that were cut off there.

    Raises: ValueError for bad numbers or ids, or scores that are not log-probabilities.
    Source: chapter 11; Wu et al. 2016, section 7 (another form of the length penalty).
    """
    check_positive("beam_search", width=width, max_length=max_length)
    check_positive("beam_search", least=0, start_id=start_id, end_id=end_id)
    fix = "Pass 0 for none, or for example 0.6."
    check_real("beam_search", "[0, 10]", fix, length_penalty=length_penalty)
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
    for name, id in (("start_id", start_id), ("end_id", end_id)):
        fix = "Pass an id of the vocabulary."
        check_number("beam_search", name, id, 0, step.shape[1] - 1, fix)
    if not step.max() <= 1e-4:  # a NaN is not below either
        raise ValueError(
            "beam_search: next_scores must return log-probabilities, at most 0, "
            f"got {step.max().item():.4g}. Apply log_softmax(dim=-1) to the scores."
        )
    return step


def next_probabilities(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Turn the logits of one position into the probabilities that a token is sampled with.

    Temperature comes first, then top-k, then top-p.

    Args:
        logits: what the model predicts for the next token.
        temperature: divides the logits: below 1 sharper, above 1 flatter; 0 keeps only the best.
        top_k: keep only the k most probable tokens.
        top_p: keep the fewest tokens, most probable first, whose probabilities reach p together.

    Shape:
        logits  (..., vocabulary)
        result  (..., vocabulary), each row sums to 1

    Raises: ValueError for a bad temperature, top_k or top_p, or logits that are not numbers.
    Source: Fan et al. 2018 (top-k), Holtzman et al. 2020 (top-p); chapter 12.
    """
    _check_choice("next_probabilities", temperature, top_k, top_p)
    compiling = torch.compiler.is_compiling()  # then it cannot look at values
    if not (logits.is_floating_point() and (compiling or logits.amax(-1).isfinite().all())):
        raise ValueError(
            "next_probabilities: logits must be floating point numbers, the largest of each row "
            f"finite, got {logits.max().item()} of {logits.dtype}. Look for a NaN in the model."
        )
    if temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    logits = logits / temperature
    order = logits.argsort(dim=-1, descending=True, stable=True)
    ranked = logits.gather(-1, order)
    if top_k is not None:
        rank = torch.arange(ranked.shape[-1], device=ranked.device)
        ranked = ranked.masked_fill(rank >= top_k, -torch.inf)
    ranked = ranked.softmax(dim=-1)
    if top_p is not None and top_p < 1:
        before = ranked.cumsum(dim=-1) - ranked  # what more probable tokens have together
        ranked = ranked.masked_fill(before >= top_p, 0.0)
        ranked = ranked / ranked.sum(dim=-1, keepdim=True)
    return torch.zeros_like(logits).scatter(-1, order, ranked)


def guided_logits(logits: Tensor, null_logits: Tensor, guidance: float) -> Tensor:
    """Return null_logits + guidance * (logits - null_logits): classifier-free guidance.

    At 0 the model ignores the caption, at 1 it is as trained, above 1 the caption counts more.

    Args:
        logits: of the next token, after prompts with captions.
        null_logits: of the next token, after the same prompts without their captions.
        guidance: the scale, at least 0. The paper's weight w is guidance - 1.

    Shape: logits, null_logits and result (b, vocabulary)
    Raises: ValueError for two shapes, logits that are integers, or a guidance below 0.
    Source: Ho and Salimans 2022, equation 6; chapter 18.
    """
    fix = "1 leaves the logits as they are, 2 or 3 are common."
    check_real("guided_logits", "[0, inf)", fix, guidance=guidance)
    b, v = logits.shape
    check_shape("guided_logits", "null_logits", null_logits, "b v", "One row for each.", b=b, v=v)
    for name, given in (("logits", logits), ("null_logits", null_logits)):
        check_floating("guided_logits", name, given, "Pass the last logits of a model.")
    return null_logits + guidance * (logits - null_logits)


@torch.no_grad()
def generate(
    model: nn.Module,
    ids: Tensor,
    steps: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    end_id: int | None = None,
    padding_id: int | None = None,
    seed: int | None = None,
    cache: bool = True,
    guidance: float = 1.0,
    null_ids: Tensor | None = None,
) -> Tensor:
    """Sample a token from the model's own probabilities, append it, and repeat.

    The model runs in eval mode, and its mode is put back. Tokens are sampled on the CPU, so a seed
    means the same on every device.

    Args:
        model: a causal model, `model(ids, cache=...)` -> logits (b, n, vocabulary); with a
            padding_id also `attn_mask` and `positions`, as `LanguageModel` takes them.
        ids: the prompts, all of one length.
        steps: how many tokens to generate.
        temperature, top_k, top_p: see `next_probabilities`; temperature 0 is greedy.
        end_id: the id that ends a sequence: from there on its row is filled with it.
        padding_id: the id that fills shorter prompts on their left: no token attends to it, and
            positions begin after it. None: every id is part of its prompt.
        seed: of the samples; None takes PyTorch's own generator.
        cache: keep keys and values; False computes everything again, with the same result.
        guidance: see `guided_logits`; any other scale than 1 needs null_ids.
        null_ids: the prompts without their captions, just as long.

    Shape:
        ids       (b, n), integers
        null_ids  (b, n), integers
        result    (b, n + steps), the prompt included

    Raises: ValueError for a bad prompt, a sequence that is too long, or a bidirectional model.
    Source: chapter 12; padding chapter 16; guidance chapter 18.
    """
    b, guided = len(ids), guidance != 1
    if guided:
        if null_ids is None:
            raise ValueError(
                "generate: with guidance null_ids must be the prompts without their captions, got "
                f"None and guidance={guidance}. Pass them, or leave guidance at 1."
            )
        check_shape("generate", "null_ids", null_ids, "b n", "As ids.", b=b, n=ids.shape[-1])
        ids = torch.cat([ids, null_ids])  # (2 b, n)
    real = _check_start("generate", model, ids, steps, padding_id)
    _check_choice("generate", temperature, top_k, top_p)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    held = KeyValueCache() if cache else None
    with eval_mode(model):
        ended = torch.zeros_like(ids[:b, 0], dtype=torch.bool)  # (b,)
        for _ in range(steps):
            start = 0 if held is None else held.length
            options = {} if held is None else {"cache": held}
            if real is not None:
                real = F.pad(real, (0, ids.shape[1] - real.shape[1]), value=True)
                positions = (real.cumsum(dim=1) - 1).clamp(min=0)
                options |= {"attn_mask": real[:, None, None, :], "positions": positions[:, start:]}
            logits = model(ids[:, start:], **options)[:, -1].float().cpu()  # (b, vocabulary)
            if guided:
                logits = guided_logits(logits[:b], logits[b:], guidance)
            choice = next_probabilities(logits, temperature, top_k, top_p)
            if temperature == 0:  # without random numbers
                drawn = choice.argmax(dim=-1, keepdim=True).to(ids)  # (b, 1)
            else:
                drawn = torch.multinomial(choice, 1, generator=generator).to(ids)
            if end_id is not None:
                fix = "Pass an id of the vocabulary."
                check_number("generate", "end_id", end_id, 0, logits.shape[-1] - 1, fix)
                drawn = drawn.masked_fill(ended[:, None], end_id)
                ended = ended | (drawn[:, 0] == end_id)
            drawn = drawn.repeat(len(ids) // b, 1)  # with guidance, both halves get one token
            ids = torch.cat([ids, drawn], dim=1)
    return ids[:b]


@torch.no_grad()
def speculative_generate(
    model: nn.Module,
    draft: nn.Module,
    ids: Tensor,
    steps: int,
    *,
    ahead: int = 4,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> Tensor:
    """Generate as `generate` does, with fewer calls of the model: a smaller one drafts for it.

    The draft proposes some tokens, and one call of the model checks them all. A token is accepted
    with probability min(1, p / q), where p is the model's probability and q the draft's. The first
    rejected one is sampled again from max(p - q, 0). So every sequence is exactly as probable as
    without a draft. Rows of a batch go on together, up to the first rejection in any of them.

    Args:
        model: the causal model whose sequences are wanted.
        draft: another causal model with the same vocabulary; the more it agrees, the fewer calls.
        ids, steps, seed: see `generate`.
        ahead: how many tokens the draft proposes before they are checked.
        temperature, top_k, top_p: see `next_probabilities`; of both models.

    Shape: as `generate`.
    Raises: ValueError for two vocabularies, `ahead` below 1, or as `generate`.
    Source: Leviathan et al. 2023, algorithm 1; Chen et al. 2023; chapter 16.
    """
    for each in (model, draft):
        _check_start("speculative_generate", each, ids, steps)
    _check_choice("speculative_generate", temperature, top_k, top_p)
    check_positive("speculative_generate", ahead=ahead)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    of_model, of_draft = KeyValueCache(), KeyValueCache()  # two, even if model and draft are one

    def read(each: nn.Module, cache: KeyValueCache, text: Tensor, last: int) -> Tensor:
        """Return the probabilities (b, last, vocabulary) after each of the last tokens."""
        logits = each(text[:, cache.length :], cache=cache)[:, -last:]
        return next_probabilities(logits.float().cpu(), temperature, top_k, top_p)

    wanted = ids.shape[1] + steps
    with eval_mode(model, draft):
        while (n := ids.shape[1]) < wanted:
            text, q = ids, []
            for _ in range(min(ahead, wanted - n - 1)):  # the model adds one of its own
                q.append(read(draft, of_draft, text, 1)[:, 0])
                drawn = torch.multinomial(q[-1], 1, generator=generator).to(ids)
                text = torch.cat([text, drawn], dim=1)
            p = read(model, of_model, text, len(q) + 1)  # (b, ahead + 1, vocabulary)
            if q and q[0].shape[-1] != p.shape[-1]:
                raise ValueError(
                    "speculative_generate: model and draft must have one vocabulary, "
                    f"got {p.shape[-1]} ids and {q[0].shape[-1]}. Train both with the same one."
                )
            text = _accepted(text, n, p, q, generator)
            for cache in (of_model, of_draft):
                cache.crop(min(cache.length, text.shape[1] - 1))  # rejected tokens are forgotten
            ids = text
    return ids


def _accepted(
    text: Tensor, n: int, p: Tensor, q: list[Tensor], generator: torch.Generator | None
) -> Tensor:
    """Return the ids up to the first rejection, and the token that is sampled there instead."""
    for at, guessed in enumerate(q):
        token = text[:, n + at, None].cpu()  # (b, 1)
        ratio = p[:, at].gather(-1, token) / guessed.gather(-1, token)
        kept = torch.rand(ratio.shape, generator=generator) < ratio  # (b, 1)
        if kept.all():
            continue
        more = (p[:, at] - guessed).clamp(min=0)  # (b, vocabulary)
        none = more.sum(dim=-1, keepdim=True) == 0  # p is q but for rounding
        rest = torch.where(kept | none, p[:, at], more)
        other = torch.multinomial(rest, 1, generator=generator)
        return torch.cat([text[:, : n + at], torch.where(kept, token, other).to(text)], dim=1)
    return torch.cat([text, torch.multinomial(p[:, -1], 1, generator=generator).to(text)], dim=1)


def _check_choice(where: str, temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Refuse numbers with which no token could be chosen."""
    fix = "0 always takes the best token, 1 leaves the probabilities as they are."
    check_real(where, "[0, inf)", fix, temperature=temperature)
    if top_k is not None:
        check_positive(where, top_k=top_k)
    if top_p is not None:
        check_real(where, "(0, 1]", "Pass for example 0.9, or None for all tokens.", top_p=top_p)


def _check_start(
    where: str, model: nn.Module, ids: Tensor, steps: int, padding_id: int | None = None
) -> Mask:
    """Refuse a prompt that the model cannot continue; return which ids (b, n) are no padding."""
    check_positive(where, steps=steps)
    check_shape(where, "ids", ids, "b n", "One prompt alone is ids[None].")
    n, real = ids.shape[1], None
    if not ids.numel():
        raise ValueError(
            f"{where}: there must be a prompt, got ids.shape={tuple(ids.shape)}. "
            "Begin with the id that begins every sequence, for example torch.tensor([[1]])."
        )
    if not getattr(model, "causal", True):
        raise ValueError(
            f"{where}: the model must be causal, got causal=False. "
            "A bidirectional model fills blanks; to generate, train one with causal=True."
        )
    if padding_id is not None:
        check_positive(where, least=0, padding_id=padding_id)
        ends = (ids[:, -1] == padding_id).nonzero()[:, 0].tolist()
        if ends:
            raise ValueError(
                f"{where}: padding must be on the left, so that all rows end with a token, "
                f"got row {ends[0]} that ends with padding_id={padding_id}. "
                "Fill with pad(sequences, padding_id, left=True)."
            )
        real = (ids != padding_id).cumsum(dim=1) > 0
        n = real.sum(dim=1).max().item()
    longest = getattr(model, "max_length", None)
    if longest is not None and n + steps - 1 > longest:  # the last token is never read
        raise ValueError(
            f"{where}: the model has positions for {longest} tokens, got a prompt of "
            f"{n} and steps={steps}, which needs {n + steps - 1}. "
            f"Shorten the prompt, or generate {max(longest - n + 1, 0)} steps."
        )
    return real
