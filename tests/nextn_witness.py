"""What Qwen's multi-token head computes, written once more with NumPy in float64.

By the published description: norms of the next token's embedding and of the model's last hidden
state, joined in this order and projected, a block of gated attention, a norm; the model's output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Head:
    """A head of the tensors ``mtp.*`` with the sizes of a ``config.json``."""

    def __init__(self, tensors: Mapping[str, Array], config: Mapping[str, Any]) -> None:
        self._tensors = {name: np.asarray(one, np.float64) for name, one in tensors.items()}
        self._size, self._groups = config["head_dim"], config["num_key_value_heads"]
        self._heads = config["num_attention_heads"]
        self._epsilon = config.get("rms_norm_eps", 1e-6)
        self._turned = int(self._size * config["partial_rotary_factor"])
        self._theta = config.get("rope_theta", 10000.0)

    def hidden(self, embedded: Array, before: Array) -> Array:
        """f64[N,D] of N positions of one text: embeddings of what follows each, and hidden states.

        A position sees those before it and itself.
        """
        joined = np.concatenate(
            [
                self._normed(embedded, "pre_fc_norm_embedding"),
                self._normed(before, "pre_fc_norm_hidden"),
            ],
            axis=-1,
        )
        x = joined @ self._weight("fc").T
        x = x + self._attended(self._normed(x, "layers.0.input_layernorm"))
        inner = self._normed(x, "layers.0.post_attention_layernorm")
        gate, up = (inner @ self._weight(f"layers.0.mlp.{one}_proj").T for one in ("gate", "up"))
        x = x + (gate * _logistic(gate) * up) @ self._weight("layers.0.mlp.down_proj").T
        return self._normed(x, "norm")

    def _attended(self, x: Array) -> Array:
        at = "layers.0.self_attn."
        count, size = len(x), self._size
        both = (x @ self._weight(f"{at}q_proj").T).reshape(count, self._heads, 2, size)
        q, gate = self._normed(both[:, :, 0], f"{at}q_norm"), both[:, :, 1]
        k, v = (
            (x @ self._weight(f"{at}{one}_proj").T).reshape(count, self._groups, size)
            for one in "kv"
        )
        q, k = self._rotated(q), self._rotated(self._normed(k, f"{at}k_norm"))
        each = self._heads // self._groups
        seen = np.zeros((count, self._heads, size))
        for head in range(self._heads):
            scores = q[:, head] @ k[:, head // each].T / np.sqrt(size)
            scores[np.triu_indices(count, 1)] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            seen[:, head] = weights / weights.sum(1, keepdims=True) @ v[:, head // each]
        gated = (seen * _logistic(gate)).reshape(count, -1)
        return np.asarray(gated @ self._weight(f"{at}o_proj").T)

    def _rotated(self, x: Array) -> Array:
        half = self._turned // 2
        speeds = self._theta ** -(np.arange(half) / half)
        angles = (np.arange(len(x))[:, None] * speeds)[:, None]
        first, second, rest = np.split(x, [half, 2 * half], axis=-1)
        cos, sin = np.cos(angles), np.sin(angles)
        turned = (first * cos - second * sin, second * cos + first * sin, rest)
        return np.concatenate(turned, axis=-1)

    def _normed(self, x: Array, name: str) -> Array:
        scale = np.sqrt(np.square(x).mean(-1, keepdims=True) + self._epsilon)
        return np.asarray(x / scale * (1 + self._weight(name)))

    def _weight(self, name: str) -> Array:
        return self._tensors[f"mtp.{name}.weight"]


def proposals(
    head: Head, table: Array, output: Array, text: Sequence[int], hidden: Array, count: int
) -> list[int]:
    """What a head proposes after ``text``, token by token.

    ``hidden`` f64[len(text) - 1, D] is what the model gave for all tokens but the last one, which
    it has not read; ``table`` is its embedding, ``output`` its last matrix.
    """
    tokens, states = [*text[1:]], np.asarray(hidden, np.float64)
    found: list[int] = []
    for _ in range(count):
        last = head.hidden(np.asarray(table, np.float64)[tokens], states)[-1]
        found.append(int((last @ np.asarray(output, np.float64).T).argmax()))
        tokens.append(found[-1])
        states = np.concatenate([states, last[None]])
    return found


def _logistic(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))
