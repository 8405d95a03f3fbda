"""Answers to the exercises of chapter 13, right and wrong."""

from exercise_bank import Bank, code, swap

GATE = "(activation(gate) * value) @ narrow.T"
SPEEDS = "base ** (-torch.arange(0, r, 2, dtype=x.dtype) / r)"
SHARED = 'repeat(heads, "b g n d -> b (g r) n d", r=r)'
MIX = "fraction * speeds + (1 - fraction) * speeds / factor"


def gated(line, *, cause=""):
    """The function of 13.2 that makes something else of gate and value."""
    return swap(GATE, line, cause=cause)


def shared(line, *, cause=""):
    """The layer of 13.5 that repeats its heads otherwise."""
    return swap(SHARED, line, cause=cause)


BANK = {
    "13.1": Bank(
        wrong=[
            swap("(16, 40)", "(40, 16)", cause="sizes-in-another-order"),
            swap("(16, 40)", "(48, 40)", cause="look-at-axes gd"),
            swap("(3, 6, 11, 8)", "(3, 11, 6, 8)", cause="sizes-in-another-order"),
            swap("(3, 2, 11, 8)", "(3, 6, 11, 8)", cause="look-at-axes g"),
            swap("(3, 2, 11, 8)", "(3, 11, 16)", cause="number-of-axes"),
            swap("2 * 5 * 3 * 2 * 11 * 8", "5 * 3 * 2 * 11 * 8", cause="keys-and-values-are-kept"),
            swap("2 * 5 * 3 * 2 * 11 * 8", "2 * 3 * 2 * 11 * 8", cause="every-layer-keeps"),
            swap("2 * 5 * 3 * 2 * 11 * 8", "3 * 2 * 11 * 8", cause="every-layer-keeps-both"),
            swap("2 * 5 * 3 * 2 * 11 * 8", "2 * 5 * 2 * 11 * 8", cause="every-text-keeps"),
            swap("2 * 5 * 3 * 2 * 11 * 8", "2 * 5 * 3 * 6 * 11 * 8", cause="queries-are-not-kept"),
            swap("2 * 5 * 3 * 2 * 11 * 8", "2 * 5 * 3 * 2 * 8", cause="every-token-keeps"),
        ],
        right=[
            swap("(16, 40)", "torch.Size([2 * 8, 40])"),
            swap("2 * 5 * 3 * 2 * 11 * 8", "torch.tensor(5280.0)"),
        ],
    ),
    "13.2": Bank(
        wrong=[
            gated("(gate * activation(value)) @ narrow.T", cause="gate-and-value-exchanged"),
            gated("(activation(gate) * activation(value)) @ narrow.T", cause="both-are-bent"),
            gated("(gate * value) @ narrow.T", cause="nothing-is-bent"),
            gated("activation(gate * value) @ narrow.T", cause="product-is-bent"),
            gated("(activation(gate) + value) @ narrow.T", cause="gate-is-added"),
            gated("activation(gate) @ narrow.T", cause="value-is-missing"),
            gated("value @ narrow.T", cause="gate-is-missing"),
            gated("(F.silu(gate) * value) @ narrow.T", cause="bend-is-always-silu"),
            gated("(torch.sigmoid(gate) * value) @ narrow.T", cause="bend-is-always-sigmoid"),
            gated("(gate * activation(gate) * value) @ narrow.T", cause="gate-times-itself"),
            swap(".chunk(2, dim=-1)", ".chunk(2, dim=1)", cause="raises"),
            code(
                """
                def gated(x, wide, narrow, activation):
                    inner = x @ wide.T
                    return (activation(inner[..., 0::2]) * inner[..., 1::2]) @ narrow.T
                """,
                cause="rows-taken-in-turn",
            ),
            gated("(activation(gate.detach()) * value) @ narrow.T", cause="part-of-graph-cut"),
        ],
        right=[
            code(
                """
                def gated(x, wide, narrow, activation):
                    m = wide.shape[0] // 2
                    gate, value = F.linear(x, wide[:m]), F.linear(x, wide[m:])
                    return F.linear(value * activation(gate), narrow)
                """
            ),
            code(
                """
                def gated(x, wide, narrow, activation):
                    inner = torch.einsum("bne,ke->bnk", x, wide)
                    gate, value = inner.split(narrow.shape[1], dim=-1)
                    return torch.einsum("bnm,em->bne", activation(gate) * value, narrow)
                """
            ),
        ],
    ),
    "13.3": Bank(
        wrong=[
            code(
                """
                def rotate_part(x, positions, r, base):
                    speeds = base ** (-torch.arange(0, r, 2, dtype=x.dtype) / r)
                    angles = positions[:, None, :, None] * speeds
                    first, second, rest = x[..., 0:r:2], x[..., 1:r:2], x[..., r:]
                    turned = torch.stack(
                        [
                            first * angles.cos() - second * angles.sin(),
                            first * angles.sin() + second * angles.cos(),
                        ],
                        dim=-1,
                    )
                    return torch.cat([turned.flatten(-2), rest], dim=-1)
                """,
                cause="turns-neighbours",
            ),
            code(
                """
                def rotate_part(x, positions, r, base):
                    speeds = base ** (-torch.arange(0, r, 2, dtype=x.dtype) / r)
                    angles = (positions[:, None, :, None] * speeds).repeat_interleave(2, -1)
                    part, rest = x[..., :r], x[..., r:]
                    first, second = part.chunk(2, dim=-1)
                    other = torch.cat([-second, first], dim=-1)
                    return torch.cat([part * angles.cos() + other * angles.sin(), rest], -1)
                """,
                cause="turns-halves-by-angles-of-neighbours",
            ),
            code(
                """
                def rotate_part(x, positions, r, base):
                    r = x.shape[-1]
                    speeds = base ** (-torch.arange(0, r, 2, dtype=x.dtype) / r)
                    angles = positions[:, None, :, None] * speeds
                    first, second = x.chunk(2, dim=-1)
                    return torch.cat(
                        [
                            first * angles.cos() - second * angles.sin(),
                            first * angles.sin() + second * angles.cos(),
                        ],
                        dim=-1,
                    )
                """,
                cause="turns-whole-head",
            ),
            swap("torch.cat([*rotated, rest]", "torch.cat(rotated", cause="rest-is-lost"),
            swap(
                "torch.cat([*rotated, rest]",
                "torch.cat([torch.stack(rotated, dim=-1).flatten(-2), rest]",
                cause="neighbours-written",
            ),
            swap(
                "x[..., : r // 2], x[..., r // 2 : r], x[..., r:]",
                "x[..., 0:r:2], x[..., 1:r:2], x[..., r:]",
                cause="neighbours-read",
            ),
            swap(
                "first * angles.sin() + second * angles.cos()",
                "second * angles.cos() - first * angles.sin()",
                cause="sign-is-wrong",
            ),
            swap("cos() - second", "cos() + second", cause="sign-is-wrong"),
            swap(SPEEDS, SPEEDS.replace("/ r)", "/ (r // 2))"), cause="exponent-over-pairs"),
            swap(SPEEDS, SPEEDS.replace("0, r, 2", "2, r + 1, 2"), cause="pairs-counted-from-one"),
            swap(
                SPEEDS, SPEEDS.replace("/ r)", "/ x.shape[-1])"), cause="exponent-over-all-numbers"
            ),
            swap(SPEEDS, SPEEDS.replace("0, r, 2", "r // 2"), cause="exponent-without-two"),
            swap(SPEEDS, SPEEDS.replace("(-torch", "(torch"), cause="speeds-grow"),
            swap(SPEEDS, SPEEDS.replace("base", "10_000.0"), cause="base-is-fixed"),
            swap("positions[:, None", "(positions + 1)[:, None", cause="positions-start-at-one"),
            swap("positions[:, None", "positions[:1, None", cause="positions-of-first-text"),
            swap(
                "first * angles.cos() - second * angles.sin(),\n"
                "        first * angles.sin() + second * angles.cos()",
                "first * angles.cos() + second * angles.sin(),\n"
                "        second * angles.cos() - first * angles.sin()",
                cause="turns-backwards",
            ),
            swap(
                "positions[:, None, :, None]",
                "torch.arange(x.shape[2])[None, None, :, None]",
                cause="positions-not-used",
            ),
            swap(
                "x[..., : r // 2], x[..., r // 2 : r], x[..., r:]",
                "x[..., -r : -r // 2], x[..., -r // 2 :], x[..., :-r]",
                cause="values-differ",
            ),
        ],
        right=[
            code(
                """
                def rotate_part(x, positions, r, base):
                    pairs = torch.arange(r // 2, dtype=x.dtype)
                    speeds = base ** (-2 * pairs / r)
                    angles = torch.einsum("bn,p->bnp", positions.to(x.dtype), speeds)
                    angles = torch.cat([angles, angles], dim=-1)[:, None]
                    part = x[..., :r]
                    other = torch.cat([-part[..., r // 2 :], part[..., : r // 2]], dim=-1)
                    return torch.cat([part * angles.cos() + other * angles.sin(), x[..., r:]], -1)
                """
            ),
            code(
                """
                def rotate_part(x, positions, r, base):
                    speeds = 1 / base ** (torch.arange(0, r, 2, dtype=x.dtype) / r)
                    angles = positions[:, None, :, None] * speeds
                    arrows = torch.complex(x[..., : r // 2], x[..., r // 2 : r].contiguous())
                    arrows = arrows * torch.polar(torch.ones_like(angles), angles)
                    return torch.cat([arrows.real, arrows.imag, x[..., r:]], dim=-1)
                """
            ),
            code(
                """
                def rotate_part(x, positions, r, base):
                    inverse = 1.0 / (base ** (torch.arange(0, r, 2, dtype=torch.int64).float() / r))
                    angles = (inverse[None, :, None] @ positions[:, None, :].float()).mT
                    angles = torch.cat((angles, angles), dim=-1)[:, None]
                    part, rest = x[..., :r], x[..., r:]
                    other = torch.cat((-part[..., r // 2 :], part[..., : r // 2]), dim=-1)
                    part = part * angles.cos().to(x.dtype) + other * angles.sin().to(x.dtype)
                    return torch.cat((part, rest), dim=-1)
                """
            ),
        ],
        equivalent={
            "speeds = base ** (-torch.arange(0, r, 2, dtype=x.dtype) / r) => "
            "speeds = base ** (-torch.arange(0, r, 2) / r)": "float32 is what the check uses",
        },
    ),
    "13.4": Bank(
        wrong=[
            swap(
                'two p) e -> (h p two) e", h=h',
                'two p) e -> (h p two) e", h=1',
                cause="values-differ",
            ),
            code(
                """
                def to_neighbours(q_weight, k_weight, norm_weight, h, g):
                    q_weight = rearrange(q_weight, "(h p two) e -> (h two p) e", h=h, two=2)
                    k_weight = rearrange(k_weight, "(g p two) e -> (g two p) e", g=g, two=2)
                    return q_weight, k_weight, rearrange(norm_weight, "(p two) -> (two p)", two=2)
                """,
                cause="converts-to-halves",
            ),
            swap(
                'rearrange(norm_weight, "(two p) -> (p two)", two=2)',
                "norm_weight",
                cause="norm-is-forgotten",
            ),
            swap(
                'k_weight = rearrange(k_weight, "(g two p) e -> (g p two) e", g=g, two=2)\n',
                "k_weight = k_weight * 1\n",
                cause="keys-are-forgotten",
            ),
            swap(
                'q_weight = rearrange(q_weight, "(h two p) e -> (h p two) e", h=h, two=2)\n',
                "q_weight = q_weight * 1\n",
                cause="queries-are-forgotten",
            ),
            swap(
                '"(two p) -> (p two)"', '"(p two) -> (two p)"', cause="norm-converted-the-other-way"
            ),
            code(
                """
                def to_neighbours(q_weight, k_weight, norm_weight, h, g):
                    def one(rows):
                        first, second = rows.chunk(2)
                        return torch.stack([first, second], dim=1).flatten(0, 1)

                    return one(q_weight), one(k_weight), one(norm_weight)
                """,
                cause="heads-not-told-apart",
            ),
            code(
                """
                def to_neighbours(q_weight, k_weight, norm_weight, h, g):
                    def columns(rows):
                        return rearrange(rows, "k (two p) -> k (p two)", two=2)

                    norm_weight = rearrange(norm_weight, "(two p) -> (p two)", two=2)
                    return columns(q_weight), columns(k_weight), norm_weight
                """,
                cause="columns-are-sorted",
            ),
        ],
        right=[
            code(
                """
                def to_neighbours(q_weight, k_weight, norm_weight, h, g):
                    def one(rows, heads):
                        rows = rows.unflatten(0, (heads, 2, -1)).transpose(1, 2)
                        return rows.flatten(0, 2)

                    return one(q_weight, h), one(k_weight, g), one(norm_weight, 1)
                """
            ),
            code(
                """
                def to_neighbours(q_weight, k_weight, norm_weight, h, g):
                    d = len(norm_weight)
                    order = torch.arange(d).view(2, d // 2).T.flatten()
                    in_q = torch.cat([order + d * head for head in range(h)])
                    in_k = torch.cat([order + d * head for head in range(g)])
                    return q_weight[in_q], k_weight[in_k], norm_weight[order]
                """
            ),
        ],
    ),
    "13.5": Bank(
        wrong=[
            shared("heads.repeat(1, r, 1, 1)", cause="heads-tiled"),
            shared('repeat(heads, "b g n d -> b (r g) n d", r=r)', cause="heads-tiled"),
            shared("heads[:, :1].expand(-1, self.h, -1, -1)", cause="first-head-for-all"),
            shared("heads[:, -1:].expand(-1, self.h, -1, -1)", cause="last-head-for-all"),
            shared(
                "heads.mean(dim=1, keepdim=True).expand(-1, self.h, -1, -1)",
                cause="mean-of-heads",
            ),
            shared("heads.flip(1).repeat_interleave(r, dim=1)", cause="groups-in-reverse"),
            swap(
                f"k, v = ({SHARED} for heads in (k, v))",
                "k, v = k.repeat_interleave(r, dim=1), v.repeat(1, r, 1, 1)",
                cause="values-tiled",
            ),
            swap(
                f"k, v = ({SHARED} for heads in (k, v))",
                "k, v = k.repeat(1, r, 1, 1), v.repeat_interleave(r, dim=1)",
                cause="keys-tiled",
            ),
            swap('b n (h d)"))', 'b n (d h)"))', cause="joined-interleaved"),
            swap(
                "attention(q, k, v", "attention(q, k, v, is_causal=True", cause="attends-causally"
            ),
            swap("attention(q, k, v", "attention(q, k, v, scale=1.0", cause="scores-not-divided"),
            code(
                """
                class Healthy(Buggy):
                    def forward(self, x):
                        q = rearrange(self.q_proj(x), "b n (h d) -> b h n d", h=self.h)
                        k = rearrange(self.k_proj(x), "b n (g d) -> b g n d", g=self.g)
                        v = rearrange(self.v_proj(x), "b n (g d) -> b g n d", g=self.g)
                        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
                        g = self.g
                        return self.out_proj(rearrange(mixed, "b (g r) n d -> b n (r g d)", g=g))
                """,
                cause="joined-in-other-order",
            ),
        ],
        right=[
            shared("heads.repeat_interleave(r, dim=1)"),
            code(
                """
                class Healthy(Buggy):
                    def forward(self, x):
                        q = rearrange(self.q_proj(x), "b n (h d) -> b h n d", h=self.h)
                        k = rearrange(self.k_proj(x), "b n (g d) -> b g n d", g=self.g)
                        v = rearrange(self.v_proj(x), "b n (g d) -> b g n d", g=self.g)
                        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
                        return self.out_proj(rearrange(mixed, "b h n d -> b n (h d)"))
                """
            ),
            code(
                """
                class Healthy(Buggy):
                    def forward(self, x):
                        r = self.h // self.g
                        q = rearrange(self.q_proj(x), "b n (g r d) -> b g r n d", g=self.g, r=r)
                        k = rearrange(self.k_proj(x), "b n (g d) -> b g 1 n d", g=self.g)
                        v = rearrange(self.v_proj(x), "b n (g d) -> b g 1 n d", g=self.g)
                        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
                        return self.out_proj(rearrange(weights @ v, "b g r n d -> b n (g r d)"))
                """
            ),
        ],
    ),
    "13.6": Bank(
        wrong=[
            swap(MIX, "speeds / factor", cause="all-pairs-slower"),
            swap(MIX, "speeds * 1", cause="no-pair-slower"),
            swap("    fraction = fraction.clamp(0, 1)\n", "", cause="share-outside-0-and-1"),
            swap("fraction.clamp(0, 1)", "fraction.clamp(max=1)", cause="share-not-below-0"),
            swap("fraction.clamp(0, 1)", "fraction.clamp(min=0)", cause="share-not-above-1"),
            swap(
                MIX,
                "(1 - fraction) * speeds + fraction * speeds / factor",
                cause="share-turned-around",
            ),
            swap("fraction.clamp(0, 1)", "(fraction > 0).to(speeds)", cause="no-pairs-between"),
            swap(
                "fraction.clamp(0, 1)", "(fraction >= 1).to(speeds)", cause="no-pairs-between-high"
            ),
            swap("2 * math.pi / speeds", "1 / speeds", cause="wavelength-without-2-pi"),
            swap("2 * math.pi / speeds", "2 * math.pi * speeds", cause="no-pair-slower"),
            swap(
                "(trained / wavelengths - low) / (high - low)",
                "(trained / wavelengths - high) / (low - high)",
                cause="share-turned-around",
            ),
            swap("speeds / factor", "speeds * factor", cause="multiplied-by-factor"),
            swap("trained / wavelengths", "wavelengths / trained", cause="ratio-inverted"),
            swap(MIX, "2 * math.pi / (" + MIX + ")", cause="returns-wavelengths"),
            swap(
                MIX,
                "2 * math.pi / (fraction * wavelengths + (1 - fraction) * wavelengths * factor)",
                cause="wavelengths-are-mixed",
            ),
            code(
                """
                def long_speeds(speeds, factor, low, high, trained):
                    result = []
                    for speed in speeds:
                        fraction = (trained * speed / (2 * math.pi) - low) / (high - low)
                        fraction = fraction.clamp(0, 1)
                        result.append(fraction * speed + (1 - fraction) * speed / factor)
                    return torch.stack(result)
                """,
                cause="loops-and-may-not",
            ),
        ],
        right=[
            code(
                """
                def long_speeds(speeds, factor, low, high, trained):
                    waves = 2 * math.pi / speeds
                    fraction = (trained / waves - low) / (high - low)
                    mixed = fraction * speeds + (1 - fraction) * speeds / factor
                    slow = torch.where(waves > trained / low, speeds / factor, mixed)
                    return torch.where(waves < trained / high, speeds, slow)
                """
            ),
            code(
                """
                def long_speeds(speeds, factor, low, high, trained):
                    turns = trained * speeds / (2 * math.pi)
                    fraction = ((turns - low) / (high - low)).clamp(min=0.0).clamp(max=1.0)
                    return torch.lerp(speeds / factor, speeds, fraction)
                """
            ),
            code(
                """
                def long_speeds(speeds, factor, low, high, trained):
                    turns = trained * speeds / (2 * math.pi)
                    fast, slow = turns > high, turns < low
                    between = ~fast & ~slow
                    new = torch.zeros(len(speeds))
                    new[fast], new[slow] = speeds[fast], speeds[slow] / factor
                    kept = (turns[between] - low) / (high - low)
                    new[between] = speeds[between] * (kept + (1 - kept) / factor)
                    return new
                """
            ),
        ],
    ),
}
