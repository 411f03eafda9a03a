"""Signatures of archives, by ssh-keygen (OpenSSH 8.1 or newer): who holds the key vouches for the
manifest, and so for every byte. manifest-sha256.txt.sig is what
`ssh-keygen -Y sign -n servelab-archive -f KEY manifest-sha256.txt` writes."""
from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from analysis.archive.layout import MANIFEST, SIGNATURE, SIGNATURE_BYTES_MAX, ArchiveError
from analysis.errors import quoted

NAMESPACE = "servelab-archive"
PROGRAM = "ssh-keygen"
TIMEOUT_S = 120
KEY_TYPE = re.compile(r"(ssh|ecdsa|sk-ssh|sk-ecdsa)-\S+ \S+")


def _run(arguments: list[str], text: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run([PROGRAM, *arguments], input=text, capture_output=True, check=False,
                              timeout=TIMEOUT_S)
    except FileNotFoundError:
        raise ArchiveError(f"{PROGRAM} is missing, which signatures need; packages: openssh-client "
                           "(Debian), openssh-clients (Fedora), openssh (conda-forge)") from None
    except subprocess.TimeoutExpired:
        raise ArchiveError(f"{PROGRAM} did not answer in {TIMEOUT_S} s") from None


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    said = (done.stderr + done.stdout).decode("utf-8", "replace").strip().splitlines()
    return said[-1] if said else f"exit code {done.returncode}"


def sign(folder: Path, key: Path) -> None:
    """Signs the manifest in `folder` with a private key, or by the agent that holds the private
    half of a public one; asks for its passphrase on the terminal. Raises ArchiveError."""
    if not key.is_file():
        raise ArchiveError(f"{key}: no such key; make one with: ssh-keygen -t ed25519 -f {key}")
    done = _run(["-q", "-Y", "sign", "-n", NAMESPACE, "-f", str(key), str(folder / MANIFEST)])
    if done.returncode or not (folder / SIGNATURE).is_file():
        raise ArchiveError(f"{key}: cannot sign: {_reason(done)}")


def key_of(folder: Path, archive: Path) -> str:
    """The fingerprint of the key that signed; empty for an archive without a signature. Raises
    ArchiveError where the signature is not that of the manifest."""
    path = folder / SIGNATURE
    if not path.is_file():
        return ""
    if path.stat().st_size > SIGNATURE_BYTES_MAX:
        raise ArchiveError(f"{archive}: {SIGNATURE} is larger than any signature")
    done = _run(["-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(path)],
                (folder / MANIFEST).read_bytes())
    found = re.search(rb"SHA256:[A-Za-z0-9+/=]+", done.stdout)
    if done.returncode or not found:
        raise ArchiveError(f"{archive}: {SIGNATURE} is not a signature of {MANIFEST}: "
                           f"{_reason(done)}")
    return found[0].decode()


def check_signer(folder: Path, archive: Path, signers: Path) -> str:
    """Who of `signers` signed: a file of public keys, or of allowed signers (ssh-keygen(1)). Raises
    ArchiveError when nobody of them did."""
    try:
        text = signers.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ArchiveError(f"{signers}: cannot be read: {reason}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()
             and not line.lstrip().startswith("#")]
    if not lines or "PRIVATE KEY" in text:
        raise ArchiveError(f"{signers}: holds no public key; give a .pub file, or one of allowed "
                           "signers")
    if not (folder / SIGNATURE).is_file():
        raise ArchiveError(f"{archive}: is not signed: it has no {SIGNATURE}")
    key = key_of(folder, archive)
    manifest = (folder / MANIFEST).read_bytes()
    with tempfile.NamedTemporaryFile("w", prefix="servelab-signers-", encoding="utf-8") as allowed:
        for line in lines:  # a public key stands for whoever holds it
            allowed.write(f'signer namespaces="{NAMESPACE}" {line}\n' if KEY_TYPE.match(line)
                          else line + "\n")
        allowed.flush()
        found = _run(["-Y", "find-principals", "-s", str(folder / SIGNATURE), "-f", allowed.name])
        for principal in found.stdout.decode("utf-8", "replace").splitlines():
            done = _run(["-Y", "verify", "-n", NAMESPACE, "-f", allowed.name, "-I", principal, "-s",
                         str(folder / SIGNATURE)], manifest)
            if done.returncode == 0:
                return key if principal == "signer" else f"{quoted(principal)}, {key}"
    raise ArchiveError(f"{archive}: was signed by {key}, who is not in {signers}")
