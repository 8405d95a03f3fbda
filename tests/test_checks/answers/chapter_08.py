"""Answers to the exercises of chapter 08, right and wrong."""

from exercise_bank import Bank, code, swap


def healthy(body, says=""):
    """The block with another body of forward."""
    lines = "\n".join(f"        {line}" for line in body)
    return code(f"class Healthy(Sick):\n    def forward(self, x):\n{lines}", says=says)


BANK = {
    "08.1": Bank(
        wrong=[
            swap("(7, 3, 3)", "(3, 7, 7)", says="its shape with batch_first=True"),
            swap("(3, 7, 7)", "(7, 3, 3)", says="its shape without batch_first=True"),
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
                says="only the last token is changed",
            ),
            swap("range(1, tokens.shape[1])", "[1]", says="it tries only the place 1"),
            swap(
                "range(1, tokens.shape[1])",
                "range(2, tokens.shape[1])",
                says="it begins at place 2",
            ),
            swap(
                "range(1, tokens.shape[1])",
                "range(1, tokens.shape[1] - 1)",
                says="the last place is missing",
            ),
            swap("tokens.clone()", "tokens", says="changed in place"),
            swap(
                "torch.randn_like(changed[:, place:])",
                "changed[:, place:] + 1",
                says="the same number is added to all of a token",
            ),
            swap(
                "torch.randn_like(changed[:, place:])",
                "changed[:, place:] * 2",
                says="the later tokens are only multiplied by a number",
            ),
            swap(
                "changed[:, place:] = torch.randn_like(changed[:, place:])",
                "changed[:, place:, 0] += 1",
                says="only number 0 of the later tokens is changed",
            ),
            swap(
                "changed[:, place:] = torch.randn_like(changed[:, place:])",
                "changed[:, place:, -1] += 1",
                says="only the last number of the later tokens is changed",
            ),
            swap(
                "torch.randn_like(changed[:, place:])",
                "changed[:, place:].flip(1)",
                says="only put into another order",
            ),
            swap(
                "changed[:, place:] = torch.randn_like(changed[:, place:])",
                "changed[place:] = torch.randn_like(changed[place:])",
                says="later samples are changed",
            ),
            swap("    return True\n", "    return False\n", says="it says False of every layer"),
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
                says="they always sum to 0",
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
                says="only the first sample is looked at",
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
                says="only number 0 of each result is looked at",
            ),
            swap("[:, :place]", "[:, : place + 1]", says="the result at the first changed place"),
            swap("before[:, :place]", "before[:, place:]", says="it says False for"),
            swap("if not torch", "if torch", says="it is turned round"),
            swap("atol=1e-6", "atol=1e-1", says="a small leak does not show"),
            swap(
                "changed[:, place:] = torch.randn_like(changed[:, place:])",
                "changed[:, place:] = changed[:, place:]",
                says="says True of every layer",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    return True
                """,
                says="says True of every layer",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    return run(tokens).shape == tokens.shape
                """,
                says="says True of every layer",
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
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for place in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, place] = torch.randn_like(other[:, place])
                        if not torch.allclose(run(other)[:, place - 1], before[:, place - 1]):
                            return False
                    return True
                """,
                says="one token is changed, and only the result just",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for place in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, place:] = torch.randn_like(other[:, place:])
                        if not torch.equal(run(other)[:, place:], before[:, place:]):
                            return False
                    return True
                """,
                says="later results are compared, which may change; the earlier",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for place in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[place:] = torch.randn_like(other[place:])
                        if not torch.allclose(run(other)[:place], before[:place]):
                            return False
                    return True
                """,
                says="later samples are changed, axis 0; the tokens are",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for place in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, place:] = torch.randn_like(other[:, place:])
                        if (run(other)[:, :place] != before[:, :place]).all():
                            return False
                    return True
                """,
                says="a leak counts only when all numbers move; one",
            ),
            code(
                """
                def past_is_blind(run, tokens):
                    before = run(tokens)
                    for place in range(1, tokens.shape[1]):
                        other = tokens.clone()
                        other[:, place:] = torch.randn_like(other[:, place:])
                        if torch.allclose(run(other)[:, :place], before[:, :place]):
                            return True
                    return False
                """,
                says="one place without a leak is enough for True;",
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
            code("Healthy = Sick", says="this is Sick, pre-norm"),
            healthy(["return super().forward(x)"], "this is Sick, pre-norm"),
            healthy(
                ["x = x + self.norm1(self.attn(x))", "return x + self.norm2(self.mlp(x))"],
                "the norm stands around the part alone",
            ),
            healthy(
                ["x = x + self.attn(self.norm1(x))", "return self.norm2(x + self.mlp(x))"],
                "the first half is still pre-norm",
            ),
            healthy(
                ["x = self.norm1(x + self.attn(x))", "return x + self.mlp(self.norm2(x))"],
                "the second half is still pre-norm",
            ),
            healthy(
                [
                    "x = self.norm1(x + self.attn(self.norm1(x)))",
                    "return self.norm2(x + self.mlp(self.norm2(x)))",
                ],
                "each norm is used twice",
            ),
            healthy(
                [
                    "x = x + self.attn(self.norm1(x))",
                    "x = x + self.mlp(self.norm2(x))",
                    "return self.norm2(x)",
                ],
                "pre-norm with a norm at the end",
            ),
            healthy(
                [
                    "x = self.norm1(x)",
                    "x = x + self.attn(x)",
                    "x = self.norm2(x)",
                    "return x + self.mlp(x)",
                ],
                "it adds norm(x) to the results",
            ),
            healthy(
                ["x = self.norm1(x + self.attn(x))", "return x + self.mlp(x)"],
                "the second sum is not normalised",
            ),
            healthy(
                ["x = x + self.attn(x)", "return self.norm2(x + self.mlp(x))"],
                "the first sum is not normalised",
            ),
            healthy(["x = x + self.attn(x)", "return x + self.mlp(x)"], "no norm at all"),
            swap("self.norm2(x + ", "self.norm1(x + ", says="norm1 stands in both halves"),
            healthy(
                ["x = self.norm2(x + self.attn(x))", "return self.norm1(x + self.mlp(x))"],
                "changed places",
            ),
            healthy(
                ["x = self.norm2(x + self.mlp(x))", "return self.norm1(x + self.attn(x))"],
                "the feed-forward runs first",
            ),
            swap("return self.norm2(x + self.mlp(x))", "return x", says="feed-forward is missing"),
            swap("self.norm2(x + self.mlp(x))", "self.norm2(self.mlp(x))", says="norm2(x + ...)"),
            swap("self.norm1(x + self.attn(x))", "self.norm1(self.attn(x))", says="norm1(x + ...)"),
            healthy(
                ["y = self.norm1(x + self.attn(x))", "return self.norm2(x + self.mlp(y))"],
                "what the first half made is lost",
            ),
            healthy(
                ["y = self.norm1(x + self.attn(x))", "return self.norm2(y + self.mlp(x))"],
                "reads what came into the block",
            ),
            healthy(["return x"], "as it came"),
            healthy(
                ["x += self.attn(x)", "return self.norm2(self.norm1(x) + self.mlp(self.norm1(x)))"],
                "in place",
            ),
            code(
                """
                from utils.encoder import EncoderBlock


                class Healthy(EncoderBlock):
                    def __init__(self, *sizes, **named):
                        super().__init__(*sizes, **named, norm_first=False)
                """,
                says="it calls EncoderBlock",
            ),
            code(
                """
                class Healthy(Sick):
                    def forward(self, x):
                        x = self.norm1(self.attn(x)) + x
                        return self.norm2(x + self.mlp(x))
                """,
                says="in the first half the norm stands around the",
            ),
            code(
                """
                class Healthy(Sick):
                    def forward(self, x):
                        y = self.attn(x)
                        return self.norm2(self.norm1(x + y) + self.mlp(y))
                """,
                says="the feed-forward reads what attention returns, and not the",
            ),
            code(
                """
                class Healthy(Sick):
                    def forward(self, x):
                        x = x + self.attn(x)
                        x = x + self.mlp(x)
                        return self.norm2(self.norm1(x))
                """,
                says="both norms stand at the end",
            ),
            code(
                """
                class Healthy(Sick):
                    def forward(self, x):
                        return self.norm2(self.norm1(x + self.attn(x) + self.mlp(x)))
                """,
                says="there is one sum, and both parts read the",
            ),
            code(
                """
                class Healthy(Sick):
                    def forward(self, x):
                        x = self.norm1(x + self.attn(self.norm1(x)))
                        return self.norm2(x + self.mlp(x))
                """,
                says="norm1 is used twice, before the part and around",
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
                def next_word_loss(scores, words):
                    return F.cross_entropy(scores[:-1].flatten(0, 1), words[1:].flatten())
                """,
                says="the shift runs along the batch",
            ),
            code(
                """
                def next_word_loss(scores, words):
                    return F.nll_loss(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten())
                """,
                says="it wants log_softmax of them",
            ),
            code(
                """
                def next_word_loss(scores, words):
                    chances = scores[:, :-1].softmax(dim=-1).flatten(0, 1)
                    return F.nll_loss(chances, words[:, 1:].flatten())
                """,
                says="wants log_softmax, not softmax",
            ),
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
            code(
                """
                def next_word_loss(scores, words):
                    return F.cross_entropy(scores[:-1].flatten(0, 1), words[:-1].flatten())
                """,
                says="the last sentence is left out, and nothing is",
            ),
            code(
                """
                def next_word_loss(scores, words):
                    b, n, k = scores.shape
                    return sum(F.cross_entropy(scores[:, i], words[:, i + 1]) for i in range(n - 1))
                """,
                says="the sum is divided by the number of sentences,",
            ),
            code(
                """
    def next_word_loss(scores, words):
        return F.cross_entropy(scores[:, :-1].transpose(0, 1).flatten(0, 1), words[:, 1:].flatten())
                """,
                says="the scores are put in a row place by",
            ),
            code(
                """
    def next_word_loss(scores, words):
        return -F.nll_loss(scores[:, :-1].log_softmax(-1).flatten(0, 1), words[:, 1:].flatten())
                """,
                says="it has the other sign",
            ),
            code(
                """
    def next_word_loss(scores, words):
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten(), ignore_index=0)
                """,
                says="the word with number 0 is left out; it",
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
            swap("= 1 / head_dim", "= 1", says="the token holds 1 everywhere"),
            swap("* head_dim\n", "\n", says="it was taken for the weight: multiply by d"),
            swap("copy.deepcopy(layer)", "layer", says="wrote into the layer"),
            swap("        layer.q_proj.bias.fill_(1.0)\n", "", says="raises ZeroDivisionError"),
            swap("logit()", "log()", says="the logarithm of the weight is not the score"),
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
            swap(
                "weight = layer(tokens)[0, 0, 0] * head_dim",
                "weight = layer(tokens)[0, 0, 0] * width",
                says="the result is w / d, and it was",
            ),
            swap(
                "tokens[0, 0] = 1 / head_dim",
                "tokens[0, 0] = 1 / width",
                says="the token holds 1/e everywhere, and a head adds",
            ),
            swap(
                "head_dim = width // layer.num_heads",
                "head_dim = width",
                says="a factor of h is left over",
            ),
            swap(
                "return 1 / weight.logit().item()",
                "return 1 / weight.item()",
                says="that is 1 over the weight; the score behind",
            ),
            swap(
                "return 1 / weight.logit().item()",
                "return (1 / weight.logit().item()) ** 2",
                says="that is the square of the divisor",
            ),
            swap(
                "        layer.q_proj.weight.zero_()\n",
                "",
                says="the queries still read the tokens",
            ),
            swap(
                "        for project in (layer.q_proj, layer.k_proj, layer.v_proj, "
                "layer.out_proj):\n"
                "            project.weight.copy_(torch.eye(width))\n"
                "            project.bias.zero_()\n",
                "",
                says="it is not a number",
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
