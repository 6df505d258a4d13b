"""vLLM methods that this engine does not offer: each says in one line why."""

from __future__ import annotations

from typing import Any, NoReturn


class NotOffered:
    """Mixin of ``LLM``; every method raises ``NotImplementedError``."""

    def reset_prefix_cache(self, *_: Any, **__: Any) -> NoReturn:
        """There is no prefix cache."""
        raise NotImplementedError("reset_prefix_cache: there is no prefix cache in this engine")

    def reset_mm_cache(self, *_: Any, **__: Any) -> NoReturn:
        """There is no multi-modal cache."""
        raise NotImplementedError("reset_mm_cache: there is no multi-modal cache in this engine")

    def sleep(self, *_: Any, **__: Any) -> NoReturn:
        """Memory is planned once."""
        raise NotImplementedError("sleep: memory is planned at compile time and never released; use shutdown()")

    def wake_up(self, *_: Any, **__: Any) -> NoReturn:
        """There is no sleep to wake from."""
        raise NotImplementedError("wake_up: this engine cannot sleep")

    def release_kv_cache_memory(self, *_: Any, **__: Any) -> NoReturn:
        """Memory is planned once."""
        raise NotImplementedError("release_kv_cache_memory: the cache is planned at compile time and never released")

    def collective_rpc(self, *_: Any, **__: Any) -> NoReturn:
        """Ranks run the same program."""
        raise NotImplementedError("collective_rpc: every rank runs the same program, so there is nobody to call")

    def apply_model(self, *_: Any, **__: Any) -> NoReturn:
        """The model is compiled in."""
        raise NotImplementedError("apply_model: the model is compiled into the engine")

    def beam_search(self, *_: Any, **__: Any) -> NoReturn:
        """The scheduler has no beams."""
        raise NotImplementedError("beam_search: the compiled scheduler has no beams")

    def encode(self, *_: Any, **__: Any) -> NoReturn:
        """The engine generates."""
        raise NotImplementedError("encode: this engine only generates; it has no pooling")

    def embed(self, *_: Any, **__: Any) -> NoReturn:
        """The engine generates."""
        raise NotImplementedError("embed: this engine only generates; it has no pooling")

    def classify(self, *_: Any, **__: Any) -> NoReturn:
        """The engine generates."""
        raise NotImplementedError("classify: this engine only generates; it has no pooling")

    def score(self, *_: Any, **__: Any) -> NoReturn:
        """The engine generates."""
        raise NotImplementedError("score: this engine only generates; it has no pooling")
