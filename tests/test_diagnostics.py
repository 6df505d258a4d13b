import json

from deepinfer_gen.diagnostics import Diagnostic, InputError, render_diagnostics

FAULT = Diagnostic(
    code="DI012",
    message="'dpp' is no key of parallel",
    file="bad.yaml",
    line=4,
    column=3,
    excerpt="  dpp: 8",
    help="dp?",
)


def test_text_has_place_caret_and_help():
    assert FAULT.as_text().splitlines() == [
        "bad.yaml:4:3: error[DI012]: 'dpp' is no key of parallel",
        "      dpp: 8",
        "      ^",
        "help: dp?",
    ]


def test_every_fault_of_a_run_is_rendered_once():
    other = Diagnostic(code="DI001", message="100% wrong\nreally")
    assert [json.loads(line)["code"] for line in render_diagnostics([FAULT, other], "json").splitlines()] == [
        "DI012",
        "DI001",
    ]
    github = render_diagnostics([FAULT, other], "github").splitlines()
    assert github[0] == "::error file=bad.yaml,line=4,col=3,title=DI012::'dpp' is no key of parallel help: dp?"
    assert github[1] == "::error title=DI001::100%25 wrong%0Areally"
    assert str(InputError([FAULT, other])).count("error[") == 2
