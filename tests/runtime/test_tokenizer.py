"""The checkpoint's tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.runtime.tokenizer import Tokenizer

WORDS = {"<bos>": 0, "<eos>": 1, "<pad>": 2, "a": 3, "b": 4, "<tool>": 5}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def write(folder: Path, *, adds_bos: bool = False, **config: Any) -> Tokenizer:
    library = Library(models.WordLevel(WORDS, unk_token="<pad>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens([AddedToken("<tool>", special=True)])
    if adds_bos:
        library.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    library.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}, "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, **config}))
    return Tokenizer(folder)


def test_names(tmp_path: Path) -> None:
    tokenizer = write(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1, 2)
    assert tokenizer.vocab_size == 6
    assert tokenizer.all_special_ids == [0, 1, 2, 5]
    assert tokenizer.convert_ids_to_tokens([3, 99]) == ["a", None]
    assert tokenizer.convert_tokens_to_ids(["b", "c"]) == [4, None]
    assert tokenizer.get_vocab()["a"] == 3


@pytest.mark.parametrize("adds_bos", [False, True])
def test_bos_comes_once(tmp_path: Path, adds_bos: bool) -> None:
    tokenizer = write(tmp_path, adds_bos=adds_bos)
    assert tokenizer.encode("a b") == [0, 3, 4]
    assert tokenizer.encode("a b", add_special_tokens=False) == [3, 4]


def test_no_bos_where_the_checkpoint_wants_none(tmp_path: Path) -> None:
    assert write(tmp_path, bos_token=None).encode("a") == [3]
    assert write(tmp_path, add_bos_token=False).encode("a") == [3]


def test_special_tokens_are_skipped_by_wish(tmp_path: Path) -> None:
    tokenizer = write(tmp_path)
    assert tokenizer.decode([0, 3, 5, 4, 1], skip_special_tokens=True) == "a b"
    assert tokenizer.decode([0, 3]) == "<bos> a"
    assert tokenizer.decode(3) == "a"


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("tokenizer.json", None, "DI310"),
        ("tokenizer.json", "{}", "DI311"),
        ("tokenizer_config.json", "{", "DI311"),
        ("tokenizer_config.json", "[]", "DI311"),
    ],
)
def test_a_broken_checkpoint_is_named(tmp_path: Path, name: str, content: str | None, code: str) -> None:
    write(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        Tokenizer(tmp_path)
    assert caught.value.diagnostics[0].code == code
    assert name in caught.value.diagnostics[0].file


MESSAGES = [{"role": "user", "content": "a <b>"}, {"role": "assistant", "content": "b"}]


def test_chat_template(tmp_path: Path) -> None:
    tokenizer = write(tmp_path, chat_template=TEMPLATE)
    assert tokenizer.apply_chat_template(MESSAGES[:1]) == "<bos>[user]a <b>[assistant]"
    tools = [{"name": "é<"}]
    assert tokenizer.apply_chat_template(MESSAGES[:1], tools=tools).endswith('[{"name": "é<"}][assistant]')
    assert tokenizer.apply_chat_template(MESSAGES[:1], chat_template="{{ x }}", x="y") == "y"


def test_the_last_message_is_continued(tmp_path: Path) -> None:
    tokenizer = write(tmp_path, chat_template=TEMPLATE + "{{ eos_token }}")
    text = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=False, continue_final_message=True)
    assert text == "<bos>[user]a <b>[assistant]b"
    with pytest.raises(InputError, match="add_generation_prompt"):
        tokenizer.apply_chat_template(MESSAGES, continue_final_message=True)


def test_a_template_in_a_file_or_a_list(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("from file")
    assert write(tmp_path).apply_chat_template([]) == "from file"
    named = [{"name": "default", "template": "from list"}, {"name": "tool_use", "template": "x"}]
    assert write(tmp_path, chat_template=named).apply_chat_template([]) == "from list"


@pytest.mark.parametrize(
    ("template", "code"),
    [
        (None, "DI312"),
        ("{{ raise_exception('no system role') }}", "DI313"),
        ("{% for %}", "DI313"),
        ("{{ messages.__class__.__mro__ }}", "DI313"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "DI313"),
    ],
)
def test_template_faults(tmp_path: Path, template: str | None, code: str) -> None:
    tokenizer = write(tmp_path, chat_template=template)
    with pytest.raises(InputError) as caught:
        tokenizer.apply_chat_template(MESSAGES)
    assert caught.value.diagnostics[0].code == code
