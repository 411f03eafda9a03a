"""servelab archive: results as something that can be kept, checked, and cited.

Exit codes: 0; 1 when a figure is not redrawn as packed, a point is not computed again as packed, a
metric moved, or a disk failed; 2 for bad input and for archives that are refused.
"""
from __future__ import annotations

import argparse
import random
import re
import tempfile
from pathlib import Path
from typing import Callable

from analysis import h5_file, verb
from analysis.archive.layout import ArchiveError
from analysis.errors import ResultsError, quoted, shown
from analysis.verb import FAILED, OK, tell


def size_text(size: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000 or unit == "MB":
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size} bytes"
        size /= 1000  # type: ignore[assignment]
    return ""


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = verb.Parser(prog="servelab archive", description=__doc__,
                     formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB",
                                  parser_class=verb.Parser)
    pack = verbs.add_parser("pack", help="results of one or more specs, with their figures")
    pack.add_argument("spec_ids", nargs="+", metavar="SPEC_ID", help="such as dlora/fig10")
    pack.add_argument("--out", type=Path, required=True, metavar="ARCHIVE",
                      help="a new folder, or a new file NAME.tar.zst")
    pack.add_argument("--results", type=Path, default=Path("results"), metavar="DIR",
                      help="where the runs are (default: results)")
    pack.add_argument("--title", default="", help="default: the specs' titles")
    pack.add_argument("--author", action="append", default=[],
                      metavar="'NAME <https://orcid.org/...>'",
                      help="as often as there are authors")
    pack.add_argument("--licence", default=None, metavar="URL", help="default: Apache-2.0")
    pack.add_argument("--sign", type=Path, metavar="KEY",
                      help="an ssh key: who has its public half knows whose results these are")
    verify = verbs.add_parser("verify", help="check everything, and draw the figures again")
    verify.add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")
    verify.add_argument("--out", type=Path, metavar="DIR", help="keep what was drawn there")
    verify.add_argument("--only", action="append", default=[], metavar="SPEC_ID",
                        help="draw this spec's figure only")
    verify.add_argument("--recompute", type=_count, default=0, metavar="N",
                        help="also run N points again, chosen at random, with the build at hand")
    verify.add_argument("--signer", type=Path, metavar="KEY.pub",
                        help="refuse what this ssh key did not sign; or a file of allowed signers")
    unpack = verbs.add_parser("unpack", help="a .tar.zst as a folder, once it was checked")
    unpack.add_argument("archive", type=Path, metavar="ARCHIVE")
    unpack.add_argument("--out", type=Path, metavar="DIR",
                        help="a new folder; default: the file's name without .tar.zst")
    diff = verbs.add_parser("diff", help="which metrics moved from A to B beyond noise")
    diff.add_argument("a", type=Path, metavar="A")
    diff.add_argument("b", type=Path, metavar="B")
    listing = verbs.add_parser("list", help="what archives hold")
    listing.add_argument("archives", nargs="+", type=Path, metavar="ARCHIVE")
    listing.add_argument("--files", action="store_true", help="every file, too")
    for reading in (verify, unpack, diff, listing):
        reading.add_argument("--limit", type=_size, metavar="SIZE",
                             help="most that an archive may take on the disk, and each of its "
                             "files in memory, such as 20G (default: half of what is free)")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no number of points, such as 3")
    return int(text)


def _size(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,14})([kMGT]?)B?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no size, such as 500M or 20G")
    return int(match[1]) * 1000 ** " kMGT".index(match[2] or " ")


def pack_command(options: argparse.Namespace) -> int:
    from analysis.archive import packing
    sizes = packing.pack(options.spec_ids, options.results, options.out, options.title,
                         options.author, options.licence or packing.LICENCE, options.sign)
    size = f", {size_text(options.out.stat().st_size)}" if options.out.is_file() else ""
    print(f"{shown(options.out)}: {len(sizes)} files with {size_text(sum(sizes.values()))}{size}")
    if not options.author:
        print("no author is named; where it is to get a DOI, pack it with --author")
    return OK


def verify_command(options: argparse.Namespace) -> int:
    code = OK
    for name in options.archives:
        try:
            with tempfile.TemporaryDirectory(prefix="servelab-drawn-") as drawn:
                code = max(code, _verify(name, options.out or Path(drawn), options))
        except (ArchiveError, ResultsError) as error:
            code = max(code, tell(error))
    return code


def _verify(name: Path, out: Path, options: argparse.Namespace) -> int:
    from analysis.archive import checking, signing
    code, written = OK, []
    with checking.opened(name, options.limit) as archive:
        unknown = sorted(set(options.only) - set(archive.spec_ids))
        if unknown:
            raise ArchiveError(f"{name}: holds no {', '.join(unknown)}; it holds "
                               f"{', '.join(archive.spec_ids)}")
        signer = (signing.check_signer(archive.folder, name, options.signer) if options.signer
                  else "")
        unknown = checking.prove(archive)
        checking.check_derived(archive)
        print(f"{name}: whole: {len(archive.sizes)} files with "
              f"{size_text(sum(archive.sizes.values()))}, manifest {archive.sha256}")
        if unknown:
            print(f"{name}: metrics that this servelab cannot derive: {', '.join(unknown)}")
        if signer:
            print(f"{name}: signed by {signer}")
        elif archive.signed_by:
            print(f"{name}: signed by {archive.signed_by}, whoever that is; --signer names whom "
                  "you trust")
        if options.recompute:
            code = max(code, _recompute(archive, options.recompute))
        other = checking.drawn_by_other_code(archive)
        for spec_id in options.only or archive.spec_ids:
            redrawn = checking.redraw(archive, spec_id, out)
            written += redrawn.files
            if not redrawn.different:
                print(f"{spec_id}: drawn again, the same bytes: "
                      f"{', '.join(path.name for path in redrawn.files)}")
            elif other:
                print(f"{spec_id}: drawn again by other code; {', '.join(redrawn.different)} "
                      f"differ ({'; '.join(other)})")
            else:
                code = tell(ArchiveError(f"{name}: {spec_id}: {', '.join(redrawn.different)} is "
                                         "not what its results and the same code draw"), FAILED)
    if options.out is not None:
        for path in (path for path in written if path.suffix == ".txt"):
            print(f"\n{path.read_text(encoding='utf-8')}")
        print(f"Drawn in {out.resolve()}:")
        for path in written:
            print(f"  {shown(path)}")
    return code


def _recompute(archive: "object", count: int) -> int:
    from analysis.archive import recomputing
    code, same = OK, []
    for one in recomputing.recompute(archive, count, random.SystemRandom()):
        if not one.difference:
            same.append(f"{one.spec_id} row {one.row}")
            continue
        by = ("by the same build" if one.builds[0] == one.builds[1] else
              f"by build {one.builds[1]}, where the archive's is {one.builds[0]}")
        code = tell(ArchiveError(f"{archive.name}: {one.spec_id}: row {one.row}, computed again "
                                 f"{by}, is another result: {one.difference}"), FAILED)
    if same:
        print(f"{archive.name}: {len(same)} points computed again, the same results: "
              f"{', '.join(same)}")
    return code


def unpack_command(options: argparse.Namespace) -> int:
    from analysis.archive import checking, container
    target = options.out
    if target is None:
        if not options.archive.name.endswith(container.SUFFIX):
            raise ArchiveError(f"{options.archive}: does not end in {container.SUFFIX}; say with "
                               "--out which folder is to be made")
        target = Path(options.archive.name.removesuffix(container.SUFFIX))
    archive = checking.unpack(options.archive, target, options.limit)
    print(f"{shown(target)}: {len(archive.sizes)} files with "
          f"{size_text(sum(archive.sizes.values()))}")
    return OK


def diff_command(options: argparse.Namespace) -> int:
    from analysis.archive import checking, comparing
    with checking.opened(options.a, options.limit) as a, \
            checking.opened(options.b, options.limit) as b:
        common = [spec_id for spec_id in a.spec_ids if spec_id in b.spec_ids]
        if not common:
            raise ArchiveError(f"{options.b}: holds no spec of {options.a}, which holds "
                               f"{', '.join(a.spec_ids)}")
        diffs = [comparing.compare(a.results(spec_id), b.results(spec_id)) for spec_id in common]
        comparing.judge(diffs)
        for one, other, side in ((a, b, options.a), (b, a, options.b)):
            for spec_id in one.spec_ids:
                if spec_id not in other.spec_ids:
                    print(f"{spec_id}: only in {side}")
    for diff in diffs:
        _print_diff(diff)
    lost = any(diff.lost for diff in diffs) or len(common) < len(a.spec_ids)
    return FAILED if lost or any(diff.moved for diff in diffs) else OK


def _print_diff(diff: "object") -> None:
    builds = ("same build id " + diff.build_ids[0] if diff.build_ids[0] == diff.build_ids[1]
              else f"build id {diff.build_ids[0]} -> {diff.build_ids[1]}")
    print(f"{diff.spec_id}: {diff.pairs} points in both, {builds}")
    for text in diff.settings:
        print(f"  setting  {text}")
    for text in diff.lost:
        print(f"  lost     {text}")
    for text in diff.new:
        print(f"  new      {text}")
    for change in diff.moved:
        print(f"  moved    {change.text()}")
    noise, single = len(diff.changes) - len(diff.moved), diff.one_seed
    print(f"  {len(diff.moved)} metrics moved beyond noise, {noise} within it, {diff.same} the "
          f"same" + (f"; {len(single)} differ with one seed, which tells nothing of noise: "
                     f"{single[0].text()}" + (", ..." if len(single) > 1 else "")
                     if single else ""))


def list_command(options: argparse.Namespace) -> int:
    from analysis.archive import checking
    code = OK
    for name in options.archives:
        try:
            with checking.opened(name, options.limit) as archive:
                _print_list(archive, options.files)
        except (ArchiveError, ResultsError) as error:
            code = max(code, tell(error))
    return code


def _print_list(archive: "object", files: bool) -> None:
    facts = archive.facts
    print(f"{archive.name}: {facts['about']['title']}; schema {facts['schema']}, "
          f"{len(archive.sizes)} files with {size_text(sum(archive.sizes.values()))}, manifest "
          f"{archive.sha256}")
    for spec in facts["specs"]:
        print(f"  {spec['id']}: {spec['points']} points"
              + (f", {spec['invalid']} INVALID" if spec["invalid"] else "")
              + f"; {', '.join(spec['techniques'])}; seeds {len(spec['seeds'])}; "
              f"{spec['hardware']}, {spec['model']}, backend {spec['backend']}; build id "
              f"{', '.join(spec['build_ids'])}; {', '.join(spec['figures'])}")
    if files:
        for file, size in archive.sizes.items():
            print(f"  {size:>12}  {file}")


def main(arguments: list[str] | None = None) -> int:
    commands = {"pack": pack_command, "verify": verify_command, "unpack": unpack_command,
                "diff": diff_command, "list": list_command}
    return verb.run(arguments, parse, lambda options: _within(options, commands[options.verb]))


def _within(options: argparse.Namespace, command: Callable[[argparse.Namespace], int]) -> int:
    """Runs the command with --limit as what one file may take in memory."""
    h5_file.MEMORY_LIMIT = getattr(options, "limit", None)
    try:
        return command(options)
    finally:
        h5_file.MEMORY_LIMIT = None
