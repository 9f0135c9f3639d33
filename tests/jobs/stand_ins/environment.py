"""Owns an environment in which what stands in for an engine lies beside the packages of this one."""

from __future__ import annotations

import site
import venv
from pathlib import Path

HERE = Path(__file__).parent


def python_with_stand_ins(folder: Path) -> str:
    """The interpreter of a new one in the folder."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "stand_ins.pth").write_text("\n".join([*site.getsitepackages(), str(HERE), str(HERE.parent)]))
    return str(folder / "bin/python")
