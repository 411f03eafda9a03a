#!/usr/bin/env python3
"""Reads the machine code of the CUDA kernels and checks what it costs to run them.

    check_resources.py FILE...      static libraries or objects with uncompressed fat binaries

Prints one row per kernel and architecture: registers, bytes of stack frame, statically allocated
shared memory, the bound on threads per block, and counts of instructions. Fails when a kernel has a
stack frame or touches local memory (spilt registers, arrays that are indexed at run time), unless
its name begins with "reference_"; when its block would need more registers than there are; and
when a kernel whose name begins with "wgmma_" has no HGMMA instruction for compute capability 9.0.

The fat binary is read directly, since cuobjdump is not part of every toolkit: a cubin is an ELF
file of machine 190, whose .nv.info holds attributes by kernel.
"""
import collections
import re
import shutil
import struct
import subprocess
import sys

MACHINE_CUDA = 190
REGISTERS_OF_A_MULTIPROCESSOR = 65536
# Attributes of .nv.info, and formats.
FRAME_SIZE, REGCOUNT, MAX_THREADS = 0x11, 0x2F, 0x05
FORMAT_SIZED = 4
# Low 12 bits of an instruction, compute capability 7.0 to 9.0.
OPCODES = {0x9F0: "HGMMA", 0x23C: "HMMA", 0x983: "LDL", 0x387: "STL"}

Kernel = collections.namedtuple("Kernel", "name arch registers frame shared threads opcodes")


def cubins(data):
    """The embedded cubins, as bytes that begin at their ELF header."""
    at = data.find(b"\x7fELF")
    while at >= 0:
        if len(data) >= at + 64 and struct.unpack_from("<H", data, at + 18)[0] == MACHINE_CUDA:
            yield data[at:]
        at = data.find(b"\x7fELF", at + 4)


def text_at(data, at):
    return data[at:data.index(b"\0", at)].decode()


def sections(elf):
    """(name, type, offset, size, info) of each section."""
    table, = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    raw = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * size) for i in range(count)]
    strings = raw[names][4]
    return [(text_at(elf, strings + s[0]), s[1], s[4], s[5], s[7]) for s in raw]


def attributes(elf, offset, size):
    """(attribute, payload) of one .nv.info section."""
    end = offset + size
    while offset < end:
        form, attribute, length = struct.unpack_from("<BBH", elf, offset)
        offset += 4
        if form == FORMAT_SIZED:
            yield attribute, elf[offset:offset + length]
            offset += length


def kernels_of(elf):
    flags, = struct.unpack_from("<I", elf, 48)
    arch = flags >> 8 & 0xFF if elf[8] >= 8 else flags & 0xFF
    found = sections(elf)
    by_name = {s[0]: s for s in found}
    symbols, strings = by_name[".symtab"], by_name[".strtab"]
    symbol = [text_at(elf, strings[2] + struct.unpack_from("<I", elf, symbols[2] + 24 * i)[0])
              for i in range(symbols[3] // 24)]
    registers, frames = {}, {}
    for attribute, payload in attributes(elf, *by_name[".nv.info"][2:4]):
        if attribute in (REGCOUNT, FRAME_SIZE):
            index, value = struct.unpack("<II", payload)
            (registers if attribute == REGCOUNT else frames)[symbol[index]] = value
    for name, _, offset, size, _ in found:
        if not name.startswith(".text."):
            continue
        name = name[len(".text."):]
        threads = 1024
        for attribute, payload in attributes(elf, *by_name[".nv.info." + name][2:4]):
            if attribute == MAX_THREADS:
                x, y, z = struct.unpack("<III", payload)
                threads = x * y * z
        counts = collections.Counter()
        for at in range(offset, offset + size, 16):
            opcode = OPCODES.get(struct.unpack_from("<H", elf, at)[0] & 0xFFF)
            counts[opcode] += 1
        shared = by_name.get(".nv.shared." + name, (0, 0, 0, 0))[3]
        yield Kernel(name, arch, registers[name], frames.get(name, 0), shared, threads, counts)


def readable(names):
    """Mangled names to what a person calls them: the kernel and its template's arguments."""
    result = dict(zip(names, names))
    if names and shutil.which("c++filt"):
        text = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True,
                              check=True).stdout.splitlines()
        for name, line in zip(names, text):
            line = re.sub(r"\(anonymous namespace\)::|\w+::|_INTERNAL\w+::", "", line)
            line = re.sub(r"^void ", "", line)
            line = re.sub(r"\((?:bool|int)\)", "", line)
            depth = end = 0
            for end, character in enumerate(line):  # up to the parameter list
                depth += {"<": 1, ">": -1}.get(character, 0)
                if character == "(" and depth == 0:
                    break
            result[name] = line[:end].rstrip()
    return result


def faults(kernel, name):
    if not name.startswith("reference_"):
        if kernel.frame:
            yield f"a stack frame of {kernel.frame} bytes"
        if kernel.opcodes["LDL"] or kernel.opcodes["STL"]:
            yield "loads or stores of local memory"
    if kernel.registers * kernel.threads > REGISTERS_OF_A_MULTIPROCESSOR:
        yield f"{kernel.registers} registers for each of {kernel.threads} threads"
    if name.startswith("wgmma_") and kernel.arch == 90 and not kernel.opcodes["HGMMA"]:
        yield "no HGMMA instruction"


def main(paths):
    found = []
    for path in paths:
        with open(path, "rb") as file:
            for elf in cubins(file.read()):
                found.extend(kernels_of(elf))
    if not found:
        print(f"no kernels in {', '.join(paths)}: were they built with --compress-mode=none?")
        return 1
    names = readable(sorted({kernel.name for kernel in found}))
    rows = [(names[k.name], k) for k in found]
    rows.sort(key=lambda row: (row[0], row[1].arch))
    width = max(len(name) for name, _ in rows)
    print(f"{'kernel':{width}}  arch  regs  frame  shared  threads  HMMA  HGMMA  LDL+STL")
    bad = []
    for name, k in rows:
        local = k.opcodes["LDL"] + k.opcodes["STL"]
        print(f"{name:{width}}  {k.arch:4}  {k.registers:4}  {k.frame:5}  {k.shared:6}  "
              f"{k.threads:7}  {k.opcodes['HMMA']:4}  {k.opcodes['HGMMA']:5}  {local:7}")
        bad += [f"{name} for {k.arch}: {fault}" for fault in faults(k, name)]
    print(f"{len(rows)} kernels, {len(bad)} faults")
    for line in bad:
        print("FAULT", line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
