"""The checkpoint's tokenizer: ``tokenizer.json`` through the tokenizers library, names from ``tokenizer_config.json``.

The method names are those of Hugging Face tokenizers, so that scripts which call ``llm.get_tokenizer()`` keep working.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime.chat_template import render_chat
from deepinfer_gen.runtime.checkpoint_files import read_object, read_text


class Tokenizer:
    """Text to ids and back. ``folder`` is the checkpoint; raises ``InputError`` (DI310, DI311) when it has none."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = _load_tokenizer(folder / "tokenizer.json")
        config = _load_config(folder / "tokenizer_config.json")
        self.bos_token = _token_text(config.get("bos_token"))
        self.eos_token = _token_text(config.get("eos_token"))
        self.pad_token = _token_text(config.get("pad_token"))
        self.chat_template: str | None = _chat_template(config.get("chat_template"), folder / "chat_template.jinja")
        self._adds_bos = bool(config.get("add_bos_token", True))
        self._special = self._special_ids()

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that begins a text, if the checkpoint names one."""
        return self._id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        """Id of the token that ends a text, if the checkpoint names one."""
        return self._id(self.eos_token)

    @property
    def pad_token_id(self) -> int | None:
        """Id of the padding token, if the checkpoint names one."""
        return self._id(self.pad_token)

    @property
    def all_special_ids(self) -> list[int]:
        """Ids that ``skip_special_tokens`` leaves out of the text."""
        return sorted(self._special)

    def get_vocab(self) -> dict[str, int]:
        """Token to id."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of ``text``, with BOS in front when the checkpoint names one and the tokenizer does not add it."""
        ids = list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        bos = self.bos_token_id
        if add_special_tokens and self._adds_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, token_ids: int | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of the ids; tokenizers without a decoder join their words by spaces."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        if skip_special_tokens and self._special:
            ids = [i for i in ids if i not in self._special]
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, token_ids: Sequence[int]) -> list[str | None]:
        """The vocabulary entries of the ids."""
        return [self._tokenizer.id_to_token(i) for i in token_ids]

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        """The ids of vocabulary entries; None for one that does not exist."""
        return [self._tokenizer.token_to_id(t) for t in tokens]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text of a conversation; ``chat_template`` replaces the checkpoint's own."""
        return render_chat(
            chat_template or self.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables={
                "bos_token": self.bos_token or "",
                "eos_token": self.eos_token or "",
                "pad_token": self.pad_token or "",
                "tools": tools,
                **variables,
            },
        )

    def _id(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_to_id(token)

    def _special_ids(self) -> frozenset[int]:
        """Ids of the named tokens and of the added tokens marked special."""
        named = (self.bos_token_id, self.eos_token_id, self.pad_token_id)
        added = self._tokenizer.get_added_tokens_decoder().items()
        return frozenset(i for i in named if i is not None) | {i for i, token in added if token.special}


def _load_tokenizer(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise InputError(
            Diagnostic(
                "DI310",
                f"the checkpoint has no tokenizer: '{path.name}' is missing",
                file=str(path),
                help="add the file of the release; a model with Engram tables needs it for prompts of token ids too",
            )
        )
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as fault:  # the library raises the bare class for every malformed file
        message, remedy = f"the tokenizer cannot be read: {fault}", "download the file again"
        raise InputError(Diagnostic("DI311", message, file=str(path), help=remedy)) from fault


def _load_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    return read_object(path, "the tokenizer config", "DI311")


def _token_text(entry: Any) -> str | None:
    """A special token is written as its text or as an object with ``content``."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def _chat_template(entry: Any, path: Path) -> str | None:
    """A template stands in the config, as text or as a list of named ones, or in a file of its own."""
    if isinstance(entry, list):
        named = [t for t in entry if isinstance(t, dict)]
        entry = next((t.get("template") for t in named if t.get("name") == "default"), None)
    if entry is None and path.is_file():
        entry = read_text(path, "the chat template", "DI311")
    return entry if isinstance(entry, str) else None
