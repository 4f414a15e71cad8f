"""PyTorch's side of every comparison: the models of Transformers, opened from a folder.

Product, tests and benchmarks take their peers from here. PyTorch and Transformers are no
dependencies of ptir; they are imported when a model is opened.
"""

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ptir.errors import CheckpointError, UnsupportedError, short

Array = np.ndarray[Any, Any]

GENERATE, EMBED = "generate", "embed texts"
SCORE_TEXTS, SCORE_TOKENS = "score texts", "score tokens"
SEE, SCORE_IMAGES = "see", "score images"
HEAR = "hear"
CLASSES: Final[Mapping[str, str]] = {
    GENERATE: "AutoModelForCausalLM",
    EMBED: "AutoModel",
    SCORE_TEXTS: "AutoModelForSequenceClassification",
    SCORE_TOKENS: "AutoModelForTokenClassification",
    SEE: "AutoModel",
    SCORE_IMAGES: "AutoModelForImageClassification",
    HEAR: "AutoModelForSpeechSeq2Seq",
}
"""By what a model is opened for, the class of Transformers that opens it."""
SEES_TOO: Final = "AutoModelForImageTextToText"
"""What opens a model of language that takes images beside its text."""
SEEN: Final[Mapping[str, str]] = {
    "clip": "AutoModel",
    "clip_vision_model": "CLIPVisionModelWithProjection",
}
"""Models of images whose features another class gives, by ``model_type``."""
CLASS_TOKEN: Final = ("vit", "dinov2")
"""Models of images whose features are the first token's vector, not a pooled one."""
STATES: Final = ("past_key_values", "cache_params")
"""What Transformers calls what is carried from one token to the next."""
MORE: Final = ("ScaledWordEmbedding",)
"""Ends of the names of classes that do more than a layer of their name: they scale what is looked
up."""
SPARE: Final = ("pooler.", "position_ids", "num_batches_tracked", "mask_token")
"""Parts of names of tensors that no output read here depends on."""


def saved_names(folder: Path, task: str) -> dict[str, str]:
    """What files call the tensors of a configuration's model, and what its modules call each.

    The two differ where Transformers has renamed modules and writes files as before. So a model
    whose tensors each hold a number of their own is written, and the numbers are looked for.
    """
    import torch
    from safetensors import safe_open

    model = _from_config(folder, task)
    names = [*model.state_dict()]
    with torch.no_grad():
        for number, held in enumerate(model.state_dict().values()):
            held.fill_(number)
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="ptir-peer-") as room:
        model.save_pretrained(room)
        for file in sorted(Path(room).glob("*.safetensors")):
            with safe_open(str(file), "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  it is no mapping
                    found[name] = names[int(tensors.get_tensor(name).flatten()[0])]
    return found


def open_peer(folder: Path, task: str, *, dtype: str = "float32") -> TorchModel:
    """The model in a folder, in ``dtype`` of PyTorch, with attention as the papers write it.

    Raises ``CheckpointError`` where the folder lacks some of its tensors: Transformers would fill
    them with random numbers.
    """
    import torch

    config = _config(folder)
    opener = _class(config, task)
    network, told = opener.from_pretrained(
        folder,
        config=config,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        use_safetensors=True,  # others may run code
        output_loading_info=True,
    )
    lacking = [name for name in told["missing_keys"] if not any(part in name for part in SPARE)]
    if lacking:
        raise CheckpointError(
            f"{type(network).__name__} of Transformers has {len(lacking)} tensors that are not in"
            f" what was given, such as {short(sorted(lacking)[0])}, and would make them up; compare"
            " a folder that Transformers wrote"
        )
    return TorchModel(network.eval(), task)


def _config(folder: Path) -> Any:
    """The configuration; a token that pads and is none of the model's is nobody's."""
    import transformers

    found = transformers.AutoConfig.from_pretrained(folder)
    pads, tokens = getattr(found, "pad_token_id", None), getattr(found, "vocab_size", None)
    if pads is not None and tokens is not None and pads >= tokens:
        found.pad_token_id = None  # a default of the family, beyond a smaller vocabulary
    return found


def _class(config: Any, task: str) -> Any:
    import transformers

    name = CLASSES[task]
    if task == SEE:
        name = SEEN.get(config.model_type, name)
    found = getattr(transformers, name)
    if task == GENERATE and type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        found = getattr(transformers, SEES_TOO)
    return found


def _from_config(folder: Path, task: str) -> Any:
    config = _config(folder)
    opener = _class(config, task)
    return opener.from_config(config) if hasattr(opener, "from_config") else opener(config)


class TorchModel:
    """A model of Transformers; what it takes and gives are NumPy arrays.

    A text is token ids i32[T], images are f32[N,H,W,3], prepared. Of a model of speech tokens come
    with the ``features`` f32[F,M] of the window that they are heard in.
    """

    def __init__(self, network: Any, task: str) -> None:
        self.network, self.task = network, task
        self._dtype = next(network.parameters()).dtype

    def facts(self) -> dict[str, str]:
        """What computes, and in which versions."""
        import torch
        import transformers

        return {
            "class": type(self.network).__name__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": str(torch.get_num_threads()),
        }

    def layers(self) -> list[str]:
        """The names of its modules, without those that only hold others or do ``MORE``."""
        import torch

        holds = torch.nn.ModuleList, torch.nn.ModuleDict
        named = [row for row in self.network.named_modules() if not isinstance(row[1], holds)]
        return [name for name, one in named if name and not type(one).__name__.endswith(MORE)]

    def output(self, given: Array, features: Array | None = None) -> Array:
        """Logits f[T,V], vectors or scores of tokens f[T,D], or scores f[C]; of images f[N,C].

        Of several texts of one length i32[B,T] the same with the axis B.
        """
        import torch

        with torch.inference_mode():
            found: Array = self._picked(self._run(given, features)).numpy()
        return found[0] if given.ndim == 1 else found

    def trace(
        self, given: Array, wanted: Sequence[str], features: Array | None = None
    ) -> dict[str, Array]:
        """What each of the modules ``wanted`` gives, the first of several results."""
        import torch

        held: dict[str, Array] = {}

        def keeping(name: str) -> Callable[..., None]:
            def keep(module: Any, taken: Any, made: Any) -> None:
                first = _first_tensor(made)
                if first is not None:  # what follows may change it in place
                    held[name] = first.detach().clone().numpy()

            return keep

        modules = dict(self.network.named_modules())
        hooks = [modules[name].register_forward_hook(keeping(name)) for name in wanted]
        try:
            with torch.inference_mode():
                self._run(given, features)
        finally:
            for hook in hooks:
                hook.remove()
        return held

    def greedy(self, ids: Array, count: int) -> tuple[Array, Array]:
        """The ``count`` likeliest next tokens i64, and by how much each is ahead of the second.

        That is a share of the largest logit, f64.
        """
        import torch
        import transformers

        tokens = torch.from_numpy(ids.astype(np.int64))[None]
        settings: Any = transformers.GenerationConfig
        how = settings(
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        with torch.inference_mode():
            made = self.network.generate(
                tokens, attention_mask=torch.ones_like(tokens), generation_config=how
            )
        logits = np.stack([one[0].double().numpy() for one in made.logits])
        best = np.sort(logits, axis=-1)
        ahead = (best[:, -1] - best[:, -2]) / np.abs(logits).max(-1)
        return made.sequences[0, ids.size :].numpy(), ahead

    def greedy_heard(
        self, ids: Array, count: int, rules: Mapping[str, Any], features: Array
    ) -> tuple[Array, Array]:
        """The same of a window of speech, up to the token ``end`` of ``rules``.

        Tokens of ``never`` there are not chosen, those of ``not_first`` not as the first one.
        """
        import torch

        made: list[tuple[int, float]] = []
        with torch.inference_mode():
            step, tokens = self._decoding(features), self._ids(ids)
            while len(made) < count and not (made and made[-1][0] == rules["end"]):
                logits = step(tokens)[0, -1].double()
                most = logits.abs().max()
                logits[[*rules["never"], *([] if made else rules["not_first"])]] = -torch.inf
                best = logits.topk(2)
                tokens = best.indices[None, :1]
                ahead = (best.values[0] - best.values[1]) / most
                made.append((int(best.indices[0]), float(ahead)))
        chosen, ahead_by = zip(*made, strict=True)
        return np.array(chosen), np.array(ahead_by)

    def _decoding(self, features: Array) -> Callable[[Any], Any]:
        """What gives logits behind tokens of a window, each time behind those of all times."""
        heard, state = self.network.get_encoder()(self._features(features)), None

        def step(tokens: Any) -> Any:
            nonlocal state
            made = self.network(
                decoder_input_ids=tokens,
                encoder_outputs=heard,
                past_key_values=state,
                use_cache=True,
            )
            state = made.past_key_values
            return made.logits

        return step

    def likelihoods(self, ids: Array) -> Array:
        """Log likelihoods f64[T - 1] of the second token and those behind."""
        import torch

        with torch.inference_mode():
            logits = self._run(ids).logits[0, :-1].double()
            following = torch.from_numpy(ids[1:].astype(np.int64))[:, None]
            chosen = logits.gather(-1, following)[:, 0] - logits.logsumexp(-1)
            found: Array = chosen.numpy()
        return found

    def hear_seconds(self, ids: Array, features: Array) -> float:
        """Seconds of the encoder on a window."""
        import torch

        heard = self._features(features)
        with torch.inference_mode():
            began = time.perf_counter()
            self.network.get_encoder()(heard).last_hidden_state.numpy()
            return time.perf_counter() - began

    def run_seconds(self, given: Array) -> float:
        """Seconds of one run, until its result can be read."""
        began = time.perf_counter()
        self.output(given)
        return time.perf_counter() - began

    def prefill_seconds(self, ids: Array) -> float:
        """Seconds for a prompt, up to the logits of its last token."""
        import torch

        tokens = torch.from_numpy(ids.astype(np.int64))[None]
        last = {"logits_to_keep": 1} if self._takes("logits_to_keep") else {}
        with torch.inference_mode():
            began = time.perf_counter()
            self.network(tokens, use_cache=True, **last).logits[:, -1].numpy()
            return time.perf_counter() - began

    def decode_heard_seconds(self, ids: Array, count: int, features: Array) -> float:
        """Seconds for ``count`` greedy tokens behind a prompt, in a window that is heard before."""
        import torch

        with torch.inference_mode():
            step = self._decoding(features)
            logits = step(self._ids(ids))
            began = time.perf_counter()
            for _ in range(count):
                logits = step(logits[:, -1:].argmax(-1))
            logits[:, -1].argmax(-1).numpy()
            return time.perf_counter() - began

    def decode_seconds(self, ids: Array, count: int) -> float:
        """Seconds for ``count`` greedy tokens behind a prompt.

        Raises ``UnsupportedError`` for a model whose state has a name not in ``STATES``.
        """
        import torch

        with torch.inference_mode():
            made = self.network(torch.from_numpy(ids.astype(np.int64))[None], use_cache=True)
            state = next((name for name in STATES if getattr(made, name, None) is not None), None)
            if state is None:
                raise UnsupportedError(
                    f"{type(self.network).__name__} of Transformers carries its state under none of"
                    f" the names {', '.join(STATES)}; measure prompts alone (-n 0)"
                )
            began = time.perf_counter()
            for _ in range(count):
                token = made.logits[:, -1:].argmax(-1)
                made = self.network(token, use_cache=True, **{state: getattr(made, state)})
            made.logits[:, -1].argmax(-1).numpy()
            return time.perf_counter() - began

    def _ids(self, given: Array) -> Any:
        """Token ids in rows, i64[B,T]."""
        import torch

        return torch.from_numpy(np.atleast_2d(given).astype(np.int64))

    def _features(self, given: Array) -> Any:
        """Features as the library has them, f[B,M,F]."""
        import torch

        rows = given if given.ndim == 3 else given[None]
        return torch.from_numpy(np.ascontiguousarray(rows.transpose(0, 2, 1))).to(self._dtype)

    def _run(self, given: Array, features: Array | None = None) -> Any:
        import torch

        if features is not None:
            heard = self._features(features)
            return self.network(input_features=heard, decoder_input_ids=self._ids(given))
        if given.ndim != 4:
            return self.network(self._ids(given))
        pixels = torch.from_numpy(np.ascontiguousarray(given.transpose(0, 3, 1, 2)))
        sizes = {"interpolate_pos_encoding": True}
        more = sizes if self._takes(*sizes) else {}
        if self._model_type == "clip":
            return self.network.get_image_features(pixel_values=pixels.to(self._dtype), **more)
        return self.network(pixels.to(self._dtype), **more)

    def _picked(self, made: Any) -> Any:
        """Of what the network gives what ``Model.forward`` of ptir gives."""
        import torch

        if self.task in (GENERATE, SCORE_TOKENS, SCORE_TEXTS, SCORE_IMAGES, HEAR):
            return made.logits
        if self.task == EMBED:
            return made.last_hidden_state
        if isinstance(made, torch.Tensor):
            return made
        if self._model_type in CLASS_TOKEN:
            return made.last_hidden_state[:, 0]
        embeds = getattr(made, "image_embeds", None)
        return made.pooler_output.flatten(1) if embeds is None else embeds

    @property
    def _model_type(self) -> str:
        return str(self.network.config.model_type)

    def _takes(self, name: str) -> bool:
        taken = self.network
        if self._model_type == "clip":
            taken = self.network.get_image_features
        else:
            taken = self.network.forward
        return name in inspect.signature(taken).parameters


def _first_tensor(made: Any) -> Any:
    """A module's result, or the first of several; None where that is no tensor."""
    import torch

    while not isinstance(made, torch.Tensor):
        rows = [*made.values()] if isinstance(made, Mapping) else made
        if not isinstance(rows, list | tuple) or not rows:
            return None
        made = rows[0]
    return made


class TorchSide:
    """What the worker is asked: names first, then a model."""

    def __init__(self) -> None:
        import transformers

        quiet: Any = transformers.utils.logging
        quiet.set_verbosity_error()
        quiet.disable_progress_bar()

    def saved_names(self, folder: str, task: str) -> dict[str, str]:
        """See the function of that name."""
        return saved_names(Path(folder), task)

    def open(self, folder: str, task: str, threads: int | None) -> TorchModel:
        """See ``open_peer``; it computes on so many threads, or on as many as it chooses."""
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        return open_peer(Path(folder), task)
