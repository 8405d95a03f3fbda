"""Linear attention and the gated delta rule: a state instead of a cache (chapter 19)."""

import torch
from einops import einsum
from torch import Tensor

from utils.validation import check_floating, check_shape


def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, recurrent: bool = False) -> Tensor:
    """Add up the values of earlier tokens, each times the dot product of query and key.

    Without a softmax the sum can be read in two orders. The matrix form weighs all values as
    attention does; its cost grows with n². The recurrence adds each k vᵀ to one state (d, dv), and
    a query reads it: it has the same size after any number of tokens. The results are equal.

    >>> q = k = v = torch.ones(1, 1, 3, 1)
    >>> linear_attention(q, k, v).flatten()  # 1, 1 + 1, 1 + 1 + 1
    tensor([1., 2., 3.])

    Args:
        q, k: queries and keys; Katharopoulos et al. take elu(q) + 1 and elu(k) + 1, and divide by
            what values of 1 would give.
        v: one value for each key.
        recurrent: compute token by token with a state, instead of with a matrix.

    Shape:
        q, k    (b, h, n, d)
        v       (b, h, n, dv)
        result  (b, h, n, dv)

    Raises: ValueError for shapes that do not fit, or integers.
    Source: Katharopoulos et al. 2020, sections 3.2 and 3.3; chapter 19.
    """
    _check("linear_attention", q, k, v)
    if not recurrent:
        scores = einsum(q, k, "b h i d, b h j d -> b h i j").tril()
        return einsum(scores, v, "b h i j, b h j dv -> b h i dv")
    state, outputs = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]), [v[:, :, :0]]
    for t in range(q.shape[2]):
        state = state + k[:, :, t, :, None] * v[:, :, t, None, :]
        outputs.append(_read(state, q[:, :, t, None]))
    return torch.cat(outputs, dim=2)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, *, recurrent: bool = False
) -> Tensor:
    """Linear attention with a state that forgets, and that corrects what it holds under a key.

    At each token the state (d, dv) is multiplied by `decay`. Then it changes towards giving v for
    k: beta times the difference between v and what it gives for k is added under k. With beta 1
    and keys of length 1 the old value is replaced; with beta 0 nothing is written.

    >>> k = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])[None, None]
    >>> v, ones = torch.tensor([[5.0], [7.0], [1.0]])[None, None], torch.ones(1, 1, 3)
    >>> q = k[:, :, :1].expand(-1, -1, 3, -1)
    >>> gated_delta_rule(q, k, v, ones, ones).flatten()  # the second value replaces the first
    tensor([5., 7., 7.])

    Args:
        q, k, v: queries, keys, and one value for each key. Qwen3-Next gives queries and keys of
            length 1, and divides queries by the root of d.
        decay: what is kept of the state at each token, above 0 and at most 1.
        beta: how much of the difference is written, usually from 0 to 1.
        recurrent: compute token by token with a state, instead of with matrices.

    Shape:
        q, k         (b, h, n, d)
        v            (b, h, n, dv)
        decay, beta  (b, h, n)
        result       (b, h, n, dv)

    Raises: ValueError for shapes that do not fit, integers, or a decay outside (0, 1].
    Source: Yang et al. 2024 (DeltaNet), section 3; Yang et al. 2025 (Gated DeltaNet), section 3.1;
        chapter 19.
    """
    _check("gated_delta_rule", q, k, v)
    dtype = v.dtype
    for name, tensor in (("decay", decay), ("beta", beta)):
        fix = "Each head has one number for each token."
        b, h, n, _ = q.shape
        check_shape("gated_delta_rule", name, tensor, "b h n", fix, b=b, h=h, n=n)
        check_floating("gated_delta_rule", name, tensor, f"Take {name}.float().")
    if not torch.compiler.is_compiling() and not ((decay > 0) & (decay <= 1)).all():
        raise ValueError(
            "gated_delta_rule: decay must lie above 0 and at most at 1, got values from "
            f"{decay.min().item():.4g} to {decay.max().item():.4g}. Take for example its sigmoid."
        )
    wide = torch.promote_types(dtype, torch.float32)  # half precision cannot solve the system
    q, k, v, decay, beta = (tensor.to(wide) for tensor in (q, k, v, decay, beta))
    if not recurrent:
        total = decay.log().cumsum(dim=-1)
        # what is left of key j's value at token i, (b, h, i, j); above the diagonal exp overflows
        left = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
        # each written value lacks what earlier ones give for its key: a triangular system
        among = einsum(beta[..., None] * k, k, "b h i d, b h j d -> b h i j") * left
        written = torch.linalg.solve_triangular(
            among.tril(-1), beta[..., None] * v, upper=False, unitriangular=True
        )
        scores = einsum(q, k, "b h i d, b h j d -> b h i j") * left
        return einsum(scores, written, "b h i j, b h j dv -> b h i dv").to(dtype)
    state, outputs = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]), [v[:, :, :0]]
    for t in range(q.shape[2]):
        state = decay[:, :, t, None, None] * state
        missing = beta[:, :, t, None, None] * (v[:, :, t, None] - _read(state, k[:, :, t, None]))
        state = state + k[:, :, t, :, None] * missing
        outputs.append(_read(state, q[:, :, t, None]))
    return torch.cat(outputs, dim=2).to(dtype)


def _check(where: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values that do not fit together."""
    check_shape(where, "q", q, "b h n d", "Split into heads first: 'b n (h d) -> b h n d'.")
    b, h, n, d = q.shape
    fix = "Queries, keys and values come from the same tokens."
    check_shape(where, "k", k, "b h n d", fix, b=b, h=h, n=n, d=d)
    check_shape(where, "v", v, "b h n dv", fix, b=b, h=h, n=n)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_floating(where, name, tensor, f"Take {name}.float().")


def _read(state: Tensor, vectors: Tensor) -> Tensor:
    """Return what a state (b, h, d, dv) gives for queries or keys (b, h, n, d)."""
    return einsum(vectors, state, "b h n d, b h d dv -> b h n dv")
