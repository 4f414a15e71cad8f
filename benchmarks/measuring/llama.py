"""llama.cpp as a peer: GPT-2 of our random weights as GGUF files, measured as llama-bench does.

Needs ``pip install llama-cpp-python gguf`` (the first builds llama.cpp for some minutes). The f32
file is written from the checkpoint, and llama.cpp's own quantizer makes the others from it, so
its int4 file is what its users have: Q4_0 with the embedding, which is also the output
projection, in Q6_K.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

FORMATS = {
    "f32": "",
    "bf16": "LLAMA_FTYPE_MOSTLY_BF16",
    "int8": "LLAMA_FTYPE_MOSTLY_Q8_0",
    "int4": "LLAMA_FTYPE_MOSTLY_Q4_0",
}
NAMES = {
    "wte": "token_embd",
    "wpe": "position_embd",
    "ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
"""Our names of GPT-2's parameters and GGUF's, without the layer and ``.weight`` or ``.bias``."""


def gguf_name(name: str) -> str:
    """``h.3.attn.c_proj.bias`` is ``blk.3.attn_output.bias``."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("h."):
        return f"{NAMES[stem]}.{kind}"
    _, layer, inner = stem.split(".", 2)
    return f"blk.{layer}.{NAMES[inner]}.{kind}"


def write_files(folder: Path, formats: list[str]) -> dict[str, Path]:
    """The GGUF file of each format in ``folder``; what is there already is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"gpt2-{name}.gguf" for name in FORMATS}
    if not files["f32"].exists():
        _write_f32(files["f32"])
    for name in formats:
        if not files[name].exists():
            _convert(files["f32"], files[name], FORMATS[name])
    return {name: files[name] for name in formats}


def _write_f32(path: Path) -> None:
    import gguf

    from ptir.runtime.specs import resolve

    checkpoint = resolve("random:gpt2")
    config, part = checkpoint.config, path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "gpt2")
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_block_count(config["n_layer"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for name in checkpoint.source.names():
        array = checkpoint.source.read(name)
        turned = array.T if ".c_" in name and array.ndim == 2 else array  # Conv1D is [in, out]
        writer.add_tensor(gguf_name(name), turned.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


def quantized_file(source: Path, target: Path, kind: str) -> Path:
    """``source`` as llama.cpp's quantizer writes it in a type; what is there already is kept."""
    if not target.exists():
        _convert(source, target, f"LLAMA_FTYPE_MOSTLY_{kind}")
    return target


def _convert(source: Path, target: Path, kind: str) -> None:
    import llama_cpp

    _quiet()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, kind)
    params.nthread = 2
    part = target.with_suffix(".part")
    code = llama_cpp.llama_model_quantize(bytes(source), bytes(part), params)
    if code:
        raise RuntimeError(f"llama.cpp could not write {target.name} as {kind}: code {code}")
    part.rename(target)


def _quiet() -> None:
    import llama_cpp

    llama_cpp.llama_log_set(SILENT, None)


def _silent(level: int, text: bytes, data: Any) -> None:
    if level == 4:  # an error
        print(text.decode(errors="replace"), end="", flush=True)


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
SILENT = _LOG(_silent)  # kept: llama.cpp calls it for as long as the process lives


class Llama:
    """One file in llama.cpp, without mmap, with its default cache (f16) and weight repacking."""

    def __init__(self, path: Path, threads: int, context: int = 1024) -> None:
        import llama_cpp

        self._api = llama_cpp
        _quiet()
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        model = llama_cpp.llama_model_load_from_file(bytes(path), params)
        if not model:
            raise RuntimeError(f"llama.cpp could not load {path}")
        how = llama_cpp.llama_context_default_params()
        how.n_ctx, how.n_batch, how.n_ubatch = context, context, 512
        how.n_threads = how.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(model, how)
        if not self._context:
            raise RuntimeError(f"llama.cpp could not make a context of {context} for {path}")
        self._bytes = bytes_per_token(path)

    def _evaluate(self, tokens: list[int]) -> None:
        api = self._api
        given = (api.llama_token * len(tokens))(*tokens)  # the batch only points at it
        batch = api.llama_batch_get_one(given, len(tokens))
        if code := api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode of {len(tokens)} tokens failed: code {code}")
        api.llama_synchronize(self._context)

    def _clear(self) -> None:
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)

    def prefill(self, tokens: list[int]) -> float:
        """Seconds for a prompt, up to the logits of the last token."""
        self._clear()
        began = time.perf_counter()
        self._evaluate(tokens)
        return time.perf_counter() - began

    def begin(self, token: int) -> None:
        """Start a sequence of one token, which ``decode`` continues."""
        self._clear()
        self._evaluate([token])

    def decode(self, tokens: list[int]) -> float:
        """Seconds for evaluating the tokens one by one."""
        began = time.perf_counter()
        for token in tokens:
            self._evaluate([token])
        return time.perf_counter() - began

    def logits(self, tokens: list[int]) -> list[float]:
        """The logits after the last token, to see that the file holds our model."""
        self._clear()
        self._evaluate(tokens)
        model = self._api.llama_get_model(self._context)
        size = self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(model))
        return list(self._api.llama_get_logits_ith(self._context, -1)[:size])

    def facts(self) -> dict[str, Any]:
        """The weights that one token reads: all but the table of positions."""
        return {"weight_bytes": self._bytes}


def bytes_per_token(path: Path) -> int:
    """The weights of a file that one token reads: all but the table of positions."""
    import gguf

    tensors = gguf.GGUFReader(path).tensors
    return sum(int(t.n_bytes) for t in tensors if t.name != "position_embd.weight")
