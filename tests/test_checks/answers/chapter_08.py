"""Answers to the exercises of chapter 08, right and wrong."""

from exercise_bank import Bank, code, swap


def healthy(body, cause=""):
    """The block with another body of forward."""
    lines = "\n".join(f"        {line}" for line in body)
    return code(f"class Healthy(Buggy):\n    def forward(self, x):\n{lines}", cause=cause)


BANK = {
    "08.1": Bank(
        wrong=[
            swap("(7, 3, 3)", "(3, 7, 7)", cause="that-is-with-batch-first"),
            swap("(3, 7, 7)", "(7, 3, 3)", cause="that-is-without-batch-first"),
            swap("(3, 7, 7)", "(3, 4, 7, 7)", cause="number-of-axes"),
            swap("(7, 3, 3)", "(3, 7, 3)", cause="sizes-in-another-order"),
            swap("(3, 7, 7)", "(3, 7, 24)", cause="look-at-axes j"),
            swap("(3, 7, 7)", "(7, 7)", cause="number-of-axes"),
        ],
        right=[
            swap("(3, 7, 7)", "[3, 7, 7]"),
            swap("(7, 3, 3)", "torch.Size((7, 3, 3))"),
        ],
    ),
    "08.2": Bank(
        wrong=[
            swap(
                "range(1, tokens.shape[1])",
                "[tokens.shape[1] - 1]",
                cause="test-last-place-alone",
            ),
            swap("range(1, tokens.shape[1])", "[1]", cause="test-first-place-alone"),
            swap(
                "range(1, tokens.shape[1])",
                "range(2, tokens.shape[1])",
                cause="test-begins-at-two",
            ),
            swap(
                "range(1, tokens.shape[1])",
                "range(1, tokens.shape[1] - 1)",
                cause="test-last-place-missing",
            ),
            swap("tokens.clone()", "tokens", cause="tokens-changed"),
            swap(
                "torch.randn_like(changed[:, start:])",
                "changed[:, start:] + 1",
                cause="test-adds-same-number",
            ),
            swap(
                "torch.randn_like(changed[:, start:])",
                "changed[:, start:] * 2",
                cause="test-only-scales",
            ),
            swap(
                "changed[:, start:] = torch.randn_like(changed[:, start:])",
                "changed[:, start:, 0] += 1",
                cause="test-first-number-of-token",
            ),
            swap(
                "changed[:, start:] = torch.randn_like(changed[:, start:])",
                "changed[:, start:, -1] += 1",
                cause="test-last-number-of-token",
            ),
            swap(
                "torch.randn_like(changed[:, start:])",
                "changed[:, start:].flip(1)",
                cause="test-reorders",
            ),
            swap(
                "changed[:, start:] = torch.randn_like(changed[:, start:])",
                "changed[start:] = torch.randn_like(changed[start:])",
                cause="test-changes-samples-not-tokens",
            ),
            swap("    return True\n", "    return False\n", cause="test-always-false"),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for start in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, start:] = torch.randn_like(other[:, start:])
                        moved = (run(other) - before)[:, :start].mean(dim=-1)
                        if (moved.abs() > 1e-6).any():
                            return False
                    return True
                """,
                cause="test-sums-numbers",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for start in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, start:] = torch.randn_like(other[:, start:])
                        if not torch.allclose(run(other)[0, :start], before[0, :start]):
                            return False
                    return True
                """,
                cause="test-first-sample-alone",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for start in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, start:] = torch.randn_like(other[:, start:])
                        if not torch.allclose(run(other)[:, :start, 0], before[:, :start, 0]):
                            return False
                    return True
                """,
                cause="test-first-number-of-result",
            ),
            swap("[:, :start]", "[:, : start + 1]", cause="test-includes-changed"),
            swap("before[:, :start]", "before[:, start:]", cause="calls-blind-layer-seeing False"),
            swap("if not torch", "if torch", cause="test-turned-round"),
            swap("atol=1e-6", "atol=1e-1", cause="test-too-tolerant"),
            swap(
                "changed[:, start:] = torch.randn_like(changed[:, start:])",
                "changed[:, start:] = changed[:, start:]",
                cause="test-always-true",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    return True
                """,
                cause="test-always-true",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    return run(tokens).shape == tokens.shape
                """,
                cause="test-always-true",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    return torch.allclose(run(tokens)[:, :1], run(tokens[:, :1]))
                """,
                cause="raises IndexError",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    changed = tokens.clone()
                    changed[1:, -1] += 1.0
                    return torch.allclose(run(changed)[:, :-1], run(tokens)[:, :-1])
                """,
                cause="calls-seeing-layer-blind True",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for start in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, start] = torch.randn_like(other[:, start])
                        if not torch.allclose(run(other)[:, start - 1], before[:, start - 1]):
                            return False
                    return True
                """,
                cause="test-one-token-one-before",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for start in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, start:] = torch.randn_like(other[:, start:])
                        if not torch.equal(run(other)[:, start:], before[:, start:]):
                            return False
                    return True
                """,
                cause="test-compares-later",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for start in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[start:] = torch.randn_like(other[start:])
                        if not torch.allclose(run(other)[:start], before[:start]):
                            return False
                    return True
                """,
                cause="test-changes-samples",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for start in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, start:] = torch.randn_like(other[:, start:])
                        if (run(other)[:, :start] != before[:, :start]).all():
                            return False
                    return True
                """,
                cause="test-all-must-move",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for start in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, start:] = torch.randn_like(other[:, start:])
                        if torch.allclose(run(other)[:, :start], before[:, :start]):
                            return True
                    return False
                """,
                cause="test-one-place-is-enough",
            ),
        ],
        right=[
            code(
                """
                def past_is_blind(run, tokens):
                    for i in range(tokens.shape[1] - 1):
                        x = tokens.clone().requires_grad_()
                        out = run(x)[:, i]
                        (slope,) = torch.autograd.grad((out * torch.randn_like(out)).sum(), x)
                        if slope[:, i + 1 :].abs().max() > 0:
                            return False
                    return True
                """
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    tokens = tokens.clone().requires_grad_()
                    results = run(tokens)
                    for i in range(tokens.shape[1] - 1):
                        for number in results[:, i].flatten():
                            if not number.requires_grad:
                                continue
                            (slope,) = torch.autograd.grad(number, tokens, retain_graph=True)
                            if slope[:, i + 1 :].abs().max() > 1e-9:
                                return False
                    return True
                """
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    blind = []
                    for last in range(tokens.shape[1] - 1):
                        late = torch.arange(tokens.shape[1]) > last
                        other = torch.where(late[:, None], tokens + torch.rand_like(tokens), tokens)
                        moved = (run(other) - run(tokens)).abs().amax(dim=(0, 2))
                        blind.append(moved[: last + 1].max() < 1e-7)
                    return torch.stack(blind).all()
                """
            ),
        ],
        equivalent={
            "if not torch.allclose(run(changed)[:, :start], before[:, :start], atol=1e-6): => "
            "if not torch.allclose(run(changed)[:, :start], before[:, :start]):": "the default "
            "tolerance does as well",
            "if not torch.allclose(run(changed)[:, :start], before[:, :start], atol=1e-6): => "
            "if not torch.allclose(run(changed)[:, :start], before[:, :start], atol=2e-06):": "a "
            "tolerance twice as large",
            "if not torch.allclose(run(changed)[:, :start], before[:, :start], atol=1e-6): => "
            "if not torch.allclose(before[:, :start], run(changed)[:, :start], atol=1e-6):": "the "
            "comparison is the same from both sides",
            "for start in range(1, tokens.shape[1]): => "
            "for start in range(0, tokens.shape[1]):": "at start 0 no result is compared",
        },
    ),
    "08.3": Bank(
        wrong=[
            code("Healthy = Buggy", cause="healthy-is-sick"),
            healthy(["return super().forward(x)"], "healthy-is-sick"),
            healthy(
                ["x = x + self.norm1(self.attn(x))", "return x + self.norm2(self.mlp(x))"],
                "norm-of-part-is-added",
            ),
            healthy(
                ["x = x + self.attn(self.norm1(x))", "return self.norm2(x + self.mlp(x))"],
                "first-half-pre-norm",
            ),
            healthy(
                ["x = self.norm1(x + self.attn(x))", "return x + self.mlp(self.norm2(x))"],
                "second-half-pre-norm",
            ),
            healthy(
                [
                    "x = self.norm1(x + self.attn(self.norm1(x)))",
                    "return self.norm2(x + self.mlp(self.norm2(x)))",
                ],
                "pre-norm-and-post-norm",
            ),
            healthy(
                [
                    "x = x + self.attn(self.norm1(x))",
                    "x = x + self.mlp(self.norm2(x))",
                    "return self.norm2(x)",
                ],
                "pre-norm-normed-at-the-end",
            ),
            healthy(
                [
                    "x = self.norm1(x)",
                    "x = x + self.attn(x)",
                    "x = self.norm2(x)",
                    "return x + self.mlp(x)",
                ],
                "adds-the-normed-stream",
            ),
            healthy(
                ["x = self.norm1(x + self.attn(x))", "return x + self.mlp(x)"],
                "second-sum-not-normed",
            ),
            healthy(
                ["x = x + self.attn(x)", "return self.norm2(x + self.mlp(x))"],
                "first-sum-not-normed",
            ),
            healthy(["x = x + self.attn(x)", "return x + self.mlp(x)"], "no-norm-at-all"),
            swap("self.norm2(x + ", "self.norm1(x + ", cause="norm1-in-both-halves"),
            healthy(
                ["x = self.norm2(x + self.attn(x))", "return self.norm1(x + self.mlp(x))"],
                "norms-changed-places",
            ),
            healthy(
                ["x = self.norm2(x + self.mlp(x))", "return self.norm1(x + self.attn(x))"],
                "feed-forward-first",
            ),
            swap("return self.norm2(x + self.mlp(x))", "return x", cause="half-missing"),
            swap(
                "self.norm2(x + self.mlp(x))",
                "self.norm2(self.mlp(x))",
                cause="second-stream-not-added",
            ),
            swap(
                "self.norm1(x + self.attn(x))",
                "self.norm1(self.attn(x))",
                cause="first-stream-not-added",
            ),
            healthy(
                ["y = self.norm1(x + self.attn(x))", "return self.norm2(x + self.mlp(y))"],
                "second-adds-the-start",
            ),
            healthy(
                ["y = self.norm1(x + self.attn(x))", "return self.norm2(y + self.mlp(x))"],
                "feeds-on-the-start",
            ),
            healthy(["return x"], "returns-x-as-it-came"),
            healthy(
                ["x += self.attn(x)", "return self.norm2(self.norm1(x) + self.mlp(self.norm1(x)))"],
                "changed-in-place",
            ),
            code(
                """
                from utils.encoder import EncoderBlock


                class Healthy(EncoderBlock):
                    def __init__(self, *sizes, **named):
                        super().__init__(*sizes, **named, norm_first=False)
                """,
                cause="calls-shortcut EncoderBlock",
            ),
            code(
                """
                class Healthy(Buggy):
                    def forward(self, x):
                        x = self.norm1(self.attn(x)) + x
                        return self.norm2(x + self.mlp(x))
                """,
                cause="norm-of-first-part-is-added",
            ),
            code(
                """
                class Healthy(Buggy):
                    def forward(self, x):
                        y = self.attn(x)
                        return self.norm2(self.norm1(x + y) + self.mlp(y))
                """,
                cause="feeds-on-attention-alone",
            ),
            code(
                """
                class Healthy(Buggy):
                    def forward(self, x):
                        x = x + self.attn(x)
                        x = x + self.mlp(x)
                        return self.norm2(self.norm1(x))
                """,
                cause="both-norms-at-the-end",
            ),
            code(
                """
                class Healthy(Buggy):
                    def forward(self, x):
                        return self.norm2(self.norm1(x + self.attn(x) + self.mlp(x)))
                """,
                cause="one-sum-of-both-parts",
            ),
            code(
                """
                class Healthy(Buggy):
                    def forward(self, x):
                        x = self.norm1(x + self.attn(self.norm1(x)))
                        return self.norm2(x + self.mlp(x))
                """,
                cause="first-norm-twice",
            ),
        ],
        right=[
            healthy(
                [
                    "weight, bias = self.norm1.weight, self.norm1.bias",
                    "total = torch.add(x, self.attn(x))",
                    "stream = F.layer_norm(total, x.shape[-1:], weight, bias)",
                    "return self.norm2(stream.add(self.mlp(stream)))",
                ]
            ),
            healthy(
                [
                    "for norm, part in ((self.norm1, self.attn), (self.norm2, self.mlp)):",
                    "    x = norm(part(x) + x)",
                    "return x",
                ]
            ),
        ],
    ),
    "08.4": Bank(
        wrong=[
            code(
                """
                def next_word_loss(logits, words):
                    return F.cross_entropy(logits[:-1].flatten(0, 1), words[1:].flatten())
                """,
                cause="shift-along-batch",
            ),
            code(
                """
                def next_word_loss(logits, words):
                    return F.nll_loss(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())
                """,
                cause="scores-for-log-chances",
            ),
            code(
                """
                def next_word_loss(logits, words):
                    chances = logits[:, :-1].softmax(dim=-1).flatten(0, 1)
                    return F.nll_loss(chances, words[:, 1:].flatten())
                """,
                cause="chances-for-log-chances",
            ),
            code(
                """
                def next_word_loss(logits, words):
                    return F.cross_entropy(logits.flatten(0, 1)[:-1], words.flatten()[1:])
                """,
                cause="shift-in-one-row",
            ),
            code(
                """
                def next_word_loss(logits, words):
                    return F.cross_entropy(logits[:, :-2].flatten(0, 1), words[:, 2:].flatten())
                """,
                cause="two-places-on",
            ),
            code(
                """
                def next_word_loss(logits, words):
                    total = F.cross_entropy(
                        logits[:, :-1].flatten(0, 1), words[:, 1:].flatten(), reduction="sum"
                    )
                    return total / words.numel()
                """,
                cause="divided-by-all-places",
            ),
            code("next_word_loss = buggy_loss", cause="judged-after-reading"),
            swap("logits[:, :-1]", "logits[:, 1:]", cause="first-word-left-out"),
            swap("words[:, 1:]", "words[:, :-1]", cause="last-word-left-out"),
            code(
                """
                def next_word_loss(logits, words):
                    return F.cross_entropy(logits[:, 1:].flatten(0, 1), words[:, :-1].flatten())
                """,
                cause="pays-for-word-before",
            ),
            code(
                """
                def next_word_loss(logits, words):
                    return F.cross_entropy(logits.flatten(0, 1), words.roll(-1, dims=1).flatten())
                """,
                cause="roll-goes-round",
            ),
            swap(
                "words[:, 1:].flatten())",
                'words[:, 1:].flatten(), reduction="sum")',
                cause="loss-is-sum",
            ),
            swap(
                "words[:, 1:].flatten())",
                'words[:, 1:].flatten(), reduction="none")',
                cause="loss-is-not-averaged",
            ),
            swap(
                "logits[:, :-1].flatten(0, 1)",
                "logits[:, :-1].flatten(0, 1).softmax(dim=-1)",
                cause="softmax-twice",
            ),
            swap("logits[:, :-1].flatten(0, 1)", "logits[:, :-1]", cause="raises"),
            swap(
                "return F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())",
                "return F.cross_entropy("
                "logits[:, :-1].flatten(0, 1), words[:, 1:].flatten()).detach()",
                cause="no-gradient logits",
            ),
            code(
                """
                def next_word_loss(logits, words):
                    return F.cross_entropy(logits[:-1].flatten(0, 1), words[:-1].flatten())
                """,
                cause="last-sentence-left-out",
            ),
            code(
                """
                def next_word_loss(logits, words):
                    b, n, k = logits.shape
                    return sum(F.cross_entropy(logits[:, i], words[:, i + 1]) for i in range(n - 1))
                """,
                cause="divided-by-sentences",
            ),
            code(
                """
    def next_word_loss(logits, words):
        return F.cross_entropy(logits[:, :-1].transpose(0, 1).flatten(0, 1), words[:, 1:].flatten())
                """,
                cause="places-and-sentences-exchanged",
            ),
            code(
                """
    def next_word_loss(logits, words):
        return -F.nll_loss(logits[:, :-1].log_softmax(-1).flatten(0, 1), words[:, 1:].flatten())
                """,
                cause="loss-has-other-sign",
            ),
            code(
                """
    def next_word_loss(logits, words):
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten(), ignore_index=0)
                """,
                cause="word-zero-ignored",
            ),
        ],
        right=[
            code(
                """
                def next_word_loss(logits, words):
                    chances = logits[:, :-1].log_softmax(dim=-1)
                    return -chances.gather(2, words[:, 1:, None]).mean()
                """
            ),
            code(
                """
                def next_word_loss(logits, words):
                    logits = logits.transpose(1, 2)
                    return F.cross_entropy(logits[..., : words.shape[1] - 1], words[:, 1:])
                """
            ),
        ],
    ),
    "08.5": Bank(
        wrong=[
            swap(".double().eval()", ".double()", cause="dropout-still-on"),
            swap(
                "copy.deepcopy(layer)", "copy.deepcopy(layer.eval())", cause="divisor-changed-mode"
            ),
            swap("1 / weight.logit().item()", "weight.logit().item()", cause="factor-not-divisor"),
            swap(
                "return 1 / weight.logit().item()",
                "return head_dim ** 0.5",
                cause="what-it-should-divide-by",
            ),
            swap(
                "return 1 / weight.logit().item()",
                "return width ** 0.5",
                cause="root-of-token-width",
            ),
            swap("= 1 / head_dim", "= 1", cause="tokens-of-ones"),
            swap("* head_dim\n", "\n", cause="weight-not-times-d"),
            swap("copy.deepcopy(layer)", "layer", cause="divisor-wrote-into-layer"),
            swap("        layer.q_proj.bias.fill_(1.0)\n", "", cause="raises ZeroDivisionError"),
            swap("logit()", "log()", cause="log-for-logit"),
            code(
                """
                def divisor(layer):
                    return layer.by
                """,
                cause="raises",
            ),
            code(
                """
                def divisor(layer):
                    return True
                """,
                cause="divisor-is-no-number",
            ),
            swap(
                "weight = layer(tokens)[0, 0, 0] * head_dim",
                "weight = layer(tokens)[0, 0, 0] * width",
                cause="weight-times-e",
            ),
            swap(
                "tokens[0, 0] = 1 / head_dim",
                "tokens[0, 0] = 1 / width",
                cause="tokens-of-one-over-e",
            ),
            swap(
                "head_dim = width // layer.num_heads",
                "head_dim = width",
                cause="h-left-over",
            ),
            swap(
                "return 1 / weight.logit().item()",
                "return 1 / weight.item()",
                cause="weight-not-undone",
            ),
            swap(
                "return 1 / weight.logit().item()",
                "return (1 / weight.logit().item()) ** 2",
                cause="divisor-squared",
            ),
            swap(
                "        layer.q_proj.weight.zero_()\n",
                "",
                cause="queries-read-tokens",
            ),
            swap(
                "        for project in (layer.q_proj, layer.k_proj, layer.v_proj, "
                "layer.out_proj):\n"
                "            project.weight.copy_(torch.eye(width))\n"
                "            project.bias.zero_()\n",
                "",
                cause="not-a-number",
            ),
        ],
        right=[
            code(
                """
                def divisor(layer):
                    layer = copy.deepcopy(layer).double().eval()
                    e, h = layer.q_proj.in_features, layer.num_heads
                    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                        getattr(layer, name).weight.data = torch.eye(e, dtype=torch.float64)
                        getattr(layer, name).bias.data.zero_()
                    x = torch.zeros(1, 2, e, dtype=torch.float64)
                    x[0, 0] = 0.1
                    first = layer(x)[0, 0, 0] / 0.1
                    return (e / h * 0.01 / torch.log(first / (1 - first))).item()
                """
            ),
            code(
                """
                def divisor(layer):
                    layer = copy.deepcopy(layer)
                    weights = layer.state_dict()
                    e = weights["out_proj.bias"].numel()
                    for name in weights:
                        weights[name] = torch.eye(e) if "weight" in name else torch.zeros(e)
                    layer.load_state_dict(weights)
                    layer = layer.double().eval()
                    x = torch.zeros(1, 3, e, dtype=torch.float64)
                    x[0, 1, 0] = 1.0
                    first, other = layer(x)[0, 1, 0], layer(x)[0, 0, 0]
                    # query 1 gives key 1 the share p, the two others (1 - p) / 2 each
                    odds = first / ((1 - first) / 2)
                    assert other > 0
                    return 1 / odds.log()
                """
            ),
        ],
        equivalent={
            "return 1 / weight.logit().item() => return 1 / (weight.logit())": "a tensor of one "
            "number",
            "tokens = torch.zeros(1, 2, width, dtype=torch.float64) => "
            "tokens = torch.zeros(2, 2, width, dtype=torch.float64)": "a second sample, not read",
            "tokens[0, 0] = 1 / head_dim => tokens[-1, 0] = 1 / head_dim": "there is one sample",
            "tokens[0, 0] = 1 / head_dim => tokens[0, 1] = 1 / head_dim": "the other token",
            "tokens[0, 0] = 1 / head_dim => tokens[0, -1] = 1 / head_dim": "the other token",
            "weight = layer(tokens)[0, 0, 0] * head_dim => "
            "weight = layer(tokens)[-1, 0, 0] * head_dim": "there is one sample",
            "weight = layer(tokens)[0, 0, 0] * head_dim => "
            "weight = layer(tokens)[0, 1, 0] * head_dim": "all queries are equal",
            "weight = layer(tokens)[0, 0, 0] * head_dim => "
            "weight = layer(tokens)[0, -1, 0] * head_dim": "all queries are equal",
            "weight = layer(tokens)[0, 0, 0] * head_dim => "
            "weight = layer(tokens)[0, 0, 1] * head_dim": "all numbers of the result are equal",
            "weight = layer(tokens)[0, 0, 0] * head_dim => "
            "weight = layer(tokens)[0, 0, -1] * head_dim": "all numbers of the result are equal",
        },
    ),
}
