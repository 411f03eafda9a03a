"""One HDF5 file for one figure: its collected.h5 and its points, byte for byte, and back.

    python -m analysis.pack pack results/dlora/fig10 fig10.h5
    python -m analysis.pack unpack fig10.h5 results/dlora/fig10

A point file is a dataset of bytes, compressed, with its SHA-256; unpacking checks it. For carrying
results off a machine that is lent for minutes.
"""
from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import h5py
import numpy as np


def pack(folder: Path, target: Path) -> int:
    files = sorted(path for path in folder.rglob("*.h5") if path.is_file())
    if not any(path.name == "collected.h5" for path in files):
        raise ValueError(f"{folder}: no collected.h5 here; give a figure's folder in results/")
    partial = target.with_name(target.name + ".part")
    with h5py.File(partial, "w") as packed:
        packed.attrs["description"] = "files of one figure, packed by python -m analysis.pack"
        for path in files:
            data = np.frombuffer(path.read_bytes(), dtype=np.uint8)
            dataset = packed.create_dataset(path.relative_to(folder).as_posix(), data=data,
                                            compression="gzip", shuffle=False)
            dataset.attrs["sha256"] = hashlib.sha256(data.tobytes()).hexdigest()
    partial.replace(target)
    return len(files)


def unpack(source: Path, folder: Path) -> int:
    count = 0
    with h5py.File(source, "r") as packed:
        def write(name: str, item: object) -> None:
            nonlocal count
            if not isinstance(item, h5py.Dataset):
                return
            data = item[()].tobytes()
            if hashlib.sha256(data).hexdigest() != item.attrs.get("sha256"):
                raise ValueError(f"{source}: {name} is damaged (its SHA-256 does not match)")
            path = folder / name
            if folder.resolve() not in path.resolve().parents:
                raise ValueError(f"{source}: {name} would lie outside {folder}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            count += 1

        packed.visititems(write)
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description="a figure's results as one file, and back")
    parser.add_argument("command", choices=["pack", "unpack"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    try:
        work = pack if arguments.command == "pack" else unpack
        count = work(arguments.source, arguments.target)
    except (OSError, ValueError) as problem:
        where = "" if str(arguments.source) in str(problem) else f"{arguments.source}: "
        print(f"analysis.pack: error: {where}{problem}", file=sys.stderr)
        return 1
    print(f"{arguments.target}: {count} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
