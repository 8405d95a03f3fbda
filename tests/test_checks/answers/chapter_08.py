"""Answers to the exercises of chapter 08, right and wrong."""

from exercise_bank import Bank, code, swap


def healthy(body, says=""):
    """The block with another body of forward."""
    lines = "\n".join(f"        {line}" for line in body)
    return code(f"class Healthy(Sick):\n    def forward(self, x):\n{lines}", says=says)


BANK = {
    "08.1": Bank(
        wrong=[
            swap("(7, 3, 3)", "(3, 7, 7)", says="look at"),
            swap("(3, 7, 7)", "(7, 3, 3)", says="look at"),
            swap("(3, 7, 7)", "(3, 4, 7, 7)", says="needs 3 axes"),
            swap("(7, 3, 3)", "(3, 7, 3)", says="right sizes in another order"),
            swap("(3, 7, 7)", "(3, 7, 24)", says="look at j"),
            swap("(3, 7, 7)", "(7, 7)", says="needs 3 axes"),
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
                says="whose token 1 alone leaks, into token 0",
            ),
            swap("range(1, tokens.shape[1])", "[1]", says="it says True for"),
            swap(
                "range(1, tokens.shape[1])",
                "range(2, tokens.shape[1])",
                says="whose token 1 alone leaks, into token 0",
            ),
            swap(
                "range(1, tokens.shape[1])",
                "range(1, tokens.shape[1] - 1)",
                says="into the one before",
            ),
            swap("tokens.clone()", "tokens", says="changed in place"),
            swap(
                "torch.randn_like(changed[:, place:])",
                "changed[:, place:] + 1",
                says="a token plus 1 is the same token",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for place in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, place:] = torch.randn_like(other[:, place:])
                        moved = (run(other) - before)[:, :place].mean(dim=-1)
                        if (moved.abs() > 1e-6).any():
                            return False
                    return True
                """,
                says="have mean 0",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for place in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, place:] = torch.randn_like(other[:, place:])
                        if not torch.allclose(run(other)[0, :place], before[0, :place]):
                            return False
                    return True
                """,
                says="only the last sample sees the future",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for place in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, place:] = torch.randn_like(other[:, place:])
                        if not torch.allclose(run(other)[:, :place, 0], before[:, :place, 0]):
                            return False
                    return True
                """,
                says="only the last number of each result",
            ),
            swap("[:, :place]", "[:, : place + 1]", says="it says False for a causal attention"),
            swap("before[:, :place]", "before[:, place:]", says="it says False for"),
            swap("if not torch", "if torch", says="it says False for a causal attention"),
            swap("atol=1e-6", "atol=1e-1", says="only a little"),
            swap(
                "changed[:, place:] = torch.randn_like(changed[:, place:])",
                "changed[:, place:] = changed[:, place:]",
                says="it says True for an attention without a mask",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    return True
                """,
                says="it says True for an attention without a mask",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    return run(tokens).shape == tokens.shape
                """,
                says="it says True for an attention without a mask",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    return torch.allclose(run(tokens)[:, :1], run(tokens[:, :1]))
                """,
                says="raises IndexError",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    changed = tokens.clone()
                    changed[1:, -1] += 1.0
                    return torch.allclose(run(changed)[:, :-1], run(tokens)[:, :-1])
                """,
                says="it says True for",
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
            "if not torch.allclose(run(changed)[:, :place], before[:, :place], atol=1e-6): => "
            "if not torch.allclose(run(changed)[:, :place], before[:, :place]):": "the default "
            "tolerance does as well",
            "if not torch.allclose(run(changed)[:, :place], before[:, :place], atol=1e-6): => "
            "if not torch.allclose(run(changed)[:, :place], before[:, :place], atol=2e-06):": "a "
            "tolerance twice as large",
            "if not torch.allclose(run(changed)[:, :place], before[:, :place], atol=1e-6): => "
            "if not torch.allclose(before[:, :place], run(changed)[:, :place], atol=1e-6):": "the "
            "comparison is the same from both sides",
            "for place in range(1, tokens.shape[1]): => "
            "for place in range(0, tokens.shape[1]):": "at place 0 no result is compared",
        },
    ),
    "08.3": Bank(
        wrong=[
            healthy(
                ["x = x + self.mlp(self.norm2(x))", "return x + self.attn(self.norm1(x))"],
                "runs before the attention",
            ),
            healthy(
                ["x = x + self.attn(self.norm2(x))", "return x + self.mlp(self.norm1(x))"],
                "changed places",
            ),
            healthy(["x = x + self.attn(x)", "return x + self.mlp(x)"], "no norm at all"),
            healthy(["return x"], "as it came"),
            code("Healthy = Sick", says="norm(x) to the results instead of x"),
            swap(
                "self.mlp(self.norm2(x))", "self.mlp(self.norm1(x))", says="both halves use norm1"
            ),
            swap("self.mlp(self.norm2(x))", "self.mlp(x)", says="reads the stream without a norm"),
            swap("return x + self.mlp(self.norm2(x))", "return x", says="feed-forward is missing"),
            swap("x = x + self.attn", "x = self.attn", says="residual"),
            swap("x + self.mlp(self.norm2(x))", "self.mlp(self.norm2(x))", says="residual"),
            healthy(["return x + self.attn(self.norm1(x)) + self.mlp(self.norm2(x))"], "not what"),
            healthy(
                ["x = self.norm1(x + self.attn(x))", "return self.norm2(x + self.mlp(x))"],
                "post-norm",
            ),
            healthy(
                ["x += self.attn(self.norm1(x))", "return x + self.mlp(self.norm2(x))"], "in place"
            ),
            code(
                """
                from utils.encoder import EncoderBlock


                class Healthy(EncoderBlock):
                    pass
                """,
                says="it calls EncoderBlock",
            ),
        ],
        right=[
            healthy(
                [
                    "weight, bias = self.norm1.weight, self.norm1.bias",
                    "stream = torch.add(x, self.attn(F.layer_norm(x, x.shape[-1:], weight, bias)))",
                    "return stream.add(self.mlp(self.norm2(stream)))",
                ]
            ),
            healthy(
                [
                    "for norm, part in ((self.norm1, self.attn), (self.norm2, self.mlp)):",
                    "    x = part(norm(x)) + x",
                    "return x",
                ]
            ),
        ],
    ),
    "08.4": Bank(
        wrong=[
            code(
                """
                def next_word_loss(scores, words):
                    return F.cross_entropy(scores.flatten(0, 1)[:-1], words.flatten()[1:])
                """,
                says="in one row before the shift",
            ),
            code(
                """
                def next_word_loss(scores, words):
                    return F.cross_entropy(scores[:, :-2].flatten(0, 1), words[:, 2:].flatten())
                """,
                says="i + 2",
            ),
            code(
                """
                def next_word_loss(scores, words):
                    total = F.cross_entropy(
                        scores[:, :-1].flatten(0, 1), words[:, 1:].flatten(), reduction="sum"
                    )
                    return total / words.numel()
                """,
                says="divided by all places",
            ),
            code("next_word_loss = sick_loss", says="made after reading it"),
            swap("scores[:, :-1]", "scores[:, 1:]", says="nothing is shifted"),
            swap("words[:, 1:]", "words[:, :-1]", says="nothing is shifted"),
            code(
                """
                def next_word_loss(scores, words):
                    return F.cross_entropy(scores[:, 1:].flatten(0, 1), words[:, :-1].flatten())
                """,
                says="it pays for the word before",
            ),
            code(
                """
                def next_word_loss(scores, words):
                    return F.cross_entropy(scores.flatten(0, 1), words.roll(-1, dims=1).flatten())
                """,
                says="roll goes round",
            ),
            swap(
                "words[:, 1:].flatten())",
                'words[:, 1:].flatten(), reduction="sum")',
                says="the mean is asked for",
            ),
            swap(
                "words[:, 1:].flatten())",
                'words[:, 1:].flatten(), reduction="none")',
                says="asked for is ()",
            ),
            swap(
                "scores[:, :-1].flatten(0, 1)",
                "scores[:, :-1].flatten(0, 1).softmax(dim=-1)",
                says="applies the softmax itself",
            ),
            swap("scores[:, :-1].flatten(0, 1)", "scores[:, :-1]", says="raises"),
            swap(
                "return F.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten())",
                "return F.cross_entropy("
                "scores[:, :-1].flatten(0, 1), words[:, 1:].flatten()).detach()",
                says="no gradient reaches scores",
            ),
        ],
        right=[
            code(
                """
                def next_word_loss(scores, words):
                    chances = scores[:, :-1].log_softmax(dim=-1)
                    return -chances.gather(2, words[:, 1:, None]).mean()
                """
            ),
            code(
                """
                def next_word_loss(scores, words):
                    scores = scores.transpose(1, 2)
                    return F.cross_entropy(scores[..., : words.shape[1] - 1], words[:, 1:])
                """
            ),
        ],
    ),
    "08.5": Bank(
        wrong=[
            swap(".double().eval()", ".double()", says="call eval() on your copy"),
            swap("copy.deepcopy(layer)", "copy.deepcopy(layer.eval())", says="eval mode"),
            swap("1 / weight.logit().item()", "weight.logit().item()", says="1 over it"),
            swap(
                "return 1 / weight.logit().item()",
                "return head_dim ** 0.5",
                says="measure what it does",
            ),
            swap(
                "return 1 / weight.logit().item()",
                "return width ** 0.5",
                says="the width of a token",
            ),
            swap("= 1 / head_dim", "= 1", says="divisor says"),
            swap("* head_dim\n", "\n", says="divisor says"),
            swap("copy.deepcopy(layer)", "layer", says="wrote into the layer"),
            swap("        layer.q_proj.bias.fill_(1.0)\n", "", says="raises ZeroDivisionError"),
            swap("logit()", "log()", says="divisor says"),
            code(
                """
                def divisor(layer):
                    return layer.by
                """,
                says="has no attribute",
            ),
            code(
                """
                def divisor(layer):
                    return True
                """,
                says="a number is asked for",
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
