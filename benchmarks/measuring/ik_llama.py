"""ik_llama.cpp as a peer: the fork of llama.cpp with kernels of its own for CPUs.

``pip install ik-llama-cpp-python`` brings it built for AVX2 alone, which would make a comparison
unfair where there is AVX-512. From its sources: the archive of 0.1.5 lacks ``common/cmake``, so
``common`` and ``examples/quantize`` have to be left out of its CMake files; it is installed with
``CMAKE_ARGS=-DGGML_NATIVE=ON``, and ``libggml.so`` must be found (``LD_LIBRARY_PATH``).
"""

from __future__ import annotations

from pathlib import Path

from measuring.llama import SILENT, Llama, bytes_per_token


class IkLlama(Llama):
    """One file, repacked while it loads, with flash attention and the default cache (f16)."""

    def __init__(self, path: Path, threads: int, context: int = 1024) -> None:
        from ik_llama_cpp import _ctypes_api as api

        self._api = api
        api._lib.llama_log_set(SILENT, None)
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.use_mmap, params.repack_tensors = False, True
        model = api.llama_model_load_from_file(bytes(path), params)
        if not model:
            raise RuntimeError(f"ik_llama.cpp could not load {path}")
        how = api.llama_context_default_params()
        how.n_ctx, how.n_batch, how.n_ubatch = context, context, 512
        how.n_threads = how.n_threads_batch = threads
        how.flash_attn = True
        self._context = api.llama_init_from_model(model, how)
        if not self._context:
            raise RuntimeError(f"ik_llama.cpp could not make a context of {context} for {path}")
        self._model, self._bytes, self._held = model, bytes_per_token(path), 0
        self._batch = api.llama_batch_init(context, 0, 1)

    def _evaluate(self, tokens: list[int]) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place] = token, self._held + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = place == len(tokens) - 1
        if code := self._api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode of {len(tokens)} tokens failed: code {code}")
        self._api.llama_get_logits_ith(self._context, len(tokens) - 1)  # waits for them
        self._held += len(tokens)

    def _clear(self) -> None:
        self._api.llama_kv_cache_clear(self._context)
        self._held = 0

    def logits(self, tokens: list[int]) -> list[float]:
        """The logits after the last token, to see that the file holds our model."""
        self._clear()
        self._evaluate(tokens)
        size = self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(self._model))
        found = self._api.llama_get_logits_ith(self._context, len(tokens) - 1)
        return [float(found[place]) for place in range(size)]
