"""Blocks with single layers where a part has two, or beside a part; tokens that lie in one row."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from patients.arranged import arranged
from patients.attention import Views
from patients.blocks import PostNorm, PreNorm, block
from patients.wirings import ONE, TWO


@block("activation-missing", "norm-shared", sizes=TWO)
class OneLayerSharesTheNorm(PostNorm):
    """Its feed-forward is one linear layer."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.layer = nn.Linear(e, e)

    def forward(self, x):
        x = self.norms[0](self.self_attn(x).add(x))
        return self.norms[0](self.layer(x).add(x))


@block("residual-from-norm", sizes=TWO)
class OneBentLayer(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = nn.Linear(e, e)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        x = self.ln_2(x)
        return x + F.relu(self.ffn(x))


@block("residual-from-norm", sizes=ONE)
class LayersAround(PreNorm):
    """The attention stands between two more linear layers."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.front, self.behind = nn.Linear(e, e), nn.Linear(e, e)

    def forward(self, x):
        x = x + self.behind(self.attention(self.front(self.ln_1(x))))
        x = self.ln_2(x)
        return x + self.ffn(x)


@block("residual-from-norm", "residual-missing", sizes=ONE)
class LosesAndAddsTheNorm(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.attention, self.layer = Views(e, h), nn.Linear(e, e)

    def forward(self, x):
        x = self.ln_1(x)
        return x + F.relu(self.layer(self.ln_2(self.attention(x))))


class InOneRow(PostNorm):
    """BatchNorm1d takes the tokens of all samples in one row, and the feed-forward gets them so."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList([nn.BatchNorm1d(e), nn.BatchNorm1d(e)])

    def forward(self, x):
        rows = x.flatten(0, 1)
        rows = self.norms[0](rows + self.self_attn(x).flatten(0, 1))
        return self.norms[1](rows + self.feed(rows)).view(x.shape)


arranged("batch-norm", sizes=TWO)(InOneRow)


@block("residual-from-norm", sizes=TWO)
class RowsFromNorm(PreNorm):
    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        rows = self.ln_2(x.flatten(0, 1))
        return (rows + self.ffn(rows)).view(x.shape)
