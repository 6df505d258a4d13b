"""What a folder that differs from its manifest is told to do."""

from pathlib import Path

import pytest
from sample_folder import sample_files

from deepinfer_gen.codegen.write import write_folder
from deepinfer_gen.diagnostics import InputError
from deepinfer_gen.manifest import MANIFEST, read_folder


def test_the_remedy_writes_the_folder_in_the_form_that_it_has(tmp_path: Path) -> None:
    folder = write_folder(sample_files(), tmp_path / "sample").path
    (folder / "PLAN.md").write_text("edited")
    with pytest.raises(InputError) as caught:
        read_folder(folder)
    (fault,) = caught.value.diagnostics
    assert fault.help == f"write the folder anew: deepinfer-gen sample.yaml -o {tmp_path} --standalone --force"
    (folder / MANIFEST).write_text("{}")
    with pytest.raises(InputError, match=f"deepinfer-gen SPEC.yaml -o {tmp_path} --force"):
        read_folder(folder)
