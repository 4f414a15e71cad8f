"""Record what Transformers calls the tensors of small encoders, and what those compute in float64.

``python scripts/generate_encoder_expectations.py`` writes tests/data/encoders.json. It needs
``pip install -r requirements/parity.txt``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from image_models import values
from text_models import FILE, rows

LENGTHS: Final = [13, 1, 6]
SIZES: Final = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "max_position_embeddings": 18,
}
MODERN: Final = {
    **SIZES,
    "num_hidden_layers": 3,
    "local_attention": 6,
    "global_attn_every_n_layers": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "pad_token_id": 0,
}
DISTILLED: Final = {
    "vocab_size": 40,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 20,
    "max_position_embeddings": 18,
}
TEXTS: Final = "AutoModelForSequenceClassification"
TOKENS: Final = "AutoModelForTokenClassification"
CASES: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "bert": ("bert", "AutoModel", SIZES),
    "bert, texts": ("bert", TEXTS, SIZES),
    "roberta, tokens": ("roberta", TOKENS, {**SIZES, "type_vocab_size": 2}),
    "distilbert, texts": ("distilbert", TEXTS, DISTILLED),
    "mpnet": ("mpnet", "AutoModel", SIZES),
    "modernbert": ("modernbert", "AutoModel", MODERN),
    "modernbert, tokens": ("modernbert", TOKENS, MODERN),
}


@torch.no_grad()
def computed(model: Any, ids: Any, kinds: Any | None) -> Any:
    """Of a row alone, without padding: a vector or scores for each token, or scores f64[1,C]."""
    more = {} if kinds is None else {"token_type_ids": torch.tensor(kinds)[None].long()}
    out = model(torch.tensor(ids)[None].long(), **more)
    found = out.last_hidden_state if "last_hidden_state" in out else out.logits
    return found.reshape(-1, found.shape[-1]).numpy()


def main() -> None:
    """Compute each case and write the file."""
    found: dict[str, Any] = {}
    ids, kinds, _ = rows(LENGTHS, SIZES["vocab_size"])
    for name, (family, kind, given) in CASES.items():
        config = transformers.AutoConfig.for_model(family, num_labels=3, **given)
        model = getattr(transformers, kind).from_config(config, attn_implementation="eager")
        kept = {n: t for n, t in model.state_dict().items() if t.is_floating_point()}
        filled = {n: torch.from_numpy(values(n, tuple(t.shape))) for n, t in kept.items()}
        model.load_state_dict(filled, strict=False)
        model = model.eval().double()
        has_kinds = getattr(config, "type_vocab_size", 1) > 1
        results = [
            computed(model, one[:size], kind_of_each[:size] if has_kinds else None)
            for one, kind_of_each, size in zip(ids, kinds, LENGTHS, strict=True)
        ]
        result = np.concatenate(results)
        found[name] = {
            "config": {
                "model_type": family,
                **given,
                **({"type_vocab_size": 2} if "roberta" in name else {}),
                **({} if kind == "AutoModel" else {"architectures": [type(model).__name__]}),
            },
            "shapes": {n: list(t.shape) for n, t in kept.items()},
            "lengths": LENGTHS,
            "output": [[round(x, 7) for x in row] for row in result.tolist()],
        }
    lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(one)}" for n, one in found.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{FILE}: {len(found)} models by Transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
