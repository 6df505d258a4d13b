"""The top-level folders install as sub-packages of one import package; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = ("specs", "codegen", "templates", "runtime")
package_dir = {"deepinfer_gen": "src/deepinfer_gen", **{f"deepinfer_gen.{f}": f for f in FOLDERS}}
packages = ["deepinfer_gen"] + [
    f"deepinfer_gen.{p}" for f in FOLDERS for p in (f, *(f"{f}.{s}" for s in find_packages(f)))
]
setup(package_dir=package_dir, packages=packages)
