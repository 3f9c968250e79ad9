"""The words of a text as features, by feature hashing: an encoder blurs the rare words that tell rare classes apart.

    x = sum over the tokens t of the text of  sign(t) log((N + 1) / (n_t + 1)) e[place(t)]

n_t of the N training texts have the token t. A token that none of them has counts nothing. Signs and places are
random, so that inner products are those of the weighted counts of all tokens, on average (Weinberger et al., Feature
Hashing for Large Scale Multitask Learning, 2009). Two tokens in a row are a token of their own (`pairs`): "shared
library" says more than "shared" and "library".
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAIRS = 262_139
"""Numbers for pairs of tokens, a prime."""
SPREAD = 30_011
"""Numbers between the pairs of a token and those of the next one."""


def pairs(ids: Tensor) -> Tensor:
    """A number below `PAIRS` for each token and the one after it, of token numbers [B, T], padded with -1.

    >>> pairs(torch.tensor([[3, 4, -1]]))
    tensor([[90037,    -1,    -1]])
    """
    after = F.pad(ids, (0, 1), value=-1)[:, 1:]
    return torch.where(after >= 0, (ids * SPREAD + after) % PAIRS, -1)


class Words(nn.Module):
    """Token numbers [B, T], padded with -1, as features [B, L] of the length `scale`.

    >>> words = Words(vocabulary=9, features=6)
    >>> words.count([torch.tensor([[3, 4], [3, 5]])])
    >>> words(torch.tensor([[3, 4, 8, -1]])).norm()  # 3 is in every text, and 8 in none
    tensor(1.5000)
    """

    place: Tensor
    sign: Tensor
    rarity: Tensor

    def __init__(self, vocabulary: int, features: int, scale: float = 1.5) -> None:
        super().__init__()
        self.features, self.scale = features, scale
        chance = torch.Generator().manual_seed(0)
        self.register_buffer("place", torch.randint(features, (vocabulary,), generator=chance))
        self.register_buffer("sign", torch.randint(2, (vocabulary,), generator=chance) * 2.0 - 1)
        self.register_buffer("rarity", torch.zeros(vocabulary))

    def count(self, batches: Iterable[Tensor]) -> None:
        """Weigh the tokens by how few of the texts have them."""
        having = torch.zeros(len(self.rarity), dtype=torch.float64)
        texts = 0
        for ids in batches:
            texts += len(ids)
            for row in ids:
                having[row[row >= 0].unique()] += 1
        self.rarity.copy_(torch.where(having > 0, ((texts + 1) / (having + 1)).log(), 0.0))

    def forward(self, ids: Tensor) -> Tensor:
        """The features [B, L]."""
        known = ids.clamp(min=0)
        weight = self.sign[known] * self.rarity[known] * (ids >= 0)
        sums = weight.new_zeros(ids.shape[0], self.features).scatter_add(1, self.place[known], weight)
        return self.scale * F.normalize(sums, dim=1)
