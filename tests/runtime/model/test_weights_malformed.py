"""Files that are no checkpoint: whatever the bytes, the answer is an ``InputError``, and nothing stays open."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from checkpoints import (
    INDEX,
    SMALL,
    edit_index,
    join_shard,
    one_layer_config,
    plan_of,
    split_bytes,
    split_shard,
    write_random,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer_gen.diagnostics import Diagnostic, InputError
from deepinfer_gen.runtime import weights_files
from deepinfer_gen.runtime.model.constants import Constants
from deepinfer_gen.runtime.plan_types import ModelPlan
from deepinfer_gen.runtime.weights import Weights, load_weights
from deepinfer_gen.runtime.weights_header import StoredTensor, parse_header
from deepinfer_gen.runtime.weights_names import demand

SHARD, OTHER = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@dataclass(frozen=True)
class Case:
    """A one-layer checkpoint in a folder that a test may spoil, and its plan."""

    plan: ModelPlan
    folder: Path
    whole: dict[str, bytes]

    def load(self) -> Weights:
        return load_weights(self.plan, Constants.of(self.plan), self.folder)

    def told(self) -> tuple[Diagnostic, ...]:
        """What loading says is wrong: nothing where it works."""
        try:
            self.load()
        except InputError as error:
            return error.diagnostics
        return ()

    def faults(self) -> list[str]:
        told = self.told()
        assert told
        assert all(d.help for d in told)
        return [d.as_text() for d in told]

    def restore(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        for name, content in self.whole.items():
            (self.folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("small")
    plan = plan_of(folder / "plan", one_layer_config(**SMALL))
    write_random(folder / "checkpoint", demand(plan, Constants.of(plan)).all)
    whole = {path.name: path.read_bytes() for path in (folder / "checkpoint").iterdir()}
    return Case(plan, folder / "checkpoint", whole)


@pytest.fixture
def case(pristine: Case) -> Iterator[Case]:
    yield pristine
    pristine.restore()


def test_the_checkpoint_loads(case: Case) -> None:
    """3 globals, 10 + 1 + 2 of attention, 2 norms, 6 + 3 + 6 of streams, gate and shared expert, 4 + 3 of a source."""
    assert case.load().report.loaded == 3 + 13 + 2 + 15 + 7 + 2 * 6


HEADERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "DI353]: the file has"),
    "space": (b" ", "DI353]: the header cannot be read"),
    "a list": (b"[]", "DI353]: the header cannot be read: it is no JSON object: []"),
    "a number": (b"1", "DI353]: the header cannot be read: it is no JSON object: 1"),
    "text": (b'"x"', "DI353]: the header cannot be read: it is no JSON object: 'x'"),
    "null": (b"null", "DI353]: the header cannot be read: it is no JSON object: None"),
    "no UTF-8": (b'{"\xff": 1}', "DI353]: the header cannot be read: 'utf-8' codec"),
    "UTF-16": ("{}".encode("utf-16"), "DI353]: the header cannot be read: 'utf-8' codec"),
    "deep": (b"[" * 100_000, "DI353]: the header cannot be read: it is nested too deeply"),
    "half": (b'{"x": ', "DI353]: the header cannot be read: Expecting value"),
    "a number of 5000 digits": (b'{"x": ' + b"1" * 5000 + b"}", "DI353]: the header cannot be read: Exceeds the limit"),
    "no tensor": (b"{}", "DI402]: the data end at byte 10 behind the header"),
    "metadata": (b'{"__metadata__": {"a": 1}}', "DI353]: the header's __metadata__ is no object of texts: {'a': 1}"),
    "a key twice": (b'{"x": {"dtype": "I8", "dtype": "I8"}}', "DI356]: the header names 'dtype' twice"),
}


@pytest.mark.parametrize("header", HEADERS)
def test_headers_that_cannot_be_read(header: str, case: Case) -> None:
    text, said = HEADERS[header]
    join_shard(case.folder / SHARD, text, split_shard(case.folder / SHARD)[1])
    assert case.faults()[0].startswith(f"{SHARD}: error[{said}")


ENTRIES: dict[str, tuple[Any, str]] = {
    "no object": (["I8"], "DI353]: tensor 'embed.weight' has the header entry ['I8'], expected dtype, shape and data"),
    "nothing": ({}, "DI353]: tensor 'embed.weight' has the header entry {}"),
    "type of a number": ({"dtype": 1}, "DI353"),
    "unknown type": ({"dtype": "F7"}, "DI403]: tensor 'embed.weight' has the type 'F7', expected one of BOOL, U8, I8"),
    "lower case": ({"dtype": "bf16"}, "DI403"),
    "half bytes": ({"dtype": "F4"}, "DI403"),
    "shape of text": ({"shape": "64"}, "DI353"),
    "shape of an object": ({"shape": {"64": 1}}, "DI353"),
    "negative length": ({"shape": [-64, -32]}, "DI353"),
    "broken length": ({"shape": [64.0, 32]}, "DI353"),
    "true as a length": ({"shape": [True, 2048]}, "DI353"),
    "a length of 65 bits": ({"shape": [1 << 64]}, "DI353"),
    "huge lengths": ({"shape": [(1 << 63) - 1] * 1000}, "DI353]: tensor 'embed.weight' BF16 [9223372036854775807, 922"),
    "another length": (
        {"shape": [64, 31]},
        "DI353]: tensor 'embed.weight' BF16 [64, 31] needs 3968 bytes, its range has",
    ),
    "huge and empty": (
        {"shape": [1 << 62, 0]},
        "DI353]: tensor 'embed.weight' BF16 [4611686018427387904, 0] needs 0 by",
    ),
    "one offset": ({"data_offsets": [0]}, "DI353"),
    "three offsets": ({"data_offsets": [0, 4096, 4096]}, "DI353"),
    "negative offsets": ({"data_offsets": [-4096, 0]}, "DI353"),
    "offsets the wrong way round": (
        {"data_offsets": [4096, 0]},
        "DI353]: tensor 'embed.weight' BF16 [64, 32] needs 409",
    ),
    "an offset of 64 bits": ({"data_offsets": [0, 1 << 63]}, "DI353]: tensor 'embed.weight' has the header entry"),
    "a huge offset": (
        {"data_offsets": [0, (1 << 63) - 1]},
        "DI353]: tensor 'embed.weight' ends at byte 92233720368547",
    ),
    "an overlap": ({"data_offsets": [4096, 8192]}, "DI402"),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_entries_that_cannot_be_read(entry: str, case: Case) -> None:
    value, said = ENTRIES[entry]
    header, data = split_shard(case.folder / SHARD)
    assert next(iter(header)) == "embed.weight"
    assert header["embed.weight"] == {"dtype": "BF16", "shape": [64, 32], "data_offsets": [0, 4096]}
    header["embed.weight"] = value if value in ({}, ["I8"]) else {**header["embed.weight"], **value}
    join_shard(case.folder / SHARD, json.dumps(header).encode(), data)
    assert case.faults()[0].startswith(f"{SHARD}: error[{said}")


def test_overlaps_holes_and_a_rest_are_told_apart(case: Case) -> None:
    header, data = split_shard(case.folder / SHARD)
    names = list(header)

    def said(change: Callable[[dict[str, Any]], object], tail: bytes = b"") -> str:
        spoilt = json.loads(json.dumps(header))
        change(spoilt)
        join_shard(case.folder / SHARD, json.dumps(spoilt).encode(), data + tail)
        return "\n".join(case.faults())

    size = len(json.dumps(header)) + 8
    assert f"'{names[1]}' begins at byte" not in said(lambda h: None, b"x")
    assert f"the data end at byte {size + len(data)} behind" in said(lambda h: None, b"x")
    moved = {n: [offset + 8 for offset in header[n]["data_offsets"]] for n in names[1:]}
    text = said(lambda h: [h[n].update(data_offsets=moved[n]) for n in names[1:]], bytes(8))
    assert f"tensor '{names[1]}' begins at byte" in text
    assert "behind 'embed.weight': a hole" in text
    same = {**header[names[0]]}
    text = said(lambda h: h.update({names[0]: same, "twin": same}))
    assert "tensor 'twin' begins at byte" in text
    assert "behind 'embed.weight': an overlap" in text


def test_a_shard_that_shrinks_before_it_is_mapped(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(name: str, *rest: Any) -> dict[str, StoredTensor]:
        tensors = parse_header(name, *rest)
        os.truncate(case.folder / name, 100)
        return tensors

    monkeypatch.setattr(weights_files, "parse_header", parse)
    size = len(case.whole[SHARD])
    assert f"{SHARD}: error[DI401]: the file had {size} bytes when it was checked and has 100 now" in case.faults()[0]


@pytest.mark.parametrize("length", [0, 1 << 20, 100_000_001, (1 << 63) + 5, (1 << 64) - 1])
def test_header_lengths_that_lie(length: int, case: Case) -> None:
    raw = case.whole[SHARD]
    (case.folder / SHARD).write_bytes(struct.pack("<Q", length) + raw[8:])
    assert case.faults() == [
        f"{SHARD}: error[DI353]: the file has {len(raw)} bytes and a header length of {length}: truncated\n"
        "help: download the shard again"
    ]


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # an address holds a hundred bytes
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "directory": (Path.mkdir, "it is no regular file"),
    "pipe": (os.mkfifo, "it is no regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is no regular file"),
    "socket": (make_socket, "No such device or address"),
    "link to itself": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [SHARD, INDEX])
def test_what_is_no_regular_file(kind: str, name: str, case: Case) -> None:
    make, said = KINDS[kind]
    (case.folder / name).unlink()
    make(case.folder / name)
    code = "DI352]: shard" if name == SHARD else "DI350]: the index cannot be read"
    (fault,) = case.faults()
    assert fault.startswith(f"{INDEX}: error[{code}")
    assert said in fault


def test_links_are_followed_and_one_to_nowhere_is_absent(case: Case, tmp_path: Path) -> None:
    """Shared caches keep the files elsewhere and link them into the folder."""
    (case.folder / SHARD).rename(tmp_path / "blob")
    (case.folder / SHARD).symlink_to(tmp_path / "blob")
    assert case.load().stored("embed.weight").shape == (64, 32)
    (tmp_path / "blob").unlink()
    assert f"DI352]: shard '{SHARD}' is absent; it should hold tensor 'embed.weight'" in case.faults()[0]


@pytest.mark.parametrize("shard", ["a\x00b", "a\nb", "\ud800", "a/../b", "a\\b", "./a"])
def test_names_that_are_no_file_names(shard: str, case: Case) -> None:
    edit_index(case.folder, lambda m: m.update({"embed.weight": shard}))
    (fault,) = case.faults()
    assert f"{INDEX}: error[DI351]: tensor 'embed.weight' lies in {shard!r}" in fault
    fault.encode()


def test_a_name_longer_than_a_file_system_holds(case: Case) -> None:
    edit_index(case.folder, lambda m: m.update({"embed.weight": "x" * 5000}))
    assert "DI352" in case.faults()[0]


INDEXES = {
    "null": ("null", "it is no JSON object: None"),
    "no map": ("{}", "weight_map is None, expected an object of file names"),
    "map of lists": ('{"weight_map": {"a": []}}', "weight_map is {'a': []}, expected an object of file names"),
    "a tensor twice": ('{"weight_map": {"a": "x", "a": "x"}}', "names 'a' twice"),
    "no UTF-8": (b"\xff", "'utf-8' codec"),
}


@pytest.mark.parametrize("index", INDEXES)
def test_indexes_that_cannot_be_read(index: str, case: Case) -> None:
    text, said = INDEXES[index]
    (case.folder / INDEX).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert case.faults()[0].startswith(f"{INDEX}: error[DI350]: the index cannot be read: {said}")


def test_a_total_that_differs_is_told_and_refuses_nothing(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    content = json.loads(case.whole[INDEX])
    held = case.load().report.loaded_bytes
    assert content["metadata"]["total_size"] == held
    assert caplog.messages == []
    with caplog.at_level(logging.WARNING):
        for metadata in ({"total_size": 1}, {"total_size": "many"}, [], {}):
            (case.folder / INDEX).write_text(json.dumps({**content, "metadata": metadata}))
            assert case.load().report.loaded_bytes == held
    assert caplog.messages == [f"{INDEX} states total_size 1; its shards hold {held} bytes"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def mutations(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A change of a shard's bytes: of one value of its header, of single bytes, or of the file's end."""
    kind = draw(st.sampled_from(["entry", "field", "name", "drop", "element", "bytes", "cut", "tail"]))
    pick, value = draw(st.integers(0, 10**6)), draw(JSON)
    places = draw(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3))

    def change(raw: bytes) -> bytes:
        length = struct.unpack("<Q", raw[:8])[0]
        if kind == "bytes":
            spoilt = bytearray(raw)
            for place, byte in places:
                spoilt[place % (8 + length)] = byte
            return bytes(spoilt)
        if kind == "cut":
            return raw[: pick % len(raw)]
        if kind == "tail":
            return raw + bytes(1 + pick % 100)
        header = json.loads(raw[8 : 8 + length])
        name = list(header)[pick % len(header)]
        entry = header[name]
        if kind == "entry":
            header[name] = value
        elif kind == "field":
            entry[("dtype", "shape", "data_offsets")[pick % 3]] = value
        elif kind == "name":
            header[str(value)] = header.pop(name)
        elif kind == "drop":
            del header[name]
        else:
            field = entry[("shape", "data_offsets")[pick % 2]]
            field[pick % len(field)] = value
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + raw[8 + length :]

    return change


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutation=mutations(), shard=st.sampled_from([SHARD, OTHER]))
def test_any_change_of_a_header_is_refused_in_a_sentence(case: Case, mutation: Any, shard: str) -> None:
    """Unless the header still says the same, as after a change of white space."""
    spoilt = mutation(case.whole[shard])
    (case.folder / shard).write_bytes(spoilt)
    told = case.told()
    assert all(d.code[:4] in ("DI35", "DI40") and d.file and d.help for d in told)
    assert told or split_bytes(spoilt) == split_bytes(case.whole[shard])
    (case.folder / shard).write_bytes(case.whole[shard])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3))
def test_any_change_of_the_index_is_refused_in_a_sentence(case: Case, places: list[tuple[int, int]]) -> None:
    spoilt = bytearray(case.whole[INDEX])
    for place, byte in places:
        spoilt[place % len(spoilt)] = byte
    (case.folder / INDEX).write_bytes(spoilt)
    told = case.told()
    assert all(d.code[:4] == "DI35" and d.file and d.help for d in told)
    assert told or json.loads(spoilt)["weight_map"] == json.loads(case.whole[INDEX])["weight_map"]


def test_nothing_stays_open_after_a_fault(case: Case) -> None:
    """The second shard is faulty; the first was opened and mapped before it."""
    (case.folder / OTHER).write_bytes(b"")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        case.faults()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert str(case.folder) not in Path("/proc/self/maps").read_text()
