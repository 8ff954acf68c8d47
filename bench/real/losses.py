"""Two losses with real gradients: a policy gradient as in GRPO, and masked language modelling.

The policy-gradient loss: a query (docstring) chooses among the batch's documents (function bodies) by
softmax(cosine / temperature); a group of choices is drawn for every query, a choice is rewarded by how much of the
query's words the document shares, the reward is normalised inside the group, and -advantage * log probability is
minimised. Word embeddings get gradients only in rows that the batch has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy, normalize

GROUP, TEMPERATURE, MASKED = 8, 0.05, 0.15
MASK_TOKEN, SPECIAL = 103, 1000  # [MASK]; ids below SPECIAL are unused or special in this vocabulary


def embed(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean-pooled, normalised embeddings, (texts, hidden)."""
    hidden = model(**batch).last_hidden_state
    weight = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)


def policy_gradient(
    model: Any, queries: dict[str, torch.Tensor], documents: dict[str, torch.Tensor], draw: torch.Generator
) -> torch.Tensor:
    """The loss of one batch in which query i belongs to document i."""
    log_policy = (embed(model, queries) @ embed(model, documents).T / TEMPERATURE).log_softmax(-1)
    choices = torch.multinomial(log_policy.exp().detach(), GROUP, replacement=True, generator=draw)
    reward = _overlap(queries, documents).gather(1, choices)
    reward = reward + (choices == torch.arange(len(choices)).unsqueeze(1))
    advantage = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
    return -(advantage * log_policy.gather(1, choices)).mean()


def _overlap(queries: dict[str, torch.Tensor], documents: dict[str, torch.Tensor]) -> torch.Tensor:
    """Share of each query's tokens that each document has, (queries, documents)."""
    rows = []
    for q, have in zip(queries["input_ids"], queries["attention_mask"], strict=True):
        mine = torch.unique(q[have.bool()])
        rows.append(torch.stack([torch.isin(mine, d).float().mean() for d in documents["input_ids"]]))
    return torch.stack(rows)


def masked_tokens(model: Any, batch: dict[str, torch.Tensor], draw: torch.Generator) -> torch.Tensor:
    """Cross-entropy of masked tokens, predicted through the word embeddings (a tied head): dense gradients."""
    ids = batch["input_ids"]
    picked = (torch.rand(ids.shape, generator=draw) < MASKED) & (ids >= SPECIAL)
    hidden = model(input_ids=ids.masked_fill(picked, MASK_TOKEN), attention_mask=batch["attention_mask"])
    table = model.embeddings.word_embeddings.weight
    return cross_entropy(hidden.last_hidden_state[picked] @ table.T, ids[picked])
